"""The workers of one or several runs, stacked."""

import math
import warnings
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from clippedgossip.compiling import compiled
from clippedgossip.errors import RunError
from clippedgossip.randomness import Word
from clippedgossip.step import half_step
from clippedgossip.tasks import Task
from clippedgossip.tasks.work import Work, Workers

DTYPES = {"float32": torch.float32, "tf32": torch.float32, "bfloat16": torch.bfloat16}
ROUNDING = {"float32": 1e-3, "tf32": 0.05, "bfloat16": 0.1}
"""Of a gradient: as much as a deep network makes of the rounding of single products."""
COMPARED = 8
"""Workers whose gradients are computed without a compiler as well, for comparison."""

Step = Callable[..., None]


class Crew:
    """All workers that train, run after run. The runs share data, model and loss."""

    def __init__(self, tasks: Sequence[Task], precision: str) -> None:
        first = tasks[0]
        if not all(_shape(task) == _shape(first) and _same_data(task, first) for task in tasks[1:]):
            raise RunError("runs that go together must share data, model, loss, batch and augmentation")
        self.task = first
        ends = [0, *accumulate(len(task.nodes) for task in tasks)]
        self.parts = [slice(*part) for part in pairwise(ends)]  # of each run
        spoilt = [(task, part.start) for task, part in zip(tasks, self.parts, strict=True) if task.poison]
        self.work = Work(first, DTYPES[precision], tuple(task.poison for task, _ in spoilt if task.poison))
        longest = max(task.table.shape[1] for task in tasks)
        self.workers = Workers(
            seeds=torch.cat([torch.full_like(task.nodes, task.seed) for task in tasks]),
            nodes=torch.cat([task.nodes for task in tasks]),
            table=torch.cat([functional.pad(t.table, (0, longest - t.table.shape[1])) for t in tasks]),
            sizes=torch.cat([task.sizes for task in tasks]),
            train_x=first.data.train_x,
            train_y=first.data.train_y,
            spoiled=tuple(task.poisoned + start for task, start in spoilt if task.poisoned is not None),
        )
        self.precision = precision
        self._miscompiled: set[str] = set()

    def __len__(self) -> int:
        return len(self.workers.nodes)

    def draw(self, round: Word, purpose: str | None = None) -> tuple[Tensor, Tensor]:
        return self.work.draw(self.workers, round, purpose)

    def losses_of(self, models: Tensor, x: Tensor, y: Tensor) -> Tensor:
        losses: Tensor = self._cached("losses_of", self.work.losses_of)(models, x, y)
        return losses

    def accuracies(self, models: Tensor) -> Tensor:
        return self.work.accuracies(models, self._cached("right", self.work.right))

    def local_step(self) -> Step:
        """(models, momentum, half, losses, round, lr, keep, gain) -> None: Algorithm 1 up to the exchange,
        written into momentum, half and losses."""
        work, workers = self.work, self.workers
        draw = self._cached("draw", work.draw)
        differentiate = self._cached("gradients", work.gradients)

        def local_step(
            models: Tensor,
            momentum: Tensor,
            half: Tensor,
            losses: Tensor,
            round: Tensor,
            lr: Tensor,
            keep: Tensor,
            gain: Tensor,
        ) -> None:
            # Drawn apart: a compiler that sees both draws each image anew for every pixel that uses it.
            x, y = draw(workers, round)
            if work.stacks:
                gradients, found = differentiate(workers, models, x, y, round)
                half_step(models, momentum, half, gradients, (keep, gain), lr)
                losses.copy_(found)
                return

            def step(i: int, gradient: Sequence[Tensor]) -> None:
                row, pieces = slice(i, i + 1), [piece[None] for piece in gradient]
                half_step(models[row], momentum[row], half[row], pieces, (keep, gain), lr)

            losses.copy_(work.one_by_one(workers, models, x, y, round, step))

        return local_step

    @torch.no_grad()
    def rehearse(self, models: Tensor) -> None:
        """Compare what is compiled with what is not, for these workers: compilers have been wrong without a
        word. To be done on the models that runs start from, so that a run that goes on does so as before."""
        if not self._compiles:
            return
        work, workers = self.work, self.workers
        start = torch.zeros((), dtype=torch.int64, device=models.device)
        some = slice(None, None, -(-len(self) // COMPARED))
        exact, found = work.draw(workers, start), self._cached("draw", work.draw)(workers, start)
        self._compare("draw", [[part[some]] for part in found], [[part[some]] for part in exact])
        # Laid out as in a round, or gradients would be compiled again for it.
        x, y = exact if "draw" in self._miscompiled else found
        pieces, losses = self._cached("gradients", work.gradients)(workers, models, x, y, start)
        try:
            right = work.gradients(workers.some(some), models[some], x[some], y[some], start)
        except torch.OutOfMemoryError:  # there is room for the run alone
            return
        self._compare(
            "gradients", [[piece[some] for piece in pieces], [losses[some]]], [right[0], [right[1]]]
        )

    def _compare(
        self, name: str, found: Sequence[Sequence[Tensor]], exact: Sequence[Sequence[Tensor]]
    ) -> None:
        error = max(map(relative_error, found, exact))
        if error > ROUNDING[self.precision]:
            self._miscompiled.add(name)
            warnings.warn(
                f"PyTorch {torch.__version__} compiles `{name}` wrongly for this GPU and these sizes: off by "
                f"{error:.2g} of the result, where rounding explains {ROUNDING[self.precision]:g}. It runs "
                "uncompiled: right, and slower",
                RuntimeWarning,
                stacklevel=2,
            )

    @property
    def _compiles(self) -> bool:
        return self.task.device.type == "cuda" and self.work.stacks

    def _cached(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """On a GPU, the compiled function, shared by all runs of this shape in the process."""
        if not self._compiles or name in self._miscompiled:
            return function
        poisons = repr(self.work.poisons) if name == "draw" else None
        return compiled((name, self.precision, poisons, *_shape(self.task)), function)


def relative_error(found: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """‖found − exact‖ / ‖exact‖ over all the tensors; 0 where not even the exact ones are finite."""
    differences = [a.double() - b.double() for a, b in zip(found, exact, strict=True)]
    apart, size = (
        math.hypot(*(float(torch.linalg.vector_norm(tensor.double())) for tensor in tensors))
        for tensors in (differences, exact)
    )
    if not math.isfinite(size):
        return 0.0
    return apart / max(size, 1e-30) if math.isfinite(apart) else math.inf


def _same_data(one: Task, other: Task) -> bool:
    a, b = one.data, other.data
    return a is b or (torch.equal(a.train_y, b.train_y) and torch.equal(a.train_x, b.train_x))


def _shape(task: Task) -> tuple[object, ...]:
    data = task.data
    return (
        data.name,
        tuple(data.train_x.shape),
        task.layout,
        task.loss,
        task.batch,
        task.augment,
        repr(task.module),
    )
