"""Which runs belong together, and how they are named."""

import re
from pathlib import Path
from typing import Any

from clippedgossip.records import Round, RunDirectory
from clippedgossip.report.grouping import find, group
from clippedgossip.report.run_report import report
from tests.report.pages import check_page, write_run


def test_runs_that_differ_in_their_seed_are_one_line(tmp_path: Path) -> None:
    for rule in ("trimmed-mean", "gossip"):
        for seed in range(3):
            write_run(tmp_path, rule=rule, seed=seed)
    runs, empty = find([tmp_path])
    assert not empty
    found = group(runs)
    assert [(g.setting, g.rule, len(g.runs)) for g in found] == [
        ("dumbbell, no attack", "gossip", 3),
        ("dumbbell, no attack", "trimmed-mean", 3),
    ]


def labels(tmp_path: Path, *configs: dict[str, object]) -> list[tuple[str, str]]:
    for config in configs:
        RunDirectory.open(tmp_path, config, "run").append(Round(round=0))
    return [(g.setting, g.rule) for g in group(find([tmp_path])[0])]


def test_what_differs_is_named(tmp_path: Path) -> None:
    found = labels(
        tmp_path,
        {"rule": {"name": "clipped-gossip", "radius": 1.0}, "network": {"name": "ring"}, "lr": 0.1},
        {"rule": {"name": "clipped-gossip", "radius": 10.0}, "network": {"name": "ring"}, "lr": 0.1},
        {"rule": "gossip", "network": {"name": "torus", "rows": 3}, "attack": "ipm", "lr": 0.01},
        {"rule": "gossip", "network": {"file": "own.csv", "sha256": "ab"}, "attack": "ipm", "lr": 0.01},
    )
    assert found == [
        ("own.csv, ipm", "gossip"),
        ("ring, no attack", "clipped-gossip radius=1"),
        ("ring, no attack", "clipped-gossip radius=10"),
        ("torus, ipm", "gossip"),
    ]


def test_titles_name_only_what_it_takes_to_tell_settings_apart(tmp_path: Path) -> None:
    def config(network: str, partition: str, rounds: int) -> dict[str, object]:
        data = {"name": "digits", "partition": partition}
        return {"network": {"name": network}, "data": data, "training": {"rounds": rounds}, "lr": 0.1}

    found = labels(
        tmp_path,
        config("dumbbell", "clique", 300),
        config("ring", "iid", 150),
        config("ring", "dirichlet", 150),
    )
    assert [setting for setting, _ in found] == [
        "dumbbell",
        "ring, digits partition=dirichlet",
        "ring, digits partition=iid",
    ]
    text = report([tmp_path]).html
    assert re.findall(r"<th[^>]*>(data.partition|training.rounds|lr)</th>", text) == [
        "data.partition",
        "training.rounds",
    ]
    assert '<td>dumbbell</td><td>clique</td><td class="number">300</td>' in text


def test_one_seed_is_not_said_to_have_an_interval(tmp_path: Path) -> None:
    write_run(tmp_path)
    assert "95 %" not in report([tmp_path]).html
    write_run(tmp_path, seed=1)
    outline = check_page(report([tmp_path]).html)
    assert outline.text.count("95 %") == 2, "under the title and over the summary"


def test_no_two_lines_have_one_name(tmp_path: Path) -> None:
    found = labels(
        tmp_path,
        {"rule": {"name": "bucketing", "rule": {"name": "gossip"}}},
        {"rule": {"name": "bucketing", "rule": {"name": "median"}}},
        {"rule": {"name": "krum", "faulty": None}},
        {"rule": {"name": "krum"}},
    )
    assert len(set(found)) == 4
    assert ("all runs", "bucketing(gossip)") in found


def test_a_rule_of_a_rule_is_named_with_what_differs(tmp_path: Path) -> None:
    def bucketing(**rule: Any) -> dict[str, Any]:
        return {"rule": {"name": "bucketing", "size": 2, "rule": rule}, "attack": {"name": "none"}}

    found = labels(
        tmp_path,
        bucketing(name="clipped-gossip", radius=1.0),
        bucketing(name="clipped-gossip", radius={"adaptive": 0.1}),
        bucketing(name="median"),
        {"rule": {"name": "median"}, "attack": {"name": "tuned", "attack": {"name": "ipm"}}},
        {"rule": {"name": "median"}, "attack": {"name": "tuned", "attack": {"name": "dissensus"}}},
    )
    assert {rule for _, rule in found} == {
        "bucketing(clipped-gossip) radius=1",
        "bucketing(clipped-gossip) adaptive=0.1",
        "bucketing(median)",
        "median",
    }
    assert {setting for setting, rule in found if rule == "median"} == {"tuned(ipm)", "tuned(dissensus)"}


def test_a_digest_of_code_is_no_label(tmp_path: Path) -> None:
    one: dict[str, Any] = {"rule": {"name": "mine:Half", "share": 1, "code": "ab"}}
    other: dict[str, Any] = {"rule": {"name": "mine:Half", "share": 2, "code": "cd"}}
    assert {rule for _, rule in labels(tmp_path, one, other)} == {"Half share=1", "Half share=2"}


def test_a_bare_config_still_has_a_name(tmp_path: Path) -> None:
    assert labels(tmp_path, {"seed": 0}, {"seed": 1}) == [("all runs", "run")]
