"""A module's parameters as one flat vector, and back, without copying.

Nodes exchange and mix parameters only. Buffers are not part of the vector, so `make_task` refuses a model
that changes its buffers in training (such as the running statistics of batch normalisation).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class ParameterLayout:
    """Names and shapes of a module's parameters, in the order they lie in the vector."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    @classmethod
    def of(cls, module: nn.Module) -> "ParameterLayout":
        items = list(module.named_parameters())
        return cls(names=tuple(name for name, _ in items), shapes=tuple(item.shape for _, item in items))

    @property
    def size(self) -> int:
        """Number of parameters, the paper's d."""
        return sum(map(math.prod, self.shapes))

    def views(self, vectors: Tensor) -> dict[str, Tensor]:
        """Views into vectors (*lead, d): {name: (*lead, *shape)}; writing to them writes there."""
        parts = torch.split(vectors, [math.prod(shape) for shape in self.shapes], dim=-1)
        lead = vectors.shape[:-1]
        return {
            name: part.view(*lead, *shape)
            for name, shape, part in zip(self.names, self.shapes, parts, strict=True)
        }

    def flatten(self, tensors: Mapping[str, Tensor], lead: int = 0) -> Tensor:
        """One vector (*lead, d) from tensors of shape (*lead, *shape), such as stacked gradients."""
        return torch.cat([tensors[name].flatten(lead) for name in self.names], dim=-1)


def flatten(module: nn.Module) -> Tensor:
    """A copy of the parameters as one vector (d,)."""
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


@torch.no_grad()
def unflatten(vector: Tensor, module: nn.Module) -> nn.Module:
    """Copy a vector (d,) into a module's parameters."""
    for parameter, value in zip(
        module.parameters(), ParameterLayout.of(module).views(vector).values(), strict=True
    ):
        parameter.copy_(value)
    return module
