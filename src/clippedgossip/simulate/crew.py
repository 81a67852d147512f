"""The workers of one or several runs, stacked: their data, batches and gradients."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from clippedgossip.errors import RunError
from clippedgossip.randomness import Word, batch_indices, hash_bits, keep_mask, key
from clippedgossip.simulate import layers
from clippedgossip.tasks import Task, crop_flip

DTYPES = {"float32": torch.float32, "tf32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, eq=False, kw_only=True)
class Crew:
    """All workers that train, run after run; row i is worker `nodes[i]` of the run with seed `seeds[i]`."""

    task: Task  # of the first run: the data, module and loss, which are the same in all
    seeds: Tensor  # (n,)
    nodes: Tensor  # (n,)
    table: Tensor  # (n, most samples)
    sizes: Tensor  # (n,)
    poisons: tuple[tuple[Task, Tensor], ...]  # (task with the poison, rows it applies to)
    dtype: torch.dtype = torch.float32

    @staticmethod
    def of(tasks: Sequence[Task], precision: str) -> "Crew":
        first = tasks[0]
        for task in tasks[1:]:
            if _shape(task) != _shape(first):
                raise RunError("runs that go together must share data, model, loss, batch and augmentation")
        longest = max(task.table.shape[1] for task in tasks)
        poisons, start = [], 0
        for task in tasks:
            if task.poison is not None and task.poisoned is not None:
                poisons.append((task, task.poisoned + start))
            start += len(task.nodes)
        return Crew(
            task=first,
            seeds=torch.cat([torch.full_like(task.nodes, task.seed) for task in tasks]),
            nodes=torch.cat([task.nodes for task in tasks]),
            table=torch.cat([functional.pad(t.table, (0, longest - t.table.shape[1])) for t in tasks]),
            sizes=torch.cat([task.sizes for task in tasks]),
            poisons=tuple(poisons),
            dtype=DTYPES[precision],
        )

    def draw(self, round: Word, purpose: str | None = None) -> tuple[Tensor, Tensor]:
        """One round's inputs (n, batch, *shape), augmented, normalised, poisoned, and labels (n, batch).

        Another purpose than training draws another batch.
        """
        task, data = self.task, self.task.data
        seeds = self.seeds if purpose is None else hash_bits(self.seeds, purpose)
        rows = self.table.gather(1, batch_indices(seeds, self.nodes, round, self.sizes, task.batch))
        x = data.train_x[rows]
        if task.augment:
            x = crop_flip(x, seeds[:, None], self.nodes, round)
        x, y = data.normalise(x), data.train_y[rows]
        for poisoner, which in self.poisons:
            assert poisoner.poison is not None
            bad_x, bad_y = poisoner.poison(x[which], y[which], round)
            x, y = x.index_copy(0, which, bad_x), y.index_copy(0, which, bad_y)
        return x, y

    def gradients(self, models: Tensor, round: Word) -> tuple[Tensor, Tensor]:
        """(n, d) g_i(x_i) of every worker on its batch of the round, and its losses (n,)."""
        x, y = self.draw(round)
        if not self._stacks(models.device):
            return self._one_by_one(models, x, y, round)
        parameters = _leaves(self.task.layout.views(models))
        with torch.enable_grad():
            losses = self._losses(self._stacked(parameters, x, self._masks(round)), y)
            gradients = torch.autograd.grad(losses.sum(), list(parameters.values()))
        return torch.cat([gradient.flatten(1) for gradient in gradients], 1), losses.detach()

    @torch.no_grad()
    def losses_of(self, models: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """(m,) loss of each of the models (m, d) on inputs (m, batch, *shape), without dropout."""
        if self._stacks(models.device):
            return self._losses(self._stacked(self.task.layout.views(models), x, None), y)
        with _evaluating(self.task.module):
            return torch.stack(
                [
                    self.task.loss(functional_call(self.task.module, self.task.layout.views(model), (a,)), b)
                    for model, a, b in zip(models, x, y, strict=True)
                ]
            )

    @torch.no_grad()
    def accuracies(self, models: Tensor, chunk: int = 1000) -> tuple[Tensor, Tensor]:
        """(m,) accuracy and mean loss of models (m, d) on the test set."""
        if not (self._stacks(models.device) and models.is_cuda):
            score = self.task.evaluate(models, chunk)
            return score.accuracy, score.loss
        data, m = self.task.data, len(models)
        right = torch.zeros(m, dtype=torch.float64, device=models.device)
        loss = torch.zeros_like(right)
        parameters = self.task.layout.views(models)
        for inputs, labels in zip(
            torch.split(data.test_x, chunk), torch.split(data.test_y, chunk), strict=True
        ):
            x = data.normalise(inputs).expand(m, *inputs.shape)
            outputs = self._stacked(parameters, x, None)
            right += (outputs.argmax(-1) == labels).sum(1)
            loss += self._losses(outputs, labels.expand(m, -1)).double() * len(labels)
        return right / len(data.test_y), loss / len(data.test_y)

    def _stacks(self, device: torch.device) -> bool:
        """Whether all workers go through the model at once: wherever that is known to be faster."""
        module = self.task.module
        return layers.supported(module) and (device.type == "cuda" or not layers.has_convolutions(module))

    def _stacked(self, parameters: layers.Parameters, x: Tensor, masks: layers.Masks | None) -> Tensor:
        assert isinstance(self.task.module, nn.Sequential)
        return layers.forward_stacked(self.task.module, parameters, x, masks, self.dtype)

    def _losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """(n,) each worker's mean loss."""
        if self.task.loss is not functional.nll_loss and self.task.loss is not functional.cross_entropy:
            return torch.stack([self.task.loss(o, t) for o, t in zip(outputs, y, strict=True)])
        each = self.task.loss(outputs.flatten(0, 1), y.flatten(), reduction="none")
        return each.view(y.shape).mean(1)

    def _masks(self, round: Word, rows: slice = slice(None)) -> layers.Masks:
        """Dropout's draws: those of a worker are its own, whoever else is there."""
        rates = [layer.p if isinstance(layer, nn.Dropout) else 0.0 for layer in self.task.module.children()]

        def draw(place: int, shape: tuple[int, ...]) -> Tensor:
            return keep_mask(self.seeds[rows], self.nodes[rows], round, place, shape, rates[place])

        return draw

    def _one_by_one(self, models: Tensor, x: Tensor, y: Tensor, round: Word) -> tuple[Tensor, Tensor]:
        gradients = torch.empty_like(models)
        losses = []
        for i, model in enumerate(models):
            parameters = _leaves(self.task.layout.views(model))
            with torch.enable_grad():
                loss = self.task.loss(self._forward(i, parameters, x[i], round), y[i])
            losses.append(loss.detach())
            views = self.task.layout.views(gradients[i]).values()
            for view, gradient in zip(
                views, torch.autograd.grad(loss, list(parameters.values())), strict=True
            ):
                view.copy_(gradient)
        return gradients, torch.stack(losses)

    def _forward(self, row: int, parameters: layers.Parameters, x: Tensor, round: Word) -> Tensor:
        module = self.task.module
        if layers.supported(module):
            assert isinstance(module, nn.Sequential)
            draw = self._masks(round, slice(row, row + 1))
            return layers.forward_one(module, parameters, x, lambda place, shape: draw(place, shape)[0])
        devices = [x.device] if x.is_cuda else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(key(int(self.seeds[row]), "forward", int(self.nodes[row]), int(round)))
            outputs: Tensor = functional_call(module, dict(parameters), (x,))
            return outputs


def _shape(task: Task) -> tuple[object, ...]:
    return (
        task.data.name,
        task.data.train_x.shape,
        task.layout,
        task.loss,
        task.batch,
        task.augment,
        [type(layer) for layer in task.module.modules()],
    )


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
