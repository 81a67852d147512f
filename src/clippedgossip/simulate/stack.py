"""The workers of one or several runs, stacked."""

import warnings
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from clippedgossip.devices import CAPTURE, compiled, distrust
from clippedgossip.errors import MiscompiledError, RunError
from clippedgossip.randomness import Word
from clippedgossip.simulate.selfcheck import Fault, Proof
from clippedgossip.step import half_step
from clippedgossip.tasks import Task
from clippedgossip.tasks.gradients import Work, Workers

DTYPES = {"float32": torch.float32, "tf32": torch.float32, "bfloat16": torch.bfloat16}

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

    def prove(self, models: Tensor, round: Tensor) -> Proof | None:
        """What a round should be, for some of the workers; None where nothing is compiled, or there is no
        room."""
        if not self._compiles:
            return None
        try:
            return Proof(self.work, self.workers, models, round, self.precision)
        except torch.OutOfMemoryError:
            return None

    @torch.no_grad()
    def rehearse(self, models: Tensor) -> None:
        """Compile, compare with what is not compiled, and if it differs, do otherwise. To be done on the
        models that runs start from, so that a run that goes on does so as before."""
        start = torch.zeros((), dtype=torch.int64, device=models.device)
        proof = self.prove(models, start)
        while proof is not None:
            name, rows = "draw", proof.rows
            x, y = self._cached(name, self.work.draw)(self.workers, start)
            fault = proof.of_batch(x[rows], y[rows])
            if fault is None:
                name = "gradients"
                pieces, losses = self._cached(name, self.work.gradients)(self.workers, models, x, y, start)
                fault = proof.of_gradients([piece[rows] for piece in pieces], losses[rows])
            if fault is None:
                return
            wrong, done = self._distrust(name, fault)
            warnings.warn(f"{wrong}; it is {done}", RuntimeWarning, stacklevel=2)

    def inspect(self, proof: Proof, gradients: Tensor, blur: Tensor, losses: Tensor, round: Tensor) -> None:
        """Raise if the gradients (compared, d), known but for `blur`, and the losses (compared,) of a round
        were not what they should be."""
        pieces, unsure = (list(self.task.layout.views(vectors).values()) for vectors in (gradients, blur))
        fault = proof.of_gradients(pieces, losses, unsure)
        if fault is None:
            return
        x, y = self._cached("draw", self.work.draw)(self.workers, round)
        wrong = proof.of_batch(x[proof.rows], y[proof.rows])
        name = "gradients" if wrong is None else "draw"
        said, done = self._distrust(name, wrong or fault)
        raise MiscompiledError(f"{said} in round {int(round) + 1}\nstarted again, the run has it {done}")

    def _distrust(self, name: str, fault: Fault) -> tuple[str, str]:
        """What is wrong, and how it is done from now on. What is wrong uncompiled too may be so captured."""
        done = distrust(self._kind(name)) or distrust(CAPTURE)
        if done is None:
            raise RunError(
                f"uncompiled too, PyTorch {torch.__version__} has this GPU compute wrongly {fault}\n"
                "take --device cpu, or another version of PyTorch"
            )
        wrong = f"PyTorch {torch.__version__} compiles `{name}` wrongly for this GPU and these sizes"
        return f"{wrong}: {fault}", done

    @property
    def _compiles(self) -> bool:
        return self.task.device.type == "cuda" and self.work.stacks

    def _cached(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """On a GPU, the compiled function, shared by all runs of this shape in the process."""
        return compiled(self._kind(name), function) if self._compiles else function

    def _kind(self, name: str) -> tuple[object, ...]:
        poisons = repr(self.work.poisons) if name == "draw" else None
        return (name, self.precision, poisons, *_shape(self.task))


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
