from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from clippedgossip.attacks.base import LinearAttack, View
from clippedgossip.errors import AttackError
from clippedgossip.mixing import kernels


@dataclass(frozen=True)
class SpectralHeterogeneity(LinearAttack):
    """x_i + c·v_i·(vᵀX), v the Fiedler vector of the regular nodes' weights. It amplifies the mode that
    gossip damps most slowly.

    Needs: all regular models and all weights among regular nodes.
    Fails: on a network without a slow mode, such as a complete graph.
    Origin: Gaucher, Dieuleveut and Hendrikx, 2024, arXiv:2410.10418.
    """

    c: float = 1.0
    strength: ClassVar[str | None] = "c"

    def table(self, view: View) -> Tensor:
        mode = self._mode(view)
        own = view.receivers[:, None] == torch.arange(len(view.models), device=view.receivers.device)
        return own + self.c * mode[view.receivers][:, None] * mode

    def messages(self, view: View) -> Tensor:
        mode, messages = self._mode(view), torch.empty_like(view.models[view.receivers])
        for part, models in kernels.wide_chunks(view.models):  # a large c·v_i is beyond float32
            along = mode @ models
            messages[:, part] = models[view.receivers] + self.c * mode[view.receivers][:, None] * along
        return messages

    def _mode(self, view: View) -> Tensor:
        mode = view.network.gap.fiedler
        if mode is None:
            raise AttackError(
                "the spectral attack needs two regular nodes that are connected; this network has none\n"
                "add an edge between regular nodes, or take another attack"
            )
        return view.layout.remember("fiedler", lambda: mode)
