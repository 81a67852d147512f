"""Results to take away: frames, files for other tools, figures."""

import csv
import json
import re
from pathlib import Path

import pytest

import clippedgossip as cg
from clippedgossip.cli import main
from clippedgossip.errors import RunError
from clippedgossip.records import RunDirectory
from tests.report.pages import write_run
from tests.rounding import near


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for seed in range(2):
        write_run(tmp_path / "runs", seed=seed)
        write_run(tmp_path / "runs", rule="median", seed=seed)
    write_run(tmp_path / "runs" / "again", seed=0)
    return tmp_path / "runs"


def cli(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    return int(caught.value.code or 0)


def test_a_frame_has_a_row_for_each_record_of_each_run_once(runs: Path) -> None:
    frame = cg.results(runs)
    records = sum(1 for path in runs.glob("*/records.jsonl") for _ in path.open())
    assert len(frame) == records
    assert {"run", "state", "seed", "rule.name", "round", "accuracy", "accuracy clique A", "loss"} <= set(
        frame
    )
    assert sorted(set(frame["rule.name"])) == ["gossip", "median"]
    first = RunDirectory(next(path.parent for path in runs.glob("*/records.jsonl")))
    mine = frame[frame["run"] == first.path.name]
    assert list(mine["accuracy"]) == [record["accuracy"]["all"] for record in first.records()]


def test_csv_and_parquet_hold_the_frame(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pandas, _ = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    frame = cg.results(runs)
    assert cli("export", str(runs), "--out", str(runs / "all.csv"), "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"runs": 4, "to": str(runs / "all.csv")}
    with (runs / "all.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["accuracy"]) for row in rows] == list(frame["accuracy"])
    assert list(rows[0]) == list(frame.columns)
    assert cli("export", str(runs), "--to", "parquet", "--out", str(runs / "all.parquet")) == 0
    assert list(pandas.read_parquet(runs / "all.parquet")["loss"]) == list(frame["loss"])
    assert cli("export", str(runs), "--out", "/proc/no/where.csv") == 2
    assert "cannot write /proc/no/where.csv" in capsys.readouterr().err


def test_tensorboard_gets_every_number(runs: Path) -> None:
    pytest.importorskip("tensorboardX", reason="pip install 'clippedgossip[export]'")
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import RecordWriter  # noqa: F401  # its format is that of TensorBoard

    for _ in range(2):  # again: the old events go
        assert cli("export", str(runs), "--to", "tensorboard", "--out", str(runs / "board")) == 0
    folders = list((runs / "board").iterdir())
    assert len(folders) == 4
    (file,) = folders[0].iterdir()
    content, events = file.read_bytes(), []
    while content:  # length, its checksum, the event, its checksum
        size = int.from_bytes(content[:8], "little")
        events.append(Event.FromString(content[12 : 12 + size]))
        content = content[16 + size :]
    written = {
        (event.step, value.tag): value.simple_value
        for event in events
        for value in event.summary.value
        if value.tag == "accuracy"
    }
    records = RunDirectory(runs / folders[0].name).records()
    assert written == near({(r["round"], "accuracy"): r["accuracy"]["all"] for r in records})


def test_every_figure_is_there_in_three_formats_with_its_numbers(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = runs.parent / "figures"
    assert cli("report", str(runs), "--out", str(runs / "page.html"), "--figures", str(folder)) == 0
    names = {path.name for path in folder.iterdir()}
    stems = {name.rpartition(".")[0] for name in names}
    assert {"accuracy-1", "worst-accuracy-1", "consensus-distance-1", "loss-1", "clipped-1"} <= stems
    assert names == {f"{stem}.{suffix}" for stem in stems for suffix in ("svg", "pdf", "png", "csv")}
    assert (folder / "loss-1.pdf").read_bytes().startswith(b"%PDF")
    assert (folder / "loss-1.png").read_bytes().startswith(b"\x89PNG")
    with (folder / "loss-1.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["line"] for row in rows} == {"gossip", "median"}
    assert f"wrote {len(names)} files" in capsys.readouterr().out


def test_a_plot_has_its_data_and_shows_in_a_notebook(runs: Path) -> None:
    pytest.importorskip("pandas")
    (first, *_), losses = cg.plot(runs), cg.plot(runs, "loss")
    frame = cg.results(runs)
    mean = frame[frame["rule.name"] == "gossip"].groupby("round")["loss"].mean()
    mine = losses[0].data[losses[0].data["line"] == "gossip"].set_index("round")["mean"]
    assert mine.to_dict() == near(mean.to_dict())
    assert "<svg" in first._repr_html_()
    assert max(len(repr(plot)) for plot in (first, *losses)) < 200
    assert first.save(runs / "one.png").stat().st_size > 1000
    with pytest.raises(RunError, match="give a file ending in"):
        first.save(runs / "one.jpeg")
    with pytest.raises(RunError, match="unknown measure 'los'; did you mean 'loss'"):
        cg.plot(runs, "los")


def test_the_blocks_of_the_document_run(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    document = Path(__file__).parents[2] / "docs" / "export.md"
    monkeypatch.chdir(runs.parent)
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", document.read_text(), re.S):
        exec(block, names)
    out = capsys.readouterr().out
    assert "begin" in out
    assert "accuracy/clique A" in out
    assert (runs.parent / "accuracy.pdf").exists()
