"""The workers that train, stacked: their batches, gradients, losses and accuracies."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

import clippedgossip.devices as devices
from clippedgossip.errors import RunError
from clippedgossip.randomness import Word, batch_indices, hash_bits, keep_mask, key
from clippedgossip.tasks import stacked_layers as layers
from clippedgossip.tasks.augment import crop_flip
from clippedgossip.tasks.task import Task

DTYPES = {"float32": torch.float32, "tf32": torch.float32, "bfloat16": torch.bfloat16}
"""Of the gradients' products, for each `training.precision`."""
Take = Callable[[int, Sequence[Tensor]], None]
"""(row of the worker, its gradient in pieces that lie side by side in the vector)"""


class WorkerShares(NamedTuple):
    """What each worker draws its batches from, one row for each worker.

    These are tensors only: a compiled function takes them as arguments and so serves all runs of a shape.
    """

    seeds: Tensor  # (n,)
    nodes: Tensor  # (n,)
    table: Tensor  # (n, largest share) rows of the training set
    sizes: Tensor  # (n,) how many of them are real; the rest is padding
    train_x: Tensor
    train_y: Tensor
    poisoned: tuple[Tensor, ...] = ()  # for each poison, the rows of the workers that it poisons

    def some(self, rows: slice | Tensor) -> "WorkerShares":
        """The shares of some of the workers."""
        places = torch.arange(len(self.nodes), device=self.nodes.device)[rows]
        return self._replace(
            seeds=self.seeds[rows],
            nodes=self.nodes[rows],
            table=self.table[rows],
            sizes=self.sizes[rows],
            poisoned=tuple(torch.isin(places, which).nonzero()[:, 0] for which in self.poisoned),
        )


