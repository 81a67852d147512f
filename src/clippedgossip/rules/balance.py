import math
from dataclasses import dataclass

import torch
from torch import Tensor

from clippedgossip.errors import RuleError
from clippedgossip.mixing.inbox import Neighborhood, from_neighbors
from clippedgossip.rules.base import LinearRule, at_least, fraction
from clippedgossip.rules.bound import Bound, Seen, around_own
from clippedgossip.rules.sorting import uniform_over


@dataclass(frozen=True)
class Balance(LinearRule):
    """BALANCE: accept j if ‖x_i − x_j‖ ≤ γ e^{−κ t/T} ‖x_i‖; a x_i + (1−a)·mean(accepted).

    Needs: the number of rounds T, unless κ = 0, and a γ of the order of the distances over the norms.
    Fails: where the norm of a model says nothing of the distances: with γ too small a node is alone, with γ
    too large everything passes. It ignores the weights.
    Cost: O(kd).
    Origin: Fang et al., 2024, arXiv:2406.10416.
    """

    gamma: float = 0.3
    kappa: float = 1.0
    self_weight: float = 0.5

    def __post_init__(self) -> None:
        at_least("gamma", self.gamma, 0)
        at_least("kappa", self.kappa, 0)
        fraction("self_weight", self.self_weight, below=1 + 1e-12)

    def coefficients(self, near: Neighborhood) -> Tensor:
        bound = self.gamma * self._decay(near) * near.own_norms
        accepted = near.present & (near.distances <= bound[:, None])
        return from_neighbors(uniform_over(accepted).nan_to_num(nan=0.0) * (1 - self.self_weight))

    def _decay(self, near: Neighborhood) -> Tensor | float:
        now, last = near.context.round, near.context.rounds
        if self.kappa == 0 or (isinstance(now, int) and now == 0):
            return 1.0
        if last is None:
            raise RuleError(
                "BALANCE with kappa > 0 must know the number of rounds\n"
                "give Context(round=…, rounds=…), or kappa=0"
            )
        if isinstance(now, int):
            return math.exp(-self.kappa * now / last)
        return torch.exp(-self.kappa * now / last)

    def bound(self, seen: Seen) -> Bound:
        """No accepted model is further away than γ e^{−κ t/T} ‖x_i‖."""
        now, last = int(seen.context.round), seen.context.rounds
        decay = math.exp(-self.kappa * now / last) if last else 1.0
        return around_own(seen, (1 - self.self_weight) * self.gamma * decay * seen.own_norm)
