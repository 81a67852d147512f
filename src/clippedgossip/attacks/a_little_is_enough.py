from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from clippedgossip.attacks.base import FreeAttack, View

HIGHEST_SHARE = 0.999  # where attackers are the majority the formula gives z = ∞


@dataclass(frozen=True)
class ALIE(FreeAttack):
    """A little is enough: μ − zσ over the victim and its regular neighbours (Baruch et al.), with
    z = Φ⁻¹((n−b−s)/(n−b)), s = ⌊n/2+1⌋−b of the victim's neighbourhood unless given (eq. z:alie)."""

    z: float | None = None
    strength: ClassVar[str | None] = "z"

    def messages(self, view: View) -> Tensor:
        count = view.among.sum(1, keepdim=True)
        share = view.among / count
        centre = view.models.mean(0)  # squares of what is left after centring keep their digits
        around = view.models - centre
        mean = view.combined(share, around)
        spread = (view.combined(share, around.square()) - mean.square()).clamp(min=0).sqrt()
        return centre + mean - self._z(view, count).to(mean.dtype) * spread

    def _z(self, view: View, honest: Tensor) -> Tensor:
        if self.z is not None:
            return torch.full_like(honest, self.z)
        b = view.byzantine_count
        n = honest + b
        supporters = torch.floor(n / 2 + 1) - b
        share = ((honest - supporters) / honest).clamp(1 - HIGHEST_SHARE, HIGHEST_SHARE)
        quantile: Tensor = torch.special.ndtri(share)
        return quantile
