from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from clippedgossip.attacks.base import LocalAttack, View


@dataclass(frozen=True)
class IPM(LocalAttack):
    """Inner product manipulation: −ε times the mean of the receiver and its regular neighbours.

    Needs: the models of the receiver and its regular neighbours.
    Fails: against rules that drop or clip what is far: models, unlike gradients, are far from their negation.
    Origin: Xie, Koyejo and Gupta, 2019, arXiv:1903.03936.
    """

    epsilon: float = 0.1
    strength: ClassVar[str | None] = "epsilon"

    def coefficients(self, view: View) -> Tensor:
        return -self.epsilon * view.among / view.among.sum(1, keepdim=True)
