"""A task: the data, the share of each node, the model, its loss and its metric, as an engine needs them.

A model's trainable parameters are views of one flat vector, without copying: nodes exchange and mix these
alone. Frozen parameters are constants. Buffers that change in training (such as the running statistics of
batch normalisation) are each worker's own and are never mixed.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from clippedgossip.errors import DataError
from clippedgossip.tasks.datasets import Data, DataSet
from clippedgossip.tasks.models import build
from clippedgossip.tasks.objective import Loss, LossLike, Metric, MetricLike, find_loss, find_metric
from clippedgossip.tasks.poison import Poison


@dataclass(frozen=True, kw_only=True)
class ParameterLayout:
    """Names and shapes of a module's trainable parameters, in the order they lie in the vector."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    @classmethod
    def of(cls, module: nn.Module) -> "ParameterLayout":
        """The layout of a module's trainable parameters."""
        items = [(name, item) for name, item in module.named_parameters() if item.requires_grad]
        return cls(names=tuple(name for name, _ in items), shapes=tuple(item.shape for _, item in items))

    @property
    def size(self) -> int:
        """Number of parameters, the paper's d."""
        return sum(map(math.prod, self.shapes))

    def views(self, vectors: Tensor) -> dict[str, Tensor]:
        """Views into vectors (*lead, d): {name: (*lead, *shape)}; writing to them writes there."""
        parts = torch.split(vectors, [math.prod(shape) for shape in self.shapes], dim=-1)
        lead = vectors.shape[:-1]
        return {
            name: part.view((*lead, *shape))
            for name, shape, part in zip(self.names, self.shapes, parts, strict=True)
        }

    def flatten(self, tensors: Mapping[str, Tensor], lead: int = 0) -> Tensor:
        """One vector (*lead, d) from tensors of shape (*lead, *shape), such as stacked gradients."""
        return torch.cat([tensors[name].flatten(lead) for name in self.names], dim=-1)


def flatten(module: nn.Module) -> Tensor:
    """A copy of the trainable parameters as one vector (d,)."""
    return torch.cat([part.detach().flatten() for part in module.parameters() if part.requires_grad])


