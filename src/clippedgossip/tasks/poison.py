"""Poisoned data: pure functions of one batch and the round, applied to the batches of Byzantine nodes."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from clippedgossip.decode import Kind
from clippedgossip.errors import DataError
from clippedgossip.randomness import Word


class Poison(Protocol):
    """Takes normalised inputs (n, batch, *shape), labels (n, batch) and the round, maybe a 0-dim tensor."""

    def __call__(self, x: Tensor, y: Tensor, round: Word) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True, kw_only=True)
class FlipLabels:
    """Label flipping: y becomes classes-1-y, 9-y for ten classes."""

    classes: int

    def __call__(self, x: Tensor, y: Tensor, round: Word) -> tuple[Tensor, Tensor]:
        return x, self.classes - 1 - y


@dataclass(frozen=True, kw_only=True)
class RotateLabels:
    """Labels that shift by one class in every round, so that every round teaches something else."""

    classes: int

    def __call__(self, x: Tensor, y: Tensor, round: Word) -> tuple[Tensor, Tensor]:
        return x, (y + round) % self.classes


@dataclass(frozen=True, kw_only=True)
class Trigger:
    """A backdoor: a bright square in the corner of every image, labelled `target`."""

    target: int
    size: int = 3
    value: float = 2.5

    def __call__(self, x: Tensor, y: Tensor, round: Word) -> tuple[Tensor, Tensor]:
        if x.dim() < 4:
            raise DataError(
                f"a trigger is a square in an image; these inputs have shape {tuple(x.shape[2:])}\n"
                'take another poison, such as "flip-labels"'
            )
        marked = x.clone()
        marked[..., -self.size :, -self.size :] = self.value
        return marked, y.new_full(y.shape, self.target)


POISON = Kind(
    word="poison",
    names={"flip-labels": FlipLabels, "rotate-labels": RotateLabels, "trigger": Trigger},
    base=object,
    group="clippedgossip.poisons",
    fix="make it a class whose instances take (x, y, round) and return (x, y)",
    offered=("classes",),
    error=DataError,
)
