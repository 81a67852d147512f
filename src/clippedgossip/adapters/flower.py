"""Flower: a server that aggregates by a robust rule."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from torch import Tensor

from clippedgossip.errors import RuleError
from clippedgossip.rules import Rule
from clippedgossip.settings import must_be


class RobustFedAvg(FedAvg):
    """FedAvg with a rule of ours: own is the last global model, received are the clients' models, weighted by
    their numbers of examples.

        strategy = RobustFedAvg(cg.rules.ClippedGossip(10.0), fraction_train=0.5)

    The number of examples is the client's word. With `weighted=False` every client has the same weight, so
    that none gains by a large number. A reply of another shape counts as none.
    """

    def __init__(self, rule: Rule, *, weighted: bool = True, **options: Any) -> None:
        must_be("rule", rule, Rule, "rules.ClippedGossip(10.0)")
        super().__init__(**options)
        self.rule, self.weighted = rule, weighted
        self._last: ArrayRecord | None = None

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As FedAvg does; the global model is kept."""
        self._last = arrays
        messages: Iterable[Message] = super().configure_train(server_round, arrays, config, grid)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> "tuple[ArrayRecord | None, MetricRecord | None]":
        """The last global model, mixed with the replies."""
        if self._last is None:
            raise RuleError("there is no global model yet\ncall configure_train first, as Flower does")
        valid, _ = self._check_and_log_replies(replies, is_train=True, validate=False)
        last = self._last
        models = [(message.content, _fitting(message, last)) for message in valid]
        contents = [content for content, model in models if model is not None]
        if not contents:
            return None, None
        received = torch.stack([model for _, model in models if model is not None])
        counts = torch.tensor([self._examples(content) for content in contents], dtype=torch.float64)
        own = _vector(last)
        mixed = self.rule(own, received, (counts / counts.sum()).to(own))
        metrics = self.train_metrics_aggr_fn(contents, self.weighted_by_key)
        return _record(mixed, last), metrics

    def _examples(self, content: Any) -> float:
        """What the client says of its examples, where that is a positive number."""
        if not self.weighted:
            return 1.0
        said = next(iter(content.metric_records.values()))[self.weighted_by_key]
        count = float(said) if isinstance(said, int | float) else 0.0
        return count if np.isfinite(count) and count > 0 else 1.0


def _fitting(message: Message, last: ArrayRecord) -> Tensor | None:
    records = list(message.content.array_records.values())
    if len(records) != 1 or list(records[0]) != list(last):
        return None
    shapes = [tuple(array.shape) for array in last.values()]
    return _vector(records[0]) if [tuple(a.shape) for a in records[0].values()] == shapes else None


def _vector(record: ArrayRecord) -> Tensor:
    arrays = (array.numpy().astype(np.float32) for array in record.values())
    return torch.cat([torch.from_numpy(array).reshape(-1) for array in arrays])


def _record(vector: Tensor, like: ArrayRecord) -> ArrayRecord:
    parts = vector.split([int(np.prod(array.shape)) for array in like.values()])
    arrays = {
        name: part.reshape(tuple(array.shape)).numpy().astype(array.dtype)
        for (name, array), part in zip(like.items(), parts, strict=True)
    }
    return ArrayRecord({name: Array(value) for name, value in arrays.items()})
