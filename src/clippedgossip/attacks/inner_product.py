from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from clippedgossip.attacks.base import LocalAttack, View


@dataclass(frozen=True)
class IPM(LocalAttack):
    """Inner product manipulation: −ε times the mean of the receiver and its regular neighbours (Xie et
    al.)."""

    epsilon: float = 0.1
    strength: ClassVar[str | None] = "epsilon"

    def coefficients(self, view: View) -> Tensor:
        return -self.epsilon * view.among / view.among.sum(1, keepdim=True)
