"""The local step of Algorithm 1: momentum and half-step."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clippedgossip.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Momentum(ABC):
    """How the local momentum follows the gradients."""

    @abstractmethod
    def gain(self, first: bool) -> tuple[float, float]:
        """(a, b) of m ← a·m + b·g; in the first round m is the gradient itself."""


@dataclass(frozen=True)
class HeavyBall(Momentum):
    """PyTorch's form: m ← β m + g. The experiments' tables use it."""

    beta: float = 0.9

    def __post_init__(self) -> None:
        if not 0 <= self.beta < 1:
            raise ConfigError(f"momentum beta is {self.beta}; it must be at least 0 and below 1")

    def gain(self, first: bool) -> tuple[float, float]:
        return (0.0, 1.0) if first else (self.beta, 1.0)


@dataclass(frozen=True)
class Averaged(Momentum):
    """Algorithm 1's form: m ← (1−α) m + α g, with m⁰ = g(x⁰). α = 1 is no momentum."""

    alpha: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= 1:
            raise ConfigError(f"momentum alpha is {self.alpha}; it must be above 0 and at most 1")

    def gain(self, first: bool) -> tuple[float, float]:
        return (0.0, 1.0) if first else (1 - self.alpha, self.alpha)


def momentum_of(form: str, weight: float) -> Momentum:
    """The momentum of a form; `weight` is that of the old momentum, so the paper's α is 1 − weight."""
    return HeavyBall(weight) if form == "pytorch" else Averaged(round(1 - weight, 12))


@dataclass(frozen=True, kw_only=True)
class LearningRate:
    """η, multiplied by `factor` at each of the rounds in `drops`."""

    initial: float = 0.01
    drops: tuple[int, ...] = ()
    factor: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.initial < math.inf:
            raise ConfigError(f"the learning rate is {self.initial}; it must be above 0 and finite")
        if not 0 < self.factor < math.inf:
            raise ConfigError(f"the learning rate's factor is {self.factor}; it must be above 0, such as 0.1")
        if min(self.drops, default=0) < 0:
            raise ConfigError(f"the learning rate drops at round {min(self.drops)}; rounds count from 0")

    def at(self, round: int) -> float:
        return float(self.initial * self.factor ** sum(round >= drop for drop in self.drops))


def half_step(
    models: "Tensor",
    momentum: "Tensor",
    half: "Tensor",
    gradients: "Sequence[Tensor]",
    gain: "tuple[Tensor, Tensor]",
    lr: "Tensor",
) -> None:
    """m ← a·m + b·g and x½ ← x − η m, eqs. (m) and (x_half), written into `momentum` and `half`.

    The gradients come in pieces (n, …) that lie side by side in the vectors (n, d).
    """
    import torch  # reading a config needs the numbers above alone

    if models.is_cuda and models.dtype == torch.float32:
        from clippedgossip.mixing.kernels_cuda import half_step_cuda

        half_step_cuda(models, momentum, half, gradients, gain, lr)
        return
    start, (keep, take), rate = 0, (float(gain[0]), float(gain[1])), float(lr)
    for piece in gradients:
        flat = piece.flatten(1)
        part = slice(start, start + flat.shape[1])
        start += flat.shape[1]
        moved = momentum[:, part]
        if take == 1:
            torch.add(flat, moved, alpha=keep, out=moved)  # one pass over memory instead of two
        else:
            moved.mul_(keep).add_(flat, alpha=take)
        torch.sub(models[:, part], moved, alpha=rate, out=half[:, part])
