"""Hugging Face's Trainer: mix after each step of the optimizer."""

from collections.abc import Callable
from typing import Any

from torch import nn
from transformers import TrainerCallback

from clippedgossip.adapters import steps_between


class TrainerMixing(TrainerCallback):
    """Calls `mix(model)` after every `every`-th optimizer step.

    with cg.Peer.from_config("ann/peer.toml", model) as peer:
        Trainer(model, arguments, train_dataset=data, callbacks=[TrainerMixing(peer.mix)]).train()
    """

    def __init__(self, mix: Callable[[nn.Module], object], *, every: int = 1) -> None:
        self._mix, self._every, self.steps = mix, steps_between("every", every), 0

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """The Trainer calls this once for each step, however many batches it accumulates."""
        self.steps += 1
        if self.steps % self._every == 0:
            self._mix(more["model"])
