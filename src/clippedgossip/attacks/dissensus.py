from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from clippedgossip.attacks.base import LocalAttack, View, with_self


@dataclass(frozen=True)
class Dissensus(LocalAttack):
    """x_i − ε Σ_{k∈N_i∩R} W_ik (x_k − x_i) / Σ_{j∈N_i∩B} W_ij, Definition (dissensus). With ε = 1,
    gossip changes nothing."""

    epsilon: float = 1.5
    strength: ClassVar[str | None] = "epsilon"

    def coefficients(self, view: View) -> Tensor:
        pull = self.epsilon * view.regular_weights / view.byzantine_weight
        return with_self(1 + pull.sum(1), -pull)


@dataclass(frozen=True)
class ZeroSum(LocalAttack):
    """−Σ_{k∈N_i∩R} x_k / |N_i∩B| (Peng et al.; § dissensus and other attacks)."""

    def coefficients(self, view: View) -> Tensor:
        return with_self(0.0, -view.neighbors / view.byzantine_count)
