"""Flower's server with a robust rule, on Flower's own messages."""

from typing import Any

import numpy as np
import pytest
import torch

from clippedgossip.rules import ClippedGossip, Gossip
from tests.rounding import near

pytestmark = pytest.mark.slow
pytest.importorskip("flwr", reason="pip install flwr")


@pytest.fixture(autouse=True)
def run_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower sets it when it starts a server; without one no message can be made."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_run_id", "_node_id", "_task_id"):
        if name in vars(TaskIdentity) or name in vars(type(TaskIdentity)):
            monkeypatch.setattr(TaskIdentity, name, 1, raising=False)


class Clients:
    """What the strategy asks of a grid."""

    def __init__(self, count: int) -> None:
        self.count = count

    def get_node_ids(self) -> list[int]:
        return list(range(1, self.count + 1))


def replies(models: list[np.ndarray[Any, Any]], examples: list[int]) -> list[Any]:
    from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

    made = []
    for node, (model, count) in enumerate(zip(models, examples, strict=True), 1):
        content = RecordDict(
            {
                "arrays": ArrayRecord({"w": Array(model)}),
                "metrics": MetricRecord({"num-examples": count, "loss": 1.0}),
            }
        )
        made.append(Message(content=content, dst_node_id=node, message_type="train"))
    return made


@pytest.mark.parametrize("rule", [Gossip(), ClippedGossip(1.0)])
def test_clients_are_weighed_by_their_examples_and_clipped_around_the_last_model(rule: Any) -> None:
    from flwr.app import Array, ArrayRecord, ConfigRecord

    from clippedgossip.adapters.flower import RobustFedAvg

    strategy = RobustFedAvg(rule)
    last = np.zeros((2, 3), dtype=np.float32)
    list(strategy.configure_train(1, ArrayRecord({"w": Array(last)}), ConfigRecord({}), Clients(4)))
    models = [np.full((2, 3), value, dtype=np.float32) for value in (0.1, 0.2, 1e6)]
    odd = np.zeros((5,), dtype=np.float32)  # of another shape: not counted
    arrays, metrics = strategy.aggregate_train(1, replies([*models, odd], [10, 20, 10, 10]))
    assert arrays is not None
    assert metrics is not None
    found = arrays["w"].numpy()
    assert found.dtype == np.float32
    if isinstance(rule, Gossip):
        assert found == near(
            np.full((2, 3), (0.1 * 10 + 0.2 * 20 + 1e6 * 10) / 40), roundings=10, dtype=torch.float32
        )
    else:
        clipped = np.full((2, 3), 1 / np.sqrt(6))
        assert found == near((0.1 * 10 + 0.2 * 20 + clipped * 10) / 40, roundings=10, dtype=torch.float32)


def test_nobody_answers() -> None:
    from flwr.app import Array, ArrayRecord, ConfigRecord

    from clippedgossip.adapters.flower import RobustFedAvg

    strategy = RobustFedAvg(Gossip(), weighted=False)
    list(strategy.configure_train(1, ArrayRecord({"w": Array(np.zeros(2))}), ConfigRecord({}), Clients(2)))
    assert strategy.aggregate_train(1, []) == (None, None)
