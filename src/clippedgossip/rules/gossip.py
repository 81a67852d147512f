from dataclasses import dataclass

from torch import Tensor

from clippedgossip.mixing.inbox import Neighborhood
from clippedgossip.rules.base import LinearRule
from clippedgossip.rules.bound import Bound, Seen, Unbounded


@dataclass(frozen=True)
class Gossip(LinearRule):
    """x_i ← Σ_j W_ij x_j, eq. (Gossip).

    Needs: nothing.
    Fails: with one Byzantine neighbour. Its message is unbounded, and so is its effect.
    Cost: O(kd).
    Origin: Tsitsiklis, 1984; Boyd et al., 2006.
    """

    def coefficients(self, near: Neighborhood) -> Tensor:
        return near.closed_weights

    def bound(self, seen: Seen) -> Bound:
        return Unbounded("a neighbour moves the mean wherever it likes")
