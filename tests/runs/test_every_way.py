"""Every schedule, delay, kind of weights and radius policy, by every way to say it: a file, the command line,
Python and a sweep give the same records, to the byte. Over ranks: `tests/simulate/distributed`. Between
peers: `tests/peer/test_parity.py`."""

import json
from pathlib import Path
from typing import Any

import pytest

import clippedgossip as cg
from clippedgossip import graphs
from clippedgossip.cli import main
from clippedgossip.network.delay import DELAY
from clippedgossip.network.schedule import SCHEDULE

pytestmark = pytest.mark.usefixtures("one_thread")

LINKS = "1,0,1\n1,1,3\n2,4,6\n1,1,2\n1,2,3\n2,3,4\n2,4,5\n2,5,6\n3,6,7\n3,0,7\n3,2,7\n"
OWN = """
from clippedgossip.network.schedule import GraphSchedule

class Turning(GraphSchedule):
    def pairs(self, network, round, seed):
        return [(i, (i + 1 + round % 3) % 8) for i in range(8)]
"""
SCHEDULES: dict[str, Any] = {
    "random-neighbours": {"neighbours": 3},
    "random-matching": {},
    "one-peer-exponential": {},
    "churn": {"leave": 0.2, "join": 0.5},
    "phases": {"phases": [{"rounds": 2, "without": [[0, 1]]}, {"rounds": 1, "network": "ring"}]},
    "file": {"file": "rounds.csv"},
    "turning:Turning": {},
}
NETWORKS: dict[str, dict[str, Any]] = {
    **{name: {"schedule": {"name": name, **more}} for name, more in SCHEDULES.items()},
    "a delay": {"delay": 2},
    "late links": {"delay": {"edges": 2}},
    "slow nodes": {"delay": {"nodes": 3}},
    "both": {"schedule": {"name": "random-matching"}, "delay": {"edges": 1}},
    "optimal weights": {"weights": "optimal"},
    "robust weights": {"weights": {"robust": 1, "cap": 0.12}},
    "lazy weights, churn": {"weights": "lazy", "schedule": {"name": "churn", "leave": 0.2, "join": 0.5}},
    "static": {},
}
RADII: dict[str, Any] = {
    "local": {"local": 1},
    "adaptive": {"adaptive": 0.2},
    "bound of all rounds": {"local": "byzantine"},
    "oracle": "oracle",
    "quantile": {"quantile": 0.5},
}
CASES = [(network, 0.5) for network in NETWORKS] + [("random-neighbours", radius) for radius in RADII]
RUN: dict[str, Any] = {
    "network": {"name": "complete", "nodes": 8, "byzantine": [2, 5]},
    "data": {"name": "digits", "samples": 120, "test_samples": 20},
    "model": {"name": "linear"},
    "rule": {"name": "clipped-gossip", "radius": 0.5},
    "attack": {"name": "dissensus"},
    "training": {"rounds": 4, "batch": 4, "evaluate_every": 2},
    "seed": 3,
}


def test_no_name_is_left_out() -> None:
    assert set(SCHEDULES) >= set(SCHEDULE.names)
    assert {
        next(iter(case["delay"])) for case in NETWORKS.values() if isinstance(case.get("delay"), dict)
    } | {"fixed"} == set(DELAY.names)


@pytest.mark.parametrize(("case", "radius"), CASES, ids=str)
def test_every_way_gives_the_same_records(
    case: str, radius: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rounds.csv").write_text(LINKS)
    Path("turning.py").write_text(OWN)
    radius = RADII.get(radius, radius) if isinstance(radius, str) else radius
    changes = {f"network.{key}": value for key, value in NETWORKS[case].items()} | {"rule.radius": radius}
    whole: dict[str, Any] = {
        **RUN,
        "network": RUN["network"] | NETWORKS[case],
        "rule": RUN["rule"] | {"radius": radius},
    }
    Path("whole.toml").write_text(written(whole))
    Path("base.toml").write_text(written(RUN))
    grid = "".join(f"{json.dumps(key)} = [{toml_value(value)}]\n" for key, value in changes.items())
    Path("sweep.toml").write_text(f'base = "base.toml"\n[grid]\n{grid}')
    overrides = [f"{key}={toml_value(value)}" for key, value in changes.items()]

    found = {
        "file": cli("run", "whole.toml", "--out", "file"),
        "command line": cli("run", "base.toml", *overrides, "--out", "words"),
        "sweep": cli("sweep", "run", "sweep.toml", "--out", "swept"),
    }
    network = cg.Network(graphs.build("complete", nodes=8), byzantine=[2, 5], **NETWORKS[case])
    run = cg.train(
        network,
        RUN["data"],
        "linear",
        rule=whole["rule"],
        attack="dissensus",
        rounds=4,
        batch=4,
        evaluate_every=2,
        seed=3,
        device="cpu",
        progress=False,
    )
    found["Python"] = [record.to_json() for record in run]
    for way, records in found.items():
        assert records == found["file"], way
    assert len(found["file"]) == 2


def test_a_static_network_is_the_schedule_of_one_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("base.toml").write_text(written(RUN))
    one = "network.schedule={name='phases', phases=[{rounds=1}]}"
    assert cli("run", "base.toml", one, "--out", "one") == cli("run", "base.toml", "--out", "static")


def cli(command: str, *arguments: str) -> list[dict[str, Any]]:
    with pytest.raises(SystemExit) as caught:
        main([command, *arguments])
    assert not caught.value.code
    (records,) = Path(arguments[-1]).glob("**/records.jsonl")
    return [json.loads(line) for line in records.read_text().splitlines()]


def written(run: dict[str, Any]) -> str:
    return "".join(f"{key} = {toml_value(value)}\n" for key, value in run.items())


def toml_value(value: Any) -> str:
    """A value of TOML in one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml_value(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    return json.dumps(value)
