"""The workers' gradients and losses, as functions of tensors: one compilation serves all runs of a shape."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from clippedgossip import devices
from clippedgossip.randomness import Word, batch_indices, hash_bits, keep_mask, key
from clippedgossip.tasks import stacked_layers as layers
from clippedgossip.tasks.augment import crop_flip
from clippedgossip.tasks.poison import Poison
from clippedgossip.tasks.task import Task

Take = Callable[[int, Sequence[Tensor]], None]
"""(row of the worker, its gradient in pieces that lie one after the other in the vector)"""
Right = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(model, inputs, labels) -> how many it gets right"""


class Workers(NamedTuple):
    """Who trains on what, row by row, and which rows each poison spoils."""

    seeds: Tensor  # (n,)
    nodes: Tensor  # (n,)
    table: Tensor  # (n, most samples) rows of the training set
    sizes: Tensor  # (n,) how many of them are real
    train_x: Tensor
    train_y: Tensor
    spoiled: tuple[Tensor, ...] = ()

    @classmethod
    def of(cls, task: Task) -> "Workers":
        """Those of one task."""
        return cls(
            seeds=torch.full_like(task.nodes, task.seed),
            nodes=task.nodes,
            table=task.table,
            sizes=task.sizes,
            train_x=task.data.train_x,
            train_y=task.data.train_y,
            spoiled=() if task.poisoned is None else (task.poisoned,),
        )

    def some(self, rows: slice | Tensor) -> "Workers":
        """Those of some rows."""
        places = torch.arange(len(self.nodes), device=self.nodes.device)[rows]
        return self._replace(
            seeds=self.seeds[rows],
            nodes=self.nodes[rows],
            table=self.table[rows],
            sizes=self.sizes[rows],
            spoiled=tuple(torch.isin(places, which).nonzero()[:, 0] for which in self.spoiled),
        )


class Work:
    """A model, its loss and its data, for any workers."""

    def __init__(self, task: Task, dtype: torch.dtype, poisons: tuple[Poison, ...] = ()) -> None:
        self.task, self.dtype, self.poisons = task, dtype, poisons
        self.module, self.data = task.module, task.data
        self.known = layers.supported(task.module, task.data.shape)
        self.stacks = self.known and (task.device.type == "cuda" or not layers.has_convolutions(task.module))
        self.rates = [layer.p if isinstance(layer, nn.Dropout) else 0.0 for layer in task.module.children()]

    def draw(self, workers: Workers, round: Word, purpose: str | None = None) -> tuple[Tensor, Tensor]:
        """One round's inputs (n, batch, *shape), augmented, normalised, poisoned, and labels (n, batch).

        Another purpose than training draws another batch.
        """
        seeds = workers.seeds if purpose is None else hash_bits(workers.seeds, purpose)
        places = batch_indices(seeds, workers.nodes, round, workers.sizes, self.task.batch)
        rows = workers.table.gather(1, places)
        x = workers.train_x[rows]
        if self.task.augment:
            x = crop_flip(x, seeds[:, None], workers.nodes, round)
        x, y = self.data.normalise(x), workers.train_y[rows]
        for poison, which in zip(self.poisons, workers.spoiled, strict=True):
            if not len(which):
                continue
            bad_x, bad_y = poison(x[which], y[which], round)
            x, y = x.index_copy(0, which, bad_x), y.index_copy(0, which, bad_y)
        return x, y

    def gradients(
        self, workers: Workers, models: Tensor, x: Tensor, y: Tensor, round: Word
    ) -> tuple[list[Tensor], Tensor]:
        """g_i(x_i) of every worker on its batch of the round, in pieces (n, …) that lie side by side in the
        vector, and its losses (n,)."""
        if not self.stacks:
            found: dict[int, Sequence[Tensor]] = {}
            losses = self.one_by_one(workers, models, x, y, round, found.__setitem__)
            return [
                torch.stack(pieces) for pieces in zip(*map(found.get, range(len(x))), strict=True)
            ], losses
        # Gradients end at the cast: they are written out once, in the precision of the products.
        views = self.task.layout.views(models)
        casts = [view.detach().to(self.dtype) for view in views.values()]
        leaves = [cast.requires_grad_() for cast in casts]
        with torch.enable_grad():
            parameters = dict(zip(views, leaves, strict=True))
            losses = self._losses(self._stacked(parameters, x, self._masks(workers, round)), y)
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
    def accuracies(self, models: Tensor, right: Right | None = None, chunk: int = 5000) -> Tensor:
        """(m,) accuracy of models (m, d) on the test set; `right` is taken in place of our own."""
        if not (self.stacks and models.is_cuda):
            return self.task.evaluate(models).accuracy
        count = right or self.right
        found = torch.zeros(len(models), dtype=torch.float64, device=models.device)
        for inputs, labels in zip(
            torch.split(self.data.test_x, chunk), torch.split(self.data.test_y, chunk), strict=True
        ):
            x = self.data.normalise(inputs).to(self.dtype)
            for place, model in enumerate(models):
                found[place] += count(model, x, labels)
        return found / len(self.data.test_y)

    @torch.no_grad()
    def right(self, model: Tensor, x: Tensor, labels: Tensor) -> Tensor:
        """How many of the inputs the model (d,) gives their label."""
        outputs = self._outputs(self.task.layout.views(model.to(self.dtype)), x)
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

    def _masks(self, workers: Workers, round: Word, rows: slice = slice(None)) -> layers.Masks:
        """Dropout's draws: those of a worker are its own, whoever else is there."""

        def draw(place: int, shape: tuple[int, ...]) -> Tensor:
            return keep_mask(workers.seeds[rows], workers.nodes[rows], round, place, shape, self.rates[place])

        return draw

    @torch.no_grad()
    def one_by_one(
        self, workers: Workers, models: Tensor, x: Tensor, y: Tensor, round: Word, take: Take
    ) -> Tensor:
        """(n,) losses. `take` is handed each worker's gradient while it is still at hand."""

        def one(i: int) -> Tensor:
            parameters = _leaves(self.task.layout.views(models[i]))
            with torch.enable_grad():
                loss = self.task.loss(self._forward(workers, i, parameters, x[i], round), y[i])
            with torch.no_grad():
                take(i, torch.autograd.grad(loss, list(parameters.values())))
            return loss.detach()

        return torch.stack(list(self._each(one, range(len(models)))))

    @property
    def _each(self) -> Callable[[Callable[[int], Tensor], range], Iterable[Tensor]]:
        # Other modules have state that workers would share: parameters swapped in, draws from one generator.
        return devices.each if self.task.device.type == "cpu" and self.known else map

    def _outputs(self, parameters: layers.Parameters, x: Tensor) -> Tensor:
        if self.known and isinstance(self.module, nn.Sequential):
            return layers.forward_one(self.module, parameters, x, None)
        outputs: Tensor = functional_call(self.module, dict(parameters), (x,))
        return outputs

    def _forward(
        self, workers: Workers, row: int, parameters: layers.Parameters, x: Tensor, round: Word
    ) -> Tensor:
        if self.known and isinstance(self.module, nn.Sequential):
            draw = self._masks(workers, round, slice(row, row + 1))
            return layers.forward_one(self.module, parameters, x, lambda place, shape: draw(place, shape)[0])
        with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
            seed = key(int(workers.seeds[row]), "forward", int(workers.nodes[row]), int(round))
            torch.default_generator.manual_seed(
                seed
            )  # torch.manual_seed remembers each call, for other devices
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
