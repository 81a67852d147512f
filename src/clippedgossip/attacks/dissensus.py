from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from clippedgossip.attacks.base import LinearAttack, View


@dataclass(frozen=True)
class Dissensus(LinearAttack):
    """x_i − ε Σ_{k∈N_i∩R} W_ik (x_k − x_i) / Σ_{j∈N_i∩B} W_ij, Definition (dissensus). With ε = 1 gossip
    stands still."""

    epsilon: float = 1.5
    strength: ClassVar[str | None] = "epsilon"

    def coefficients(self, view: View) -> Tensor:
        weights = view.regular_weights
        progress = weights - weights.sum(1, keepdim=True) * view.themselves
        return view.themselves - self.epsilon * progress / view.byzantine_weight


@dataclass(frozen=True)
class ZeroSum(LinearAttack):
    """−Σ_{k∈N_i∩R} x_k / |N_i∩B| (Peng et al.; § dissensus and other attacks)."""

    def coefficients(self, view: View) -> Tensor:
        return -view.neighbors / view.byzantine_count
