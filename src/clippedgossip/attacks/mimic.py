from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from clippedgossip.attacks.base import LinearAttack, View
from clippedgossip.errors import AttackError
from clippedgossip.mixing import kernels
from clippedgossip.randomness import hash_normal

SQUARINGS = 12  # the 4096th power leaves the first eigenvector alone, if the second value is 1 % below


@dataclass(frozen=True)
class Mimic(LinearAttack):
    """Every Byzantine node sends the model of one regular node, which so gets too much weight. `target`
    is that node's place among the regular nodes.

    The default is its authors' choice. In the first `warmup` rounds, μ is the mean of the regular models so
    far, and z goes towards Σ_i ⟨x_i − μ, z⟩ (x_i − μ), the direction of largest variance:
    z ← (t z + its unit vector)/(t + 1), made a unit vector, from a random one. The node copied is
    argmax_i ⟨x_i, z⟩; from then on it stays the same. Other than theirs: messages are models after the local
    step, not gradients, and all neighbours of all Byzantine nodes get that one model. Where nothing is kept
    between rounds, as between peers, z is the round's own, and the node argmax_i |⟨z, x_i − x̄⟩|.

    Needs: all regular models.
    Fails: if the nodes have like data: one regular model more does no harm.
    Origin: Karimireddy, He and Jaggi, 2022, arXiv:2006.09365.
    """

    target: int | None = None
    warmup: int = 20
    memory: ClassVar[int] = 3  # μ, z, and the node's place in every coordinate

    def __post_init__(self) -> None:
        if self.warmup < 1:
            raise AttackError(
                f"warmup is {self.warmup}; z is found in the first rounds, at least 1 is needed"
            )

    def table(self, view: View) -> Tensor:
        nodes = torch.arange(len(view.models), device=view.models.device)
        return (nodes == self._chosen(view)).to(torch.float64).expand(len(view.receivers), -1)

    def messages(self, view: View) -> Tensor:
        # Not models[chosen]: that would read the index on the CPU.
        return view.models.index_select(0, self._chosen(view)[None]).expand(len(view.receivers), -1)

    def learn(self, view: View) -> None:
        memory, context, models = view.memory, view.context, view.models
        if memory is None or self.target is not None:
            return
        device = models.device
        round = context.round  # a CUDA graph reads it from a tensor
        round = round.to(memory.dtype) if isinstance(round, Tensor) else memory.new_full((), round)

        def unit(vector: Tensor) -> Tensor:
            square = context.reduce(vector.double().square().sum())
            return vector / square.sqrt().clamp(min=torch.finfo(memory.dtype).tiny).to(memory.dtype)

        coordinates = context.offset + torch.arange(models.shape[1], device=device)
        random = hash_normal(context.seed, "mimic", 0, coordinates, dtype=memory.dtype)
        mean, z = memory[0], torch.where(round > 0, memory[1], random)
        mean = mean + (models.mean(0) - mean) / (round + 1)
        apart = (models - mean).nan_to_num()
        along = context.reduce((apart * z).sum(1, dtype=torch.float64)).to(memory.dtype)
        z = unit((round * unit(z) + unit(along @ apart)) / (round + 1))
        projections = context.reduce((models * z).sum(1, dtype=torch.float64)).nan_to_num(nan=-torch.inf)
        place = projections.argmax().to(memory.dtype).expand_as(z)
        memory.copy_(torch.where(round < self.warmup, torch.stack([mean, z, place]), memory))

    def _chosen(self, view: View) -> Tensor:
        r = len(view.models)
        if self.target is not None:
            if not 0 <= self.target < r:
                raise AttackError(f"mimic target is {self.target}; there are {r} regular nodes, 0 to {r - 1}")
            return torch.full((), self.target, device=view.models.device)
        if view.memory is None:
            return self._most_aligned(view)
        place = view.memory[2].double()
        total, coordinates = view.context.reduce(torch.stack([place.sum(), torch.ones_like(place).sum()]))
        chosen: Tensor = (total / coordinates).round().long()
        return chosen

    @staticmethod
    def _most_aligned(view: View) -> Tensor:
        """z = Σ_i v_i (x_i − x̄), v the first eigenvector of the inner products of the x_i − x̄; then
        ⟨z, x_i − x̄⟩ is a multiple of v_i. It comes from repeated squaring, which a CUDA graph can capture."""
        apart = view.models - view.models.mean(0)
        products = view.context.reduce(kernels.gram([apart])).nan_to_num()
        for _ in range(SQUARINGS):
            products = products / products.diagonal().sum().clamp(min=torch.finfo(products.dtype).tiny)
            products = products @ products
        return products.diagonal().argmax()  # ∝ v_i²
