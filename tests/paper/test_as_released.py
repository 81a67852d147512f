"""The deviations of the authors' released code, each against what it is said to do."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from clippedgossip.attacks import BitFlipping
from clippedgossip.attacks.base import View
from clippedgossip.cli import main
from clippedgossip.errors import ConfigError
from clippedgossip.mixing.inbox import Context
from clippedgossip.mixing.slots import Layout
from clippedgossip.paper.as_released import (
    BATCH,
    IMAGES,
    AlternatingBitFlipping,
    DoubledBucketing,
    OneMask,
    SecondLargest,
    released_cnn,
)
from clippedgossip.paper.base import Options, load, prepare
from clippedgossip.paper.deviations import (
    DEVIATIONS,
    UNCHANGED,
    WORDS,
    AsReleased,
    _why,
    deviating,
    with_deviations,
)
from clippedgossip.paper.overview import write_overview
from clippedgossip.paper.results import Results, RunResult
from clippedgossip.paper.training_figure import MNIST, TrainingExperiment
from clippedgossip.rules import ClippedGossip, Gossip, Rule, TrimmedMean
from clippedgossip.runs.config import NetworkConfig
from clippedgossip.settings import ModelConfig
from clippedgossip.tasks import DataSet
from clippedgossip.tasks.workers import Workers
from tests.rounding import near


def figure(name: str) -> TrainingExperiment:
    found = load(name)
    assert isinstance(found, TrainingExperiment)
    return found


def mixed(rule: Rule, round: int = 0) -> torch.Tensor:
    """Nine neighbours at 0, one far away."""
    received = torch.zeros(10, 1, dtype=torch.float64)
    received[-1] = 1.0
    weights = torch.full((10,), 1 / 11, dtype=torch.float64)
    own = torch.zeros(1, dtype=torch.float64)
    return rule(own, received, weights, Context(round=round, seed=3))


def test_doubled_bucketing_carries_the_far_model_past_the_trim() -> None:
    """It sits in two buckets, or in one alone. TM drops one bucket per side."""
    assert float(mixed(TrimmedMean(trim=1))) == 0
    seen = {float(mixed(DoubledBucketing(TrimmedMean(trim=1)), round)) for round in range(3)}
    assert len(seen) == 1, "the shuffle is the same in every round"
    assert seen.pop() in (near(0.5 / 9), 0.0)
    # Every model is in as many buckets, so a mean over all buckets is the mean over the models.
    assert float(mixed(DoubledBucketing(Gossip()))) == near(1 / 11)


def test_the_second_largest_distance() -> None:
    own = torch.zeros(2, dtype=torch.float64)
    received = torch.tensor([[3.0, 0.0], [0.0, 1.0], [2.0, 0.0]], dtype=torch.float64)
    weights = torch.full((3,), 0.25, dtype=torch.float64)
    rule = ClippedGossip(radius=SecondLargest())
    assert rule(own, received, weights).tolist() == near([(2 + 2) / 4, 1 / 4])
    assert rule(own, received[:1], weights[:1]).tolist() == near([3 / 4, 0])


def test_one_mask_is_the_same_in_every_round() -> None:
    x = torch.ones(4, 8, 3, 3)
    layer = OneMask(0.5, (8, 1, 1))
    once = layer(x)
    assert torch.equal(once, layer(x))
    assert set(once.unique().tolist()) == {0.0, 2.0}
    assert all(len(channel.unique()) == 1 for channel in once.flatten(0, 1))
    assert torch.equal(layer.eval()(x), x)
    fresh = released_cnn((1, 28, 28), 10, one_mask=False)
    assert not any(isinstance(part, OneMask) for part in fresh.modules())


def test_the_released_cnn_has_the_papers_parameters() -> None:
    model = released_cnn((1, 28, 28), 10)
    assert sum(parameter.numel() for parameter in model.parameters()) == 1_199_882
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


def test_each_deviation_changes_what_it_names_alone() -> None:
    assert set(WORDS) == set(DEVIATIONS)
    cases = [
        case
        for name in ("dumbbell", "clipping-radius", "delta-max")
        for case in figure(name).cases(MNIST["paper"])
    ]
    for name, sections in {
        "bucketing": {"rule"},
        "bit-flipping": {"attack"},
        "few-images": {"data", "training"},
        "one-mask": {"model"},
        "cnn": {"model"},
        "adaptive-radius": {"rule"},
    }.items():
        changed = [(case, new) for case in cases if (new := deviating(case, [name])) is not case]
        assert changed, name
        for case, new in changed:
            old, now = case.line.config, new.line.config
            assert {key for key in now if now[key] != old.get(key)} == sections, name
    both = deviating(cases[0], ["one-mask", "cnn"]).line.config["model"]
    assert (both["plain"], both["one_mask"]) == (True, True)


def test_workers_with_few_images_have_the_same_batches_in_every_epoch() -> None:
    """Of their own share, and as many each: a batch that began at another image would meet another mask."""
    labels = torch.arange(60_000) % 11 % 10  # of 0 there are twice as many
    x, test = labels[:, None].float(), labels[:10]
    data = DataSet(name="mnist", train_x=x, train_y=labels, test_x=x[:10], test_y=test, classes=10)
    for place, classes in ((0, range(10)), (5, range(5))):
        case = list(figure("dumbbell").cases(MNIST["paper"]))[place]
        config = replace(deviating(case, ["few-images"]).config, model=ModelConfig(name="linear"))
        task = config.build(data).task
        assert task.sizes.tolist() == [IMAGES] * 20
        workers = Workers([task], **config.training.build().drawing)
        drawn = [workers.shares.rows(round, None, BATCH, workers.batches) for round in range(90)]
        first = torch.stack(drawn[:30])
        assert torch.equal(first, torch.stack(drawn[30:60]))
        assert torch.equal(first, torch.stack(drawn[60:]))
        clique = first[:, :10].flatten()
        assert len(set(clique.tolist())) == 10 * IMAGES
        assert set(labels[clique].tolist()) == set(classes)


def test_bit_flipping_alternates() -> None:
    network = NetworkConfig.from_value({"name": "ring", "nodes": 3, "byzantine": {"pendants": [0]}}).build()
    models, own = torch.ones(3, 2), torch.full((1, 2), 5.0)
    views = [
        View(
            network=network,
            layout=Layout.of(network),
            models=models,
            byzantine_models=own,
            context=Context(round=round),
        )
        for round in range(4)
    ]
    sent = [AlternatingBitFlipping().messages(view).flatten().tolist() for view in views]
    assert sent[0] == [-value for value in sent[1]]
    assert sent[:2] == sent[2:]
    assert BitFlipping().messages(views[0]).flatten().tolist() in sent
    source = figure("clipping-radius")
    experiment = AsReleased(source, ["bit-flipping"])
    labels = {case.rule.rpartition(" | ")[2] for case in experiment.cases(MNIST["quick"])}
    assert labels == {"ours", "bit-flipping"}
    assert {case.setting for case in experiment.cases(MNIST["quick"])} == {"BF"}


@pytest.fixture(scope="module")
def kept() -> Results:
    path = Path(__file__).parents[2] / "docs" / "results" / "h200" / "dumbbell-as-released.json"
    return Results.load(path, "dumbbell-as-released")


def test_the_page_names_the_deviation_that_explains_a_difference(kept: Results) -> None:
    experiment = AsReleased(figure("dumbbell"), ["bucketing"])
    table = experiment.comparison(kept)
    assert list(table.header) == [
        "setting", "rule", "released", "ours", "these together", "bucketing", "explained by"
    ]  # fmt: skip
    assert table.keys == 2
    why = {(row[0], row[1]): row[-1] for row in table.rows}
    assert why["non-IID, bucketing", "TM"] == "undecided", "half of the way, within its interval"
    assert why["non-IID, bucketing", "Mozi"] == "undecided"
    assert why["non-IID, both", "GM"] == "no single one", "1 of 13 points to the released number"


def test_the_interval_decides_what_explains_a_difference() -> None:
    ours, goal = np.full(5, 0.5), np.full(5, 0.7)
    noise = np.array([-0.01, 0.0, 0.01, 0.0, 0.0])
    one = np.array([0.7, *[np.nan] * 4])
    for arms, why in (
        ({"cnn": goal, "one-mask": ours}, "cnn"),
        ({"cnn": goal + 0.2, "one-mask": goal}, "cnn, one-mask"),  # also one that goes too far
        ({"cnn": ours + 0.1 + noise, "one-mask": ours}, "undecided"),
        ({"cnn": ours + 0.05, "one-mask": ours - 0.1}, "no single one"),
        ({"cnn": one, "one-mask": ours}, "–"),
        ({"cnn": one, "one-mask": goal}, "one-mask"),
    ):
        for sign in (1, -1):
            ends = {name: sign * held for name, held in {"ours": ours, "all": goal, **arms}.items()}
            assert _why(ends, None) == _why(ends, sign * 70.0) == why
    assert _why({"ours": ours, "all": goal, "cnn": goal}, None) == "–", "it is all of them"
    assert _why({"ours": ours, "all": one, "cnn": goal, "one-mask": ours}, None) == "–"


def test_deviations_that_do_not_concern_a_row_decide_nothing_there(kept: Results) -> None:
    """They neither lack seeds, nor make of the only one that does concern it one of several."""
    ours = {
        (line.setting, line.rule.partition(" | ")[0]): line.runs for line in kept.lines if "ours" in line.rule
    }
    lines = [
        replace(line, runs=ours[line.setting, line.rule.partition(" | ")[0]])
        if "| cnn" in line.rule
        else line
        for line in kept.lines
    ]
    table = AsReleased(figure("dumbbell"), ["bucketing", "cnn"]).comparison(replace(kept, lines=lines))
    (row,) = (row for row in table.rows if row[:2] == ["non-IID", "Gossip"])
    assert row[-1] == "no single one", "no bucketing, and with the CNN it is as ours"
    path = Path(__file__).parents[2] / "docs" / "results" / "h200" / "clipping-radius-as-released.json"
    experiment = AsReleased(figure("clipping-radius"), list(DEVIATIONS))
    table = experiment.comparison(Results.load(path, experiment.name))
    assert {row[1]: row[-1] for row in table.rows if row[0] == "BF"} == {
        **dict.fromkeys(["τ = 0.1", "τ = 0.5", "τ = 1", "τ = 2", "τ = 10"], "–"),
        "adaptive": "bit-flipping",
    }


def test_released_numbers_are_of_the_paper_s_scale_alone(kept: Results) -> None:
    """Neither the miniature nor a part of the rounds is judged by them."""
    experiment = AsReleased(figure("dumbbell"), ["bucketing"])
    assert {row[2] for row in experiment.comparison(kept).rows} > {"63.0"}
    for other in (replace(kept, scale="quick"), replace(kept, length=0.5)):
        table = experiment.comparison(other)
        assert {(row[2], row[-1]) for row in table.rows} == {(None, "–")}
        assert "released numbers are of the paper's scale" in table.caption
    path = Path(__file__).parents[2] / "docs" / "results" / "h200" / "clipping-radius-as-released.json"
    experiment = AsReleased(figure("clipping-radius"), ["bit-flipping"])
    none = experiment.comparison(replace(Results.load(path, experiment.name), scale="quick"))
    assert "released numbers" not in none.caption, "this figure has none"


def test_of_all_deviations_a_file_may_have_some_together(tmp_path: Path) -> None:
    source = Path(__file__).parents[2] / "docs" / "results" / "h200"
    options = Options(out=tmp_path, source=source, scale="paper")
    (made,) = prepare(with_deviations(["clipping-radius"], []), options, lambda *_: None)
    done = made.judge(lambda *_: None)
    kept = Results.load(source / "clipping-radius-as-released.json", "clipping-radius-as-released")
    assert done.result.lines == kept.lines
    assert "Not run: few-images, one-mask, cnn." in done.path.read_text()
    several = write_overview([done, done], options).read_text()
    assert several.count("explained by") == 2, "the accuracies, since there are no claims"
    assert "no claims" not in several


def test_the_page_says_which_deviations_lack_runs(kept: Results) -> None:
    experiment = AsReleased(figure("dumbbell"), list(DEVIATIONS))
    assert "as released" in experiment.comparison(kept).header
    assert "Not run" not in experiment.left_out(kept)
    part = replace(kept, lines=[line for line in kept.lines if line.rule.partition(" | ")[2] != "cnn"])
    table = experiment.comparison(part)
    assert "as released" not in table.header
    idle = "at this scale: bit-flipping, adaptive-radius. Not run: cnn."
    assert table.caption.endswith(idle)
    assert idle in experiment.left_out(part)
    part = replace(
        kept,
        lines=[
            replace(line, runs=()) if line.rule == "TM | cnn" and line.setting == "non-IID, both" else line
            for line in kept.lines
        ],
    )
    (row,) = (
        row
        for row in AsReleased(figure("dumbbell"), ["cnn"]).comparison(part).rows
        if row[:2] == ["non-IID, both", "TM"]
    )
    assert row[4:] == [None, None, "–"]
    (where,) = AsReleased(figure("dumbbell"), ["cnn", "one-mask"]).left_out(kept).splitlines()
    assert where == "Not run: one-mask + cnn.", "what was asked for together"


def test_a_column_of_fewer_seeds_says_so_once(kept: Results) -> None:
    def first(runs: Sequence[RunResult], arm: str) -> Sequence[RunResult]:
        return runs[:1] if arm in ("few-images", "cnn") else runs

    lines = [replace(line, runs=first(line.runs, line.rule.partition(" | ")[2])) for line in kept.lines]
    experiment = AsReleased(figure("dumbbell"), ["few-images", "cnn"])
    table = experiment.comparison(replace(kept, lines=lines))
    places = [place for place, name in enumerate(table.header) if name in ("few-images", "cnn")]
    assert re.search(r" Only 1 of 5 seeds: .*few-images, cnn\. ", table.caption)
    assert all(re.fullmatch(r"\d\d\.\d", str(row[place])) for row in table.rows for place in places)


def test_unknown_deviations_and_figures_without_runs_are_refused() -> None:
    with pytest.raises(ConfigError, match="bucketing"):
        with_deviations(["dumbbell"], ["bucketings"])
    with pytest.raises(ConfigError, match=r"trains nothing(.|\n)*--deviation"):
        with_deviations(["consensus"], [])


def test_all_deviations_and_one_of_them_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["reproduce", "dumbbell", "--as-released", "--deviation", "cnn"])
    assert capsys.readouterr().err.endswith("give one of them\n")


def test_deviations_that_change_nothing_say_so(tmp_path: Path) -> None:
    """No line of this figure has buckets."""
    (same,) = with_deviations(["weaker-topology"], ["bucketing"])
    (made,) = prepare([same], Options(out=tmp_path, device="cpu"), lambda *_: None)
    done = made.judge(lambda *_: None)
    assert not done.result.lines
    assert UNCHANGED in done.path.read_text()
    assert UNCHANGED in str(same.table(done.result).caption)


def test_a_page_from_a_file_has_the_deviations_that_were_asked_for(kept: Results, tmp_path: Path) -> None:
    """Not the other lines of the file, nor what they lack."""
    source = Path(__file__).parents[2] / "docs" / "results" / "h200"
    pages = {}
    for name in ("bucketing", "cnn", "bit-flipping"):
        options = Options(out=tmp_path, source=source, scale="paper")
        (made,) = prepare(with_deviations(["dumbbell"], [name]), options, lambda *_: None)
        done = made.judge(lambda *_: None)
        labels = {line.rule.partition(" | ")[2] for line in done.result.lines}
        assert labels == ({"ours", name} if name != "bit-flipping" else set())
        assert list(done.result.troubles) == (["100 of 250 runs are not finished"] if name == "cnn" else [])
        pages[name] = done.path.read_text()
        assert WORDS[name] in pages[name]
    assert UNCHANGED in pages["bit-flipping"]
    assert not any(title in pages["bit-flipping"] for title in ("Networks", "squared distance"))


def test_together_are_the_deviations_that_were_asked_for() -> None:
    """Not all that are in the results: the row has both, one alone is level with what is shown for it."""
    kept = Path(__file__).parents[2] / "docs" / "results" / "h200" / "clipping-radius-as-released.json"
    seen = {}
    for asked in (["bit-flipping"], ["adaptive-radius"], ["adaptive-radius", "bit-flipping"]):
        experiment = AsReleased(figure("clipping-radius"), asked)
        table = experiment.comparison(Results.load(kept, experiment.name))
        rows = {(row[0], row[1]): dict(zip(table.header, row, strict=True)) for row in table.rows}
        assert list(table.header)[5:-1] == [name for name in DEVIATIONS if name in asked]
        row = seen[tuple(asked)] = rows["BF", "adaptive"]
        if len(asked) == 1:
            assert row["these together"] == row[asked[0]] is not None
            assert row["explained by"] == "–"
    together = {row["these together"] for row in seen.values()}
    assert len(together) == 3
