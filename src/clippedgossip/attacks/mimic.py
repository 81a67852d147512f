from dataclasses import dataclass

import torch
from torch import Tensor

from clippedgossip.attacks.base import LinearAttack, View
from clippedgossip.errors import AttackError


@dataclass(frozen=True)
class Mimic(LinearAttack):
    """Every attacker repeats one regular node's model, which gives it too much say (Karimireddy et al.):
    the node given by its place among the regular ones, or else the one furthest from their mean."""

    target: int | None = None

    def table(self, view: View) -> Tensor:
        nodes = torch.arange(len(view.models), device=view.models.device)
        return (nodes == self._chosen(view)).to(torch.float64).expand(len(view.victims), -1)

    def messages(self, view: View) -> Tensor:
        # Selected, not indexed: that would ask the host which one it is.
        return view.models.index_select(0, self._chosen(view)[None]).expand(len(view.victims), -1)

    def _chosen(self, view: View) -> Tensor:
        r = len(view.models)
        if self.target is None:
            apart = torch.linalg.vector_norm(view.models - view.models.mean(0), dim=1, dtype=torch.float64)
            return view.context.reduce(apart.square()).nan_to_num().argmax()
        if not 0 <= self.target < r:
            raise AttackError(f"mimic target is {self.target}; there are {r} regular nodes, 0 to {r - 1}")
        return torch.full((), self.target, device=view.models.device)
