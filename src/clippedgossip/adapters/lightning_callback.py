"""Lightning: mix after each step of the optimizer."""

from collections.abc import Callable
from typing import Any

from lightning.pytorch import Callback
from torch import nn

from clippedgossip.adapters import steps_between


class LightningMixing(Callback):
    """Calls `mix(module)` after every `every`-th optimizer step. Batches whose gradients are accumulated do
    not count.

    with cg.Peer.from_config("ann/peer.toml", module) as peer:
        Trainer(max_epochs=1, callbacks=[LightningMixing(peer.mix)]).fit(module, batches)
    """

    def __init__(self, mix: Callable[[nn.Module], object], *, every: int = 1) -> None:
        super().__init__()
        self._mix, self._every, self.steps = mix, steps_between("every", every), 0

    def on_train_start(self, trainer: Any, pl_module: nn.Module) -> None:
        """Start from where a checkpoint left off."""
        self.steps = trainer.global_step

    def on_train_batch_end(
        self, trainer: Any, pl_module: nn.Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """`global_step` counts the steps of the optimizer."""
        if trainer.global_step == self.steps:
            return
        self.steps = trainer.global_step
        if self.steps % self._every == 0:
            self._mix(pl_module)
