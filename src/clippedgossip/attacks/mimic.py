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

    def coefficients(self, view: View) -> Tensor:
        r = len(view.models)
        if self.target is None:
            chosen = torch.linalg.vector_norm(view.models - view.models.mean(0), dim=1).nan_to_num().argmax()
        elif 0 <= self.target < r:
            chosen = torch.tensor(self.target, device=view.models.device)
        else:
            raise AttackError(f"mimic target is {self.target}; there are {r} regular nodes, 0 to {r - 1}")
        return torch.nn.functional.one_hot(chosen, r).to(torch.float64).expand(len(view.victims), r)
