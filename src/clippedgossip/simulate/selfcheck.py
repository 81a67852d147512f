"""Whether a GPU did what it should: compilers have been wrong without a word."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from clippedgossip.tasks.gradients import Work, Workers

COMPARED = 8
"""Workers whose gradients are computed without a compiler as well."""
ROUNDING = {"float32": 0.01, "tf32": 0.03, "bfloat16": 0.05}
"""Of a parameter's gradient: as much as may always be off."""
FLIPPED = 10
"""How many times as much a few workers may be off: where one sample makes most of a gradient, a ReLU that
falls to the other side takes a large part of it along. On an H200 in bfloat16 one worker was off by 0.075,
its uncompiled gradient by 0.008; of 215 workers the furthest was off by 0.18 in this parameter."""
FEW = 2
"""Workers that say nothing of most."""
MIXING = 1e-5
"""Of a model: as much as mixing that was done again may be off."""
STRIDE = 7919
"""From round to round: a prime, so that all rows have their turn."""
SLACK = 2
"""How many times as far from uncompiled gradients of their precision compiled ones may be as those are from
the truth. Both round alike: of 215 workers with the CNN in bfloat16, half are less than 0.004 to 0.03 apart
and 0.005 to 0.07 from the truth."""


class Fault(NamedTuple):
    """Something of a round that is further off than rounding explains."""

    what: str
    off: float
    allowed: float

    def __str__(self) -> str:
        return f"{self.what}, off by {self.off:.2g} of the result, where rounding explains {self.allowed:.2g}"


class Proof:
    """Some workers' batch, gradients and losses of a round, uncompiled: as precise as the run and in float64.

    Each round has others of the workers. Each is looked at by itself: one that diverges must not hide others.
    """

    def __init__(self, work: Work, workers: Workers, models: Tensor, round: Tensor, precision: str) -> None:
        self.rows = rows_compared(len(models), int(round)).to(models.device)
        self.names = [*(f"the gradient of {name}" for name in work.task.layout.views(models[:1])), "the loss"]
        self.floor = ROUNDING[precision]
        mine, self.models = workers.some(self.rows), models[self.rows]
        self.x, self.y = work.draw(mine, round)
        gradients, losses = work.gradients(mine, self.models, self.x, self.y, round)
        self.plain = [*gradients, losses]
        precise = Work(work.task, torch.float64, work.poisons)
        gradients, losses = precise.gradients(mine, self.models, self.x, self.y, round)
        self.exact = [*gradients, losses]

    def of_batch(self, x: Tensor, y: Tensor) -> Fault | None:
        """What is wrong with these workers' batch."""
        wrong = max(_share_apart(x, self.x), _share_apart(y, self.y))
        return Fault("the batch", wrong, 0.0) if wrong else None

    def of_gradients(
        self, gradients: Sequence[Tensor], losses: Tensor, blur: Sequence[Tensor] | None = None
    ) -> Fault | None:
        """What is most wrong with these workers' gradients, in pieces, and losses. `blur`, in pieces too, is
        what the gradients may be off by for another reason."""
        sizes = [_norms(piece) for piece in self.exact]
        whole = torch.stack(sizes[:-1]).square().sum(0).sqrt()
        faults = []
        for place, found in enumerate([*gradients, losses]):
            exact, plain = self.exact[place], self.plain[place]
            size = torch.maximum(sizes[place], 1e-3 * whole).clamp_min(1e-9)
            off, fair = _norms(found.double() - plain.double()) / size, _norms(plain.double() - exact) / size
            flipped, unsure = FLIPPED * self.floor, SLACK * fair
            if found is losses:  # these do not jump
                flipped = self.floor
            elif blur is not None:
                unsure = unsure + _norms(blur[place]) / size
            faults.append(_most_wrong(self.names[place], off, self.floor + unsure, flipped + unsure))
        return max(filter(None, faults), key=lambda fault: fault.off / fault.allowed, default=None)

    def of_half_step(self, half: Tensor, momentum: Tensor, lr: float) -> Fault | None:
        """What is wrong with these workers' x½, which should be x − η m but for the rounding of both."""
        size = _norms(self.models) + lr * _norms(momentum)
        off = _norms(half.double() - (self.models.double() - lr * momentum.double())) / size.clamp_min(1e-9)
        allowed = torch.where(torch.isfinite(size), 4 * torch.finfo(half.dtype).eps, torch.nan)
        return _most_wrong("the half-step", off, allowed, allowed)


def same_models(what: str, found: Tensor, expected: Tensor) -> Fault | None:
    """What is wrong with models (n, d) that should be the expected ones; those past comparing are let be."""
    few = (torch.split(models, COMPARED) for models in (found, expected))  # float64 takes room
    pairs = list(zip(*few, strict=True))
    size = torch.cat([_norms(right) for _, right in pairs]).clamp_min(1e-9)
    off = torch.cat([_norms(one.double() - right.double()) for one, right in pairs]) / size
    allowed = torch.where(torch.isfinite(size), MIXING, torch.nan)
    return _most_wrong(what, off, allowed, allowed)


def _most_wrong(what: str, off: Tensor, allowed: Tensor, at_most: Tensor) -> Fault | None:
    """The worst of the workers if most of them, and more than a few, are off by more than is allowed, or any
    one by more than `at_most`. Those whose allowance is no number are past comparing."""
    known = torch.isfinite(allowed)
    wrong = ~(off <= allowed) & known
    bound = allowed if wrong.sum() > max(FEW, int(known.sum()) // 2) else at_most
    excess = torch.where(known, (off / bound).nan_to_num(torch.inf), 0)
    worst = int(excess.argmax())
    return Fault(what, float(off[worst]), float(bound[worst])) if excess[worst] > 1 else None


def rows_compared(n: int, round: int) -> Tensor:
    """Rows all over the stack, others in every round; at first the last one is among them."""
    count = min(n, COMPARED)
    return (n - 1 - torch.arange(count) * n // count - round * STRIDE) % n


def _share_apart(found: Tensor, exact: Tensor) -> float:
    """The share of entries that differ."""
    return float((~torch.isclose(found, exact, rtol=1e-5, atol=1e-6, equal_nan=True)).double().mean())


def _norms(tensor: Tensor) -> Tensor:
    """(n,) of each worker."""
    rows = tensor.double().reshape(len(tensor), -1)
    return rows.square().sum(1).sqrt()