class Workers:
    """The workers of one task, or of several tasks that share data, model, loss and batch.

    `draw` and `gradients` take the shares to work on: those of all workers (`workers.shares`) or of some.
    """

    def __init__(self, tasks: Sequence[Task], precision: str = "float32") -> None:
        first = tasks[0]
        if not all(_shape(task) == _shape(first) and _same_data(task, first) for task in tasks[1:]):
            raise RunError(
                "runs in one stack must have the same data, model, loss, batch and augmentation\n"
                "run them one by one"
            )
        self.task, self.module, self.data = first, first.module, first.data
        self.precision, self.dtype = precision, DTYPES[precision]
        ends = [0, *accumulate(len(task.nodes) for task in tasks)]
        self.parts = [slice(*part) for part in pairwise(ends)]
        """The rows of each task."""
        poisoned = [(task, part.start) for task, part in zip(tasks, self.parts, strict=True) if task.poison]
        self.poisons = tuple(task.poison for task, _ in poisoned if task.poison)
        longest = max(task.table.shape[1] for task in tasks)
        self.shares = WorkerShares(
            seeds=torch.cat([torch.full_like(task.nodes, task.seed) for task in tasks]),
            nodes=torch.cat([task.nodes for task in tasks]),
            table=torch.cat([functional.pad(t.table, (0, longest - t.table.shape[1])) for t in tasks]),
            sizes=torch.cat([task.sizes for task in tasks]),
            train_x=first.data.train_x,
            train_y=first.data.train_y,
            poisoned=tuple(task.poisoned + start for task, start in poisoned if task.poisoned is not None),
        )
        self.known = layers.supported(first.module, first.data.shape)
        self.stacks = self.known and (
            first.device.type == "cuda" or not layers.has_convolutions(first.module)
        )
        self.rates = [layer.p if isinstance(layer, nn.Dropout) else 0.0 for layer in first.module.children()]

    def __len__(self) -> int:
        return len(self.shares.nodes)

    @property
    def activation_bytes(self) -> int:
        """What one sample's forward pass leaves for the backward pass; 0 for unknown modules."""
        if not (isinstance(self.module, nn.Sequential) and layers.supported(self.module)):
            return 0
        return layers.activation_elements(self.module, self.data.shape) * self.dtype.itemsize

    @property
    def compiles(self) -> bool:
        """Whether `compiled` compiles: on a GPU, for layers that this package knows."""
        return self.task.device.type == "cuda" and self.stacks

    def compiled(self, name: str) -> Callable[..., Any]:
        """The method of this name; on a GPU compiled, once for all runs of this shape in the process."""
        function: Callable[..., Any] = getattr(self, name)
        return devices.compiled(self.kind(name), function) if self.compiles else function

    def kind(self, name: str) -> tuple[object, ...]:
        """What two compiled methods must have in common to be one."""
        return (name, self.precision, repr(self.poisons) if name == "draw" else None, *_shape(self.task))

    def in_float64(self) -> "Workers":
        """The same workers, with products in float64."""
        exact = copy(self)
        exact.dtype = torch.float64
        return exact

    def draw(self, shares: WorkerShares, round: Word, purpose: str | None = None) -> tuple[Tensor, Tensor]:
        """One round's inputs (n, batch, *shape), augmented, normalised, poisoned, and labels (n, batch).

        Every (seed, node, round, purpose) draws a batch of its own, the same in every engine and peer. No
        purpose means training.
        """
        seeds = shares.seeds if purpose is None else hash_bits(shares.seeds, purpose)
        places = batch_indices(seeds, shares.nodes, round, shares.sizes, self.task.batch)
        rows = shares.table.gather(1, places)
        x = shares.train_x[rows]
        if self.task.augment:
            x = crop_flip(x, seeds[:, None], shares.nodes, round)
        x, y = self.data.normalise(x), shares.train_y[rows]
        for poison, which in zip(self.poisons, shares.poisoned, strict=True):
            if not len(which):
                continue
            bad_x, bad_y = poison(x[which], y[which], round)
            x, y = x.index_copy(0, which, bad_x), y.index_copy(0, which, bad_y)
        return x, y

    def gradients(
        self, shares: WorkerShares, models: Tensor, x: Tensor, y: Tensor, round: Word
    ) -> tuple[list[Tensor], Tensor]:
        """g_i(x_i) of every worker on its batch of the round, in pieces (n, …) that lie side by side in the
        vector, and its losses (n,)."""
        if not self.stacks:
            found: dict[int, Sequence[Tensor]] = {}
            losses = self.one_by_one(shares, models, x, y, round, found.__setitem__)
            return [
                torch.stack(pieces) for pieces in zip(*map(found.get, range(len(x))), strict=True)
            ], losses
        # Gradients end at the cast: they are written out once, in the precision of the products.
        views = self.task.layout.views(models)
        casts = [view.detach().to(self.dtype) for view in views.values()]
        leaves = [cast.requires_grad_() for cast in casts]
        with torch.enable_grad():
            parameters = dict(zip(views, leaves, strict=True))
            losses = self._losses(self._stacked(parameters, x, self._masks(shares, round)), y)
            gradients = torch.autograd.grad(losses.sum(), leaves)
        return list(gradients), losses.detach()

    @torch.no_grad()
    def losses_of(self, models: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """(m,) loss of each of the models (m, d) on inputs (m, batch, *shape), without dropout."""
        if self.stacks:
            return self._losses(self._stacked(self.task.layout.views(models), x, None), y)

        def one(i: int) -> Tensor:
            parameters = self.task.layout.views(models[i])
            with torch.no_grad():
                return self.task.loss(self._outputs(parameters, x[i]), y[i])

        with _evaluating(self.module):
            return torch.stack(list(self._each(one, range(len(models)))))

    @torch.no_grad()
    def accuracies(self, models: Tensor) -> Tensor:
        """(m,) accuracy of models (m, d) on the whole test set, without dropout."""
        on_gpu = self.stacks and models.is_cuda
        correct = self.compiled("correct") if on_gpu else self._correct_by_module
        chunk = 5000 if on_gpu else 1000
        found = torch.zeros(len(models), dtype=torch.float64, device=models.device)
        with _evaluating(self.module):
            for inputs, labels in zip(
                torch.split(self.data.test_x, chunk), torch.split(self.data.test_y, chunk), strict=True
            ):
                x = self.data.normalise(inputs)
                x = x.to(self.dtype) if on_gpu else x
                for place, model in enumerate(models):
                    found[place] += correct(model, x, labels)
        return found / len(self.data.test_y)

    @torch.no_grad()
    def correct(self, model: Tensor, x: Tensor, labels: Tensor) -> Tensor:
        """For how many of the inputs the model (d,) gives the label."""
        outputs = self._outputs(self.task.layout.views(model.to(self.dtype)), x)
        return (outputs.argmax(-1) == labels).sum()

    def _correct_by_module(self, model: Tensor, x: Tensor, labels: Tensor) -> Tensor:
        outputs: Tensor = functional_call(self.module, self.task.layout.views(model), (x,))
        return (outputs.argmax(-1) == labels).sum()

    def _stacked(self, parameters: layers.Parameters, x: Tensor, masks: layers.Masks | None) -> Tensor:
        assert isinstance(self.module, nn.Sequential)
        return layers.forward_stacked(self.module, parameters, x, masks, self.dtype)

    def _losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """(n,) each worker's mean loss."""
        loss = self.task.loss
        if loss is functional.nll_loss:
            each = functional.nll_loss(outputs.flatten(0, 1), y.flatten(), reduction="none")
        elif loss is functional.cross_entropy:
            each = functional.cross_entropy(outputs.flatten(0, 1), y.flatten(), reduction="none")
        else:
            return torch.stack([loss(o, t) for o, t in zip(outputs.float(), y, strict=True)])
        return each.view(y.shape).mean(1)

    def _masks(self, shares: WorkerShares, round: Word, rows: slice = slice(None)) -> layers.Masks:
        """Dropout's draws. A worker's draws are its own: they do not depend on the other workers."""

        def draw(place: int, shape: tuple[int, ...]) -> Tensor:
            return keep_mask(shares.seeds[rows], shares.nodes[rows], round, place, shape, self.rates[place])

        return draw

    @torch.no_grad()
    def one_by_one(
        self, shares: WorkerShares, models: Tensor, x: Tensor, y: Tensor, round: Word, take: Take
    ) -> Tensor:
        """(n,) losses. Calls `take` with each worker's gradient, so that one is held at a time."""

        def one(i: int) -> Tensor:
            parameters = _leaves(self.task.layout.views(models[i]))
            with torch.enable_grad():
                loss = self.task.loss(self._forward(shares, i, parameters, x[i], round), y[i])
            with torch.no_grad():
                take(i, torch.autograd.grad(loss, list(parameters.values())))
            return loss.detach()

        return torch.stack(list(self._each(one, range(len(models)))))

    @property
    def _each(self) -> Callable[[Callable[[int], Tensor], range], Iterable[Tensor]]:
        # Not for other modules: their threads would share state, such as swapped-in parameters.
        return devices.each if self.task.device.type == "cpu" and self.known else map

    def _outputs(self, parameters: layers.Parameters, x: Tensor) -> Tensor:
        if self.known and isinstance(self.module, nn.Sequential):
            return layers.forward_one(self.module, parameters, x, None)
        outputs: Tensor = functional_call(self.module, dict(parameters), (x,))
        return outputs

    def _forward(
        self, shares: WorkerShares, row: int, parameters: layers.Parameters, x: Tensor, round: Word
    ) -> Tensor:
        if self.known and isinstance(self.module, nn.Sequential):
            draw = self._masks(shares, round, slice(row, row + 1))
            return layers.forward_one(self.module, parameters, x, lambda place, shape: draw(place, shape)[0])
        with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
            seed = key(int(shares.seeds[row]), "forward", int(shares.nodes[row]), int(round))
            # Not torch.manual_seed: it keeps a record of each call, for devices not yet in use.
            torch.default_generator.manual_seed(seed)
            if x.is_cuda:
                torch.cuda.manual_seed(seed)
            outputs: Tensor = functional_call(self.module, dict(parameters), (x,))
            return outputs


def _leaves(views: layers.Parameters) -> dict[str, Tensor]:
    return {name: view.detach().requires_grad_() for name, view in views.items()}


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    was_training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(was_training)


def _same_data(one: Task, other: Task) -> bool:
    a, b = one.data, other.data
    return a is b or (torch.equal(a.train_y, b.train_y) and torch.equal(a.train_x, b.train_x))


def _shape(task: Task) -> tuple[object, ...]:
    """What runs must share to be stacked, and compiled once; of the data, its name and size."""
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
