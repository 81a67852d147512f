"""The folder of a run that was given from Python: its config has names and digests of what was given."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from clippedgossip.facade.code_digest import text_of
from clippedgossip.facade.recorded_run import RecordedRun
from clippedgossip.records import RunDirectory
from clippedgossip.runs.config import RunConfig
from clippedgossip.runs.execute import Attempt
from clippedgossip.simulate.setup import Setup, digest
from clippedgossip.tasks.datasets import leaves


@dataclass(frozen=True, eq=False)
class GivenRun:
    """What a run's folder needs of a config."""

    setup: Setup
    mapping: dict[str, Any]

    def to_mapping(self) -> dict[str, Any]:
        return self.mapping

    def build(self) -> Setup:
        return self.setup


def run_folder(recorded: RecordedRun, root: Path | str, device: str) -> Attempt:
    """The folder of a run under `root`, made if need be. Other data, weights, shares or code: another run."""
    setup, description = recorded.setup, recorded.description
    names = (f"{setup.network.n}-nodes", recorded.rule, recorded.attack)
    mapping = {**description, "given": _digests(setup)}
    mapping["network"] = {**description["network"], "digest": mapping["given"].pop("network")}
    run = RunDirectory.open(root, mapping, re.sub(r"[^\w.-]+", "-", "-".join(names)), device=device)
    return Attempt(cast(RunConfig, GivenRun(setup, mapping)), run, device, setup.training)


def _digests(setup: Setup) -> dict[str, str]:
    """Of all that a description only names."""
    task, network, data = setup.task, setup.network, setup.task.data
    own = [task.loss.function, task.metric, setup.rule, setup.attack, network.schedule, network.delay]
    own += [setup.training.optimizer]
    weights = [] if task.loss.weights is None else [task.loss.weights]
    return {
        "network": digest(network.indptr, network.indices, network.byzantine, network.edge_weights()),
        "data": digest(*leaves((data.train_x, data.train_y, data.test_x, data.test_y))),
        "shares": digest(task.nodes, task.table, task.sizes),
        "model": digest(*map(_text, (repr(task.module), text_of(task.module)))),
        "code": digest(*(_text(text_of(thing)) for thing in own), *weights),
    }


def _text(words: str) -> np.ndarray:
    return np.frombuffer(words.encode(), dtype=np.uint8)
