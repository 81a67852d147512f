from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from clippedgossip.attacks.base import FreeAttack, LocalAttack, View, with_self
from clippedgossip.randomness import hash_normal

LARGE = 2.0**100  # a larger `std` is two factors


@dataclass(frozen=True)
class Gaussian(FreeAttack):
    """The receiver's model with normal noise of standard deviation `std` on every coordinate.

    Needs: the receiver's model.
    Fails: against every robust rule: the noise has no direction, and the receivers' average hardly moves.
    Origin: common in the field.
    """

    std: float = 1.0
    strength: ClassVar[str | None] = "std"

    def messages(self, view: View) -> Tensor:
        models, now = view.models, view.context
        edges = torch.arange(len(view.receivers), device=models.device)[:, None]
        coordinates = now.offset + torch.arange(models.shape[1], device=models.device)
        noise = hash_normal(now.seed, "gaussian", now.round, edges, coordinates, dtype=models.dtype)
        return models[view.receivers] + self._scaled(noise)

    def _scaled(self, noise: Tensor) -> Tensor:
        if noise.dtype == torch.float64 or (isinstance(self.std, float | int) and abs(self.std) <= LARGE):
            return self.std * noise
        # float32 has no such number but ∞, and 0·∞ is NaN: times two smaller numbers.
        std = torch.as_tensor(self.std, dtype=torch.float64).clamp(-(LARGE**2), LARGE**2)
        beyond = (std.abs() / LARGE).clamp(min=1)
        return noise * (std / beyond) * beyond


@dataclass(frozen=True)
class NonFinite(FreeAttack):
    """Messages of NaN, or of another value; an infinite one is sent as it is.

    Needs: nothing.
    Fails: against every rule here: a message that is not finite counts as not received.
    Origin: a fault of real machines.
    """

    value: float = float("nan")

    def messages(self, view: View) -> Tensor:
        return view.models.new_full((len(view.receivers), view.models.shape[1]), self.value)

    def sent(self, view: View, dtype: torch.dtype | None = None) -> Tensor:
        return self.messages(view).to(dtype or view.models.dtype)


@dataclass(frozen=True)
class Silence(LocalAttack):
    """No message: the weight of the sender goes to the receiver's own model.

    Needs: nothing.
    Fails: on a network that stays connected without the Byzantine nodes: consensus is slower, not other.
    Origin: a fault of real machines.
    """

    def coefficients(self, view: View) -> Tensor:
        return with_self(1.0, torch.zeros_like(view.neighbors))
