from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from clippedgossip.attacks.base import LinearAttack, View


@dataclass(frozen=True)
class IPM(LinearAttack):
    """Inner product manipulation: −ε times the mean of the victim and its regular neighbours (Xie et al.)."""

    epsilon: float = 0.1
    strength: ClassVar[str | None] = "epsilon"

    def coefficients(self, view: View) -> Tensor:
        among = view.neighbors + view.themselves
        return -self.epsilon * among / among.sum(1, keepdim=True)
