"""The yardstick: the same suite for every rule."""

import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from clippedgossip.bench import SUITES, VERSION, rank
from clippedgossip.bench.suite import ATTACKS, NETWORKS, SEARCHED, TRIED, candidates
from clippedgossip.cli import main
from clippedgossip.errors import RuleError
from clippedgossip.files import canonical
from clippedgossip.rules import RULES
from tests.report.pages import check_page
from tests.rounding import near

DOCS = Path(__file__).parents[2] / "docs"
TINY = replace(
    SUITES["mini"],
    data={"name": "digits", "samples": 200, "test_samples": 50},
    model="linear",
    training={"rounds": 2, "batch": 8, "lr": 0.1, "evaluate_every": 2, "evaluate_last": 2},
    seeds=(0,),
)


@pytest.mark.parametrize("name", RULES)
def test_every_rule_has_parameters_that_fit_the_suite(name: str) -> None:
    assert any(SUITES["mini"].fits(how) for how in candidates({"name": name}))


def test_a_version_is_one_suite() -> None:
    """Whoever changes the suite raises VERSION and writes the new digest here."""
    told = {name: [suite.data, suite.model, suite.training] for name, suite in SUITES.items()}
    text = canonical(
        {"suites": told, "networks": NETWORKS, "attacks": ATTACKS, "tried": TRIED, "on": SEARCHED}
    )
    assert (VERSION, sha256(text.encode()).hexdigest()[:12]) == (2, "f9072e2f7f72")


def test_rules_are_searched_run_and_ranked_by_their_worst(tmp_path: Path) -> None:
    rules = [{"name": "gossip"}, {"name": "trimmed-mean"}]
    ranking = rank(rules, TINY, tmp_path, workers=1)
    first, second = ranking.rules
    assert first.worst.mean >= second.worst.mean
    trimmed = next(rule for rule in ranking.rules if rule.rule["name"] == "trimmed-mean")
    assert trimmed.rule["trim"] in ("byzantine", 1, 2)
    assert set(trimmed.accuracies) == {(where, attack) for where in NETWORKS for attack in ATTACKS}
    lowest = [min(trimmed.accuracies[where, a][0] for a in ATTACKS if a != "none") for where in NETWORKS]
    assert trimmed.worst.mean == near(sum(lowest) / len(lowest))
    check_page(ranking.html("clippedgossip bench gossip trimmed-mean"))
    assert json.loads(json.dumps(ranking.to_json()))["version"] == VERSION


@pytest.mark.parametrize(
    "path", sorted((DOCS / "benchmarks").glob("rules-*.json")), ids=lambda path: path.stem
)
def test_the_documents_rank_the_rules_as_their_file_does(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS / "site")
    import cards

    assert json.loads(path.read_text())["version"] == VERSION
    assert cards.markdown(path) in (DOCS / "bench.md").read_text()


def test_a_rule_that_fits_no_network_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match="'krum' does not fit the networks of the suite"):
        rank([{"name": "krum", "faulty": 9}], TINY, tmp_path)


@pytest.mark.parametrize(
    ("rule", "words"),
    [("medain", "did you mean 'median'"), ("{name=", "cannot read {name="), ("nowhere:Rule", "nowhere")],
)
def test_a_wrong_rule_is_said_before_anything_runs(
    rule: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["bench", rule])
    assert caught.value.code == 2
    assert words in capsys.readouterr().err


def test_a_rule_of_ones_own_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2] / "examples" / "own")
    (mine,) = rank([{"name": "mine:DistanceWeighted"}], TINY, tmp_path, workers=1).rules
    assert mine.label.startswith("DistanceWeighted")
    assert not mine.notes
    assert mine.clean.mean > 0
