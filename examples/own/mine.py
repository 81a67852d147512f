"""A rule, an attack and a model of one's own; `own.toml` beside this file names them."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from clippedgossip.attacks import FreeAttack, View
from clippedgossip.mixing.inbox import Neighborhood, from_neighbors
from clippedgossip.rules import LinearRule


@dataclass(frozen=True)
class DistanceWeighted(LinearRule):
    """x_i + Σ_j W_ij (x_j − x_i) / (1 + ‖x_j − x_i‖ / scale): who is far away counts less."""

    scale: float = 1.0

    def coefficients(self, near: Neighborhood) -> Tensor:
        return from_neighbors(near.weights / (1 + near.distances / self.scale))


@dataclass(frozen=True)
class Stubborn(FreeAttack):
    """Every Byzantine node sends the same constant model to everybody, in every round."""

    value: float = 3.0

    def messages(self, view: View) -> Tensor:
        return torch.full_like(view.models[view.receivers], self.value)


def two_layers(shape: tuple[int, ...], classes: int, width: int = 32) -> nn.Module:
    """A model for inputs of this shape."""
    inputs = int(torch.tensor(shape).prod())
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, classes))
