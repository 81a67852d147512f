from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from clippedgossip.attacks.base import FreeAttack, View
from clippedgossip.mixing import kernels

HIGHEST_SHARE = 0.999  # the formula gives z = ∞ where Byzantine nodes are the majority


@dataclass(frozen=True)
class ALIE(FreeAttack):
    """A little is enough: μ − zσ over the receiver and its regular neighbours. By default
    z = Φ⁻¹((n−b−s)/(n−b)), s = ⌊n/2+1⌋−b, for the receiver's neighbourhood (eq. z:alie).

    Needs: the models of the receiver and its regular neighbours.
    Fails: in a small neighbourhood, where the formula gives z ≤ 0 and the message is no attack: give a z of
    1 or more there. With little noise zσ is small.
    Origin: Baruch, Baruch and Goldberg, 2019, arXiv:1902.06156.
    """

    z: float | None = None
    strength: ClassVar[str | None] = "z"

    def messages(self, view: View) -> Tensor:
        count = view.among.sum(1, keepdim=True)
        share = view.among / count
        z = self._z(view, count)
        messages = view.models.new_empty(len(count), view.models.shape[1])
        budget = kernels.CHUNK_BYTES if not messages.is_cuda else 1 << 30
        for part in kernels.column_chunks(len(view.models), messages.shape[1], 8, budget):
            models = view.models[:, part].double()  # σ² is a difference of two squares: it cancels in float32
            mean = view.combined(share, models)
            squares = view.combined(share, models.square())
            messages[:, part] = mean - z * (squares - mean.square()).clamp(min=0).sqrt()
        return messages

    def _z(self, view: View, regular: Tensor) -> Tensor:
        if self.z is not None:
            return torch.zeros_like(regular) + self.z  # a tensor, if a search gave it
        b = view.byzantine_count
        n = regular + b
        supporters = torch.floor(n / 2 + 1) - b
        share = ((regular - supporters) / regular).clamp(1 - HIGHEST_SHARE, HIGHEST_SHARE)
        quantile: Tensor = torch.special.ndtri(share)
        return quantile