@torch.no_grad()
def unflatten(vector: Tensor, module: nn.Module) -> nn.Module:
    """Copy a vector (d,) into a module's trainable parameters."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    for parameter, value in zip(trained, ParameterLayout.of(module).views(vector).values(), strict=True):
        parameter.copy_(value)
    return module


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
    layout: ParameterLayout
    loss: Loss
    metric: Metric
    batch: int
    seed: int
    augment: bool = False
    poison: Poison | None = None
    poisoned: Tensor | None = None
    """The places in `nodes` of the nodes whose batches are poisoned."""

    def __repr__(self) -> str:
        return (
            f"Task({len(self.nodes)} nodes learn {self.data.name!r}, {type(self.module).__name__} of "
            f"{self.layout.size:,} parameters, batch {self.batch}, seed {self.seed})"
        )

    @property
    def device(self) -> torch.device:
        """Where its data are."""
        return self.table.device

    def to(self, device: torch.device | str) -> "Task":
        """The same task on another device; the module is copied, this one stays where it is."""
        if torch.device(device) == self.device:
            return self
        moved: dict[str, Any] = {
            name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        module = copy.deepcopy(self.module).to(device)
        return replace(self, data=self.data.to(device), module=module, loss=self.loss.to(device), **moved)

    def initial(self) -> Tensor:
        """The starting point x⁰ (d,), one for all nodes."""
        return flatten(self.module)

    def some(self, rows: slice) -> "Task":
        """The task of some of its nodes."""
        poisoned = self.poisoned
        if poisoned is not None:
            poisoned = poisoned[(poisoned >= rows.start) & (poisoned < rows.stop)] - rows.start
        any_poisoned = poisoned is not None and len(poisoned) > 0
        return replace(
            self,
            nodes=self.nodes[rows],
            table=self.table[rows],
            sizes=self.sizes[rows],
            poison=self.poison if any_poisoned else None,
            poisoned=poisoned if any_poisoned else None,
        )


def make_task(
    data: DataSet,
    shares: Sequence[Data | Sequence[int]],
    model: str | nn.Module,
    *,
    seed: int,
    batch: int = 32,
    loss: LossLike = None,
    metric: MetricLike = None,
    nodes: Sequence[int] | None = None,
    augment: bool = False,
    poison: Poison | None = None,
    poisoned: Sequence[int] = (),
) -> Task:
    """Make a task. `shares[i]` are the training rows of node `nodes[i]`; without `nodes`, of node i.

    The present parameters of a module of the user's own become x⁰. Without `loss` it is the cross-entropy
    where the targets are classes, and the mean squared error where they are real numbers. `poisoned` names
    the nodes whose batches go through `poison`.
    """
    if not isinstance(batch, int) or batch < 1:
        raise DataError(f"batch is {batch}; it must be a whole number, at least 1")
    if augment and not (isinstance(data.train_x, Tensor) and len(data.shape) == 3):
        raise DataError(
            f"augment crops and flips images (channels, height, width); these inputs have shape {data.shape}"
        )
    objective = usual_loss(loss, data.classes, model)
    measured = find_metric(metric, objective, data.classes)
    module = model
    if isinstance(module, str):
        if data.classes is None or not isinstance(data.train_x, Tensor):
            raise DataError(
                f"model {model!r} is for classes of plain inputs, but {data.name} has others\n"
                "give a module of your own"
            )
        module = build(module, data.shape, data.classes, seed=seed)
    if (
        not isinstance(model, str) or loss is not None or metric is not None or data.mean is None
    ):  # not all of it is built in
        from clippedgossip.tasks.module_checks import check_module

        check_module(module, data, objective, measured, batch)
    ids = list(range(len(shares))) if nodes is None else list(nodes)
    rows = _checked_shares(ids, shares, data.count)
    unknown = sorted(set(poisoned) - set(ids))
    if unknown:
        raise DataError(f"worker {unknown[0]} is to be poisoned but does not train; name one of nodes")
    if len(poisoned) and poison is None:
        raise DataError(
            "some workers are to be poisoned, but no poison is given; give tasks.FlipLabels(…) or your own"
        )
    if len(poisoned) and poison is not None:
        from clippedgossip.tasks.module_checks import check_poison

        check_poison(poison, data)
    return Task(
        data=data,
        nodes=torch.tensor(ids),
        table=nn.utils.rnn.pad_sequence(rows, batch_first=True),
        sizes=torch.tensor([len(row) for row in rows]),
        module=module,
        layout=ParameterLayout.of(module),
        loss=objective,
        metric=measured,
        batch=batch,
        seed=seed,
        augment=augment,
        poison=poison if poisoned else None,
        poisoned=torch.tensor([ids.index(node) for node in poisoned]) if poisoned else None,
    )


def usual_loss(said: LossLike, classes: int | None, model: object) -> Loss:
    """The loss that was asked for, or the usual one of such targets. The paper's CNN gives
    log-probabilities."""
    return find_loss(said or ("mse" if classes is None else "nll" if model == "cnn" else "cross-entropy"))


def _checked_shares(ids: Sequence[int], shares: Sequence[Data | Sequence[int]], samples: int) -> list[Tensor]:
    """The shares as tensors of row numbers: one for each worker, none empty, all within the data."""
    if len(ids) != len(shares) or len(set(ids)) != len(ids):
        raise DataError(f"{len(shares)} shares for {len(set(ids))} different workers; give one share to each")
    try:
        rows = [torch.as_tensor(share).cpu() for share in shares]
    except (TypeError, ValueError, RuntimeError) as error:  # text, None, lists of several lengths
        raise DataError(f"the shares are no rows: {error}\nlist the numbers of each worker's rows") from None
    for node, row in zip(ids, rows, strict=True):
        if row.ndim == 1 and not len(row):
            raise DataError(f"worker {node} holds no samples; use fewer workers or another partition")
        if row.ndim != 1 or row.dtype == torch.bool or row.is_floating_point():
            raise DataError(
                f"worker {node}'s share has shape {tuple(row.shape)} and dtype {row.dtype}; "
                "list the numbers of its rows (of a mask: mask.nonzero().flatten())"
            )
        if int(row.min()) < 0 or int(row.max()) >= samples:
            wrong = int(row.min()) if int(row.min()) < 0 else int(row.max())
            raise DataError(f"worker {node} holds row {wrong}; rows go from 0 to {samples - 1}")
    return [row.long() for row in rows]
