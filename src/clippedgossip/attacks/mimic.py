from dataclasses import dataclass

import torch
from torch import Tensor

from clippedgossip.attacks.base import LinearAttack, View
from clippedgossip.errors import AttackError
from clippedgossip.mixing import kernels

SQUARINGS = 12  # the 4096th power leaves the first eigenvector alone, if the second value is 1 % below


@dataclass(frozen=True)
class Mimic(LinearAttack):
    """Every Byzantine node sends the model of one regular node, which so gets too much weight (Karimireddy et
    al.). `target` is that node's place among the regular nodes. The default is argmax_i |⟨z, x_i − x̄⟩|, z the
    direction in which the regular models vary most. Its authors find z once, in the first rounds; here every
    round has its own z."""

    target: int | None = None

    def table(self, view: View) -> Tensor:
        nodes = torch.arange(len(view.models), device=view.models.device)
        return (nodes == self._chosen(view)).to(torch.float64).expand(len(view.receivers), -1)

    def messages(self, view: View) -> Tensor:
        # Not models[chosen]: that would read the index on the CPU.
        return view.models.index_select(0, self._chosen(view)[None]).expand(len(view.receivers), -1)

    def _chosen(self, view: View) -> Tensor:
        r = len(view.models)
        if self.target is None:
            return self._most_aligned(view)
        if not 0 <= self.target < r:
            raise AttackError(f"mimic target is {self.target}; there are {r} regular nodes, 0 to {r - 1}")
        return torch.full((), self.target, device=view.models.device)

    @staticmethod
    def _most_aligned(view: View) -> Tensor:
        """z = Σ_i v_i (x_i − x̄), v the first eigenvector of the inner products of the x_i − x̄; then
        ⟨z, x_i − x̄⟩ is a multiple of v_i. It comes from repeated squaring, which a CUDA graph can capture."""
        apart = view.models - view.models.mean(0)
        products = view.context.reduce(kernels.gram([apart]))[:-1, :-1].nan_to_num()
        for _ in range(SQUARINGS):
            products = products / products.diagonal().sum().clamp(min=torch.finfo(products.dtype).tiny)
            products = products @ products
        return products.diagonal().argmax()  # ∝ v_i²
