"""Any PyTorch loop: mix after the optimizer's step, with no change to the loop."""

from collections.abc import Callable
from typing import Any

from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from clippedgossip.adapters import steps_between


class MixAfterStep:
    """Calls `mix` after every `every`-th step of an optimizer.

        with cg.Peer.from_config("ann/peer.toml", model) as peer:
            MixAfterStep(optimizer, lambda: peer.mix(model))
            for x, y in batches:
                ...
                optimizer.step()  # mixes as well

    With mixed precision a `GradScaler` skips steps whose gradients are not finite. Neighbours wait for a
    message in such a round too: give the `scaler`, and a step that it skips counts like any other.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mix: Callable[[], object],
        *,
        every: int = 1,
        scaler: GradScaler | None = None,
    ) -> None:
        self.steps = 0
        """Steps so far, those that were skipped included."""
        self._mix, self._every = mix, steps_between("every", every)
        self._optimizer, self._scaler = optimizer, scaler
        self._hook = optimizer.register_step_post_hook(lambda *_: self._count())
        if scaler is not None:
            self._scaled_step = scaler.step
            scaler.step = self._step  # type: ignore[method-assign]  # of this scaler alone

    def remove(self) -> None:
        """Mix no more."""
        self._hook.remove()
        if self._scaler is not None:
            del self._scaler.step  # the method of the class shows again

    def _step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> float | None:
        before = self.steps
        found = self._scaled_step(optimizer, *args, **kwargs)
        if optimizer is self._optimizer and self.steps == before:
            self._count()
        return found

    def _count(self) -> None:
        self.steps += 1
        if self.steps % self._every == 0:
            self._mix()
