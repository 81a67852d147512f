"""Whether a GPU did what it should: compilers have been wrong without a word, and a round is captured too."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from clippedgossip.tasks.work import Work, Workers

COMPARED = 8
"""Workers whose gradients are computed without a compiler as well."""
ROUNDING = {"float32": 1e-3, "tf32": 0.02, "bfloat16": 0.05}
"""Of a parameter's gradient: as much as may always be off."""
SLACK = 4
"""How many times as far off as uncompiled gradients of the same precision the compiled ones may be."""


class Fault(NamedTuple):
    what: str
    off: float
    allowed: float

    def __str__(self) -> str:
        return f"{self.what}, off by {self.off:.2g} of the result, where rounding explains {self.allowed:.2g}"


class Proof:
    """Some workers' batch and gradients of a round, uncompiled: as precise as the run is, and in float64."""

    def __init__(self, work: Work, workers: Workers, models: Tensor, round: Tensor, precision: str) -> None:
        self.some = slice(None, None, -(-len(models) // COMPARED))
        self.names = tuple(work.task.layout.views(models[:1]))
        self.floor = ROUNDING[precision]
        mine, held = workers.some(self.some), models[self.some].clone()
        self.x, self.y = work.draw(mine, round)
        self.plain, _ = work.gradients(mine, held, self.x, self.y, round)
        precise = Work(work.task, torch.float64, work.poisons)
        self.exact, _ = precise.gradients(mine, held, self.x, self.y, round)

    def of_batch(self, x: Tensor, y: Tensor) -> Fault | None:
        """What is wrong with the batch of all workers."""
        off = max(_apart(x[self.some], self.x), _apart(y[self.some], self.y))
        return Fault("the batch", off, 1e-5) if off > 1e-5 else None

    def of_gradients(self, found: Sequence[Tensor]) -> Fault | None:
        """What is wrong with the gradients of these workers, in pieces: the parameter that is most."""
        faults = []
        whole = _norm(self.exact)
        for name, piece, plain, exact in zip(self.names, found, self.plain, self.exact, strict=True):
            fair, size = _norm([plain.double() - exact]), max(_norm([exact]), 1e-3 * whole, 1e-12)
            if not math.isfinite(fair):  # the model is past comparing
                continue
            off, allowed = _norm([piece.double() - exact]) / size, self.floor + SLACK * fair / size
            if not off <= allowed:
                faults.append(Fault(f"the gradient of {name}", off, allowed))
        return max(faults, key=lambda fault: fault.off / fault.allowed, default=None)


def _apart(found: Tensor, exact: Tensor) -> float:
    """‖found − exact‖ / ‖exact‖."""
    off = _norm([found.double() - exact.double()]) / max(_norm([exact]), 1e-12)
    return off if math.isfinite(off) else math.inf


def _norm(tensors: Sequence[Tensor]) -> float:
    return math.hypot(*(float(torch.linalg.vector_norm(tensor.double())) for tensor in tensors))
