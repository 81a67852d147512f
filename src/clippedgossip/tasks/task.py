"""A task: the data, who holds what, the model and its loss, laid out for an engine."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from clippedgossip.errors import DataError, unknown_name
from clippedgossip.randomness import Word, batch_indices
from clippedgossip.tasks.augment import crop_flip
from clippedgossip.tasks.datasets import Data, DataSet, moved_tensors
from clippedgossip.tasks.models import build
from clippedgossip.tasks.module_checks import Loss, check_module, checked_shares
from clippedgossip.tasks.parameters import Layout, flatten
from clippedgossip.tasks.poison import Poison

LOSSES: dict[str, Loss] = {"nll": functional.nll_loss, "cross-entropy": functional.cross_entropy}


@dataclass(frozen=True, kw_only=True)
class Score:
    """Mean loss and accuracy on the test set, one entry per evaluated model."""

    loss: Tensor
    accuracy: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """What an engine trains on. Tensors share one device; `to` moves them.

    `table[i, :sizes[i]]` are the rows of `data.train_*` that node `nodes[i]` holds; the rest is padding.
    """

    data: DataSet
    nodes: Tensor
    table: Tensor
    sizes: Tensor
    module: nn.Module
    layout: Layout
    loss: Loss
    batch: int
    seed: int
    augment: bool = False
    poison: Poison | None = None
    poisoned: Tensor | None = None
    """Places in `nodes` of those whose batches are poisoned."""

    @property
    def device(self) -> torch.device:
        return self.table.device

    def to(self, device: torch.device | str) -> "Task":
        """The same task on another device; the module is copied, this one stays where it is."""
        if torch.device(device) == self.device:
            return self
        moved = moved_tensors(self, device)
        module = copy.deepcopy(self.module).to(device)
        return replace(self, data=self.data.to(device), module=module, **moved)

    def initial(self) -> Tensor:
        """The starting point x⁰ (d,), one for all nodes."""
        return flatten(self.module)

    def rows(self, round: Word) -> Tensor:
        """Rows of the training set in each node's batch: (n, batch), the same in every engine and peer."""
        return self.table.gather(1, batch_indices(self.seed, self.nodes, round, self.sizes, self.batch))

    def draw(self, round: Word) -> tuple[Tensor, Tensor]:
        """One round's inputs (n, batch, *shape), augmented, normalised, poisoned, and labels (n, batch)."""
        rows = self.rows(round)
        x = self.data.train_x[rows]
        if self.augment:
            x = crop_flip(x, self.seed, self.nodes, round)
        x, y = self.data.normalise(x), self.data.train_y[rows]
        if self.poison is None or self.poisoned is None:
            return x, y
        bad_x, bad_y = self.poison(x[self.poisoned], y[self.poisoned], round)
        return x.index_copy(0, self.poisoned, bad_x), y.index_copy(0, self.poisoned, bad_y)

    @torch.no_grad()
    def evaluate(self, models: Tensor, chunk: int = 1000) -> Score:
        """Loss and accuracy of models (k, d) on the whole test set, without dropout."""
        was_training = self.module.training
        self.module.eval()
        try:
            scores = [self._score(model, chunk) for model in models]
        finally:
            self.module.train(was_training)
        return Score(
            loss=torch.stack([loss for loss, _ in scores]),
            accuracy=torch.stack([accuracy for _, accuracy in scores]),
        )

    def _score(self, model: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
        parameters = self.layout.views(model)
        count = len(self.data.test_y)
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        right = torch.zeros((), dtype=torch.long, device=self.device)
        for x, y in zip(
            torch.split(self.data.test_x, chunk), torch.split(self.data.test_y, chunk), strict=True
        ):
            outputs = functional_call(self.module, parameters, (self.data.normalise(x),))
            loss += self.loss(outputs, y).double() * len(y)
            right += (outputs.argmax(-1) == y).sum()
        return loss / count, right.double() / count


def make_task(
    data: DataSet,
    shares: Sequence[Data | Sequence[int]],
    model: str | nn.Module,
    *,
    seed: int,
    batch: int = 32,
    loss: str | Loss | None = None,
    nodes: Sequence[int] | None = None,
    augment: bool = False,
    poison: Poison | None = None,
    poisoned: Sequence[int] = (),
) -> Task:
    """Gather a task. `shares[i]` are the training rows of node `nodes[i]` (i itself, if not said).

    A module of the user's own is taken with its present parameters as x⁰; its loss is cross-entropy unless
    said. `poisoned` names the nodes whose batches go through `poison`.
    """
    if batch < 1:
        raise DataError(f"batch is {batch}; it must be at least 1")
    if augment and len(data.shape) != 3:
        raise DataError(
            f"augment crops and flips images (channels, height, width); these inputs have shape {data.shape}"
        )
    measure = _find_loss(loss or ("nll" if model == "cnn" else "cross-entropy"))
    module = build(model, data.shape, data.classes, seed=seed) if isinstance(model, str) else model
    if module is model or loss is not None:
        check_module(module, data, measure)
    ids = list(range(len(shares))) if nodes is None else list(nodes)
    rows = checked_shares(ids, shares, len(data.train_y))
    strangers = sorted(set(poisoned) - set(ids))
    if strangers:
        raise DataError(f"worker {strangers[0]} is to be poisoned but does not train")
    if len(poisoned) and poison is None:
        raise DataError(
            "some workers are to be poisoned, but no poison is given; give tasks.FlipLabels(…) or your own"
        )
    return Task(
        data=data,
        nodes=torch.tensor(ids),
        table=nn.utils.rnn.pad_sequence(rows, batch_first=True),
        sizes=torch.tensor([len(row) for row in rows]),
        module=module,
        layout=Layout.of(module),
        loss=measure,
        batch=batch,
        seed=seed,
        augment=augment,
        poison=poison if poisoned else None,
        poisoned=torch.tensor([ids.index(node) for node in poisoned]) if poisoned else None,
    )


def _find_loss(loss: str | Loss) -> Loss:
    if not isinstance(loss, str):
        return loss
    if loss not in LOSSES:
        raise DataError(unknown_name("loss", loss, LOSSES))
    return LOSSES[loss]
