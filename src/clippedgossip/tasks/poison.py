"""Poisoned data: pure functions of one batch and the round, applied to the batches of Byzantine nodes."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from clippedgossip.decode import Kind
from clippedgossip.errors import DataError, kind_of
from clippedgossip.randomness import Word
from clippedgossip.tasks.datasets import IGNORED


class Poison(Protocol):
    """Takes normalised inputs (n, batch, *shape), targets (n, batch, …) and the round, maybe a 0-dim tensor,
    which is the same in all local steps of a round.
    Inputs and targets are tensors, or tuples and dicts of them, as in the data."""

    def __call__(self, x: Any, y: Any, round: Word) -> tuple[Any, Any]: ...


@dataclass(frozen=True, kw_only=True)
class FlipLabels:
    """Label flipping: y becomes classes-1-y, 9-y for ten classes. The label −100 stays."""

    classes: int

    def __call__(self, x: Any, y: Any, round: Word) -> tuple[Any, Any]:
        return x, torch.where(_labels(y) == IGNORED, y, self.classes - 1 - y)


@dataclass(frozen=True, kw_only=True)
class RotateLabels:
    """Labels that shift by one class in every round, so that every round teaches something else. The label
    −100 stays."""

    classes: int

    def __call__(self, x: Any, y: Any, round: Word) -> tuple[Any, Any]:
        return x, torch.where(_labels(y) == IGNORED, y, (y + round) % self.classes)


@dataclass(frozen=True, kw_only=True)
class Trigger:
    """A backdoor: a bright square in the corner of every image, labelled `target`. `value` is in the units of
    normalised images: 2.5 standard deviations. Images of your own are not normalised."""

    target: int
    size: int = 3
    value: float = 2.5

    def __call__(self, x: Any, y: Any, round: Word) -> tuple[Any, Any]:
        if not isinstance(x, Tensor) or x.dim() < 4:
            kind = f"have shape {tuple(x.shape[2:])}" if isinstance(x, Tensor) else f"are {kind_of(x)}"
            raise DataError(
                f"a trigger is a square in an image; these inputs {kind}\n"
                'take another poison, such as "flip-labels"'
            )
        if not x.is_floating_point() and self.value not in range(torch.iinfo(x.dtype).max + 1):
            raise DataError(
                f"a trigger of value {self.value} cannot be written into images of {x.dtype}\n"
                f"give a whole number, such as value = {torch.iinfo(x.dtype).max}"
            )
        marked = x.clone()
        marked[..., -self.size :, -self.size :] = self.value
        real = _labels(y, real=True).is_floating_point()
        return marked, y.new_full(y.shape, self.target) if real else torch.where(y == IGNORED, y, self.target)


def _labels(y: Any, *, real: bool = False) -> Tensor:
    if not isinstance(y, Tensor) or (y.is_floating_point() and not real):
        raise DataError(
            "this poison changes class numbers, but the targets are others\n"
            "give whole numbers as targets, or a poison of your own"
        )
    return y


POISON = Kind(
    word="poison",
    names={"flip-labels": FlipLabels, "rotate-labels": RotateLabels, "trigger": Trigger},
    base=object,
    group="clippedgossip.poisons",
    fix="make it a class whose instances take (x, y, round) and return (x, y)",
    offered=("classes",),
    error=DataError,
)
