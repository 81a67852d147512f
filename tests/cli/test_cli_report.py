"""`clippedgossip report`."""

import json
from pathlib import Path

import typer
from typer.testing import CliRunner

from clippedgossip.cli.report import report
from clippedgossip.records import RunDirectory
from tests.report.pages import check_page, write_run
from tests.rounding import near


def command() -> typer.Typer:
    app = typer.Typer()
    app.command("report")(report)
    return app


def test_the_command_writes_the_page_and_a_summary(tmp_path: Path) -> None:
    runs = [str(write_run(tmp_path / "runs", rule=rule)) for rule in ("gossip", "clipped-gossip")]
    out = tmp_path / "report.html"
    done = CliRunner(env={"COLUMNS": "80", "TERM": "dumb"}).invoke(command(), [*runs, "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "clipped-gossip" in done.stdout
    assert done.stdout.endswith(f"wrote {out}\n")
    assert all(len(line) <= 80 for line in done.stdout.splitlines()[:-1])
    check_page(out.read_text())


def test_a_run_without_records_is_left_out_and_said(tmp_path: Path) -> None:
    path = write_run(tmp_path)
    waiting = RunDirectory.open(tmp_path, {"rule": "krum"}, "waiting").path
    out = tmp_path / "report.html"
    done = CliRunner().invoke(command(), [str(path), str(waiting), "--json", "--out", str(out)])
    assert done.exit_code == 0
    assert len(json.loads(done.stdout)["rows"]) == 1
    assert f"No records yet: {waiting.name}." in done.stderr


def test_a_run_that_failed_before_its_first_record_says_why(tmp_path: Path) -> None:
    path = write_run(tmp_path)
    failed = RunDirectory.open(tmp_path, {"rule": "krum"}, "failed")
    failed.write_failure("there are 10 classes")
    done = CliRunner().invoke(
        command(), [str(path), str(failed.path), "--out", str(tmp_path / "report.html")]
    )
    assert done.exit_code == 0
    assert f"Failed: {failed.path.name}. there are 10 classes" in done.stderr
    assert "No records yet" not in done.stderr


def test_a_run_that_diverged_is_named(tmp_path: Path) -> None:
    path = write_run(tmp_path)
    run = RunDirectory(path)
    run.write_summary({"accuracy": 0.1, "diverged": "node 3 holds NaN"})
    done = CliRunner().invoke(command(), [str(path), "--out", str(tmp_path / "page.html")])
    assert f"Diverged; the last record stands for the end: {path.name}" in done.stderr


def test_json_is_all_there_is_on_stdout(tmp_path: Path) -> None:
    path = write_run(tmp_path / "runs")
    out = tmp_path / "report.html"
    done = CliRunner().invoke(command(), [str(path), "--json", "--out", str(out)])
    printed = json.loads(done.stdout)
    assert printed["report"] == str(out)
    assert printed["rows"][0]["score"]["all"]["mean"] == near(0.9)
