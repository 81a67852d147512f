"""Operating systems: what Linux alone has can be missing, and Windows is told that it is not supported."""

import subprocess
import sys
from pathlib import Path

import pytest

from clippedgossip.cli import main

COMMAND = [
    "run",
    str(Path(__file__).parents[1] / "examples" / "ring.toml"),
    "training.rounds=2",
    "--out",
    "runs",
]
RUN = f"""
from clippedgossip.cli import main
main({COMMAND!r})
"""
MACOS = """
import os, sys
import matplotlib.pyplot, networkx, numpy, scipy.sparse.csgraph, torch

for name in ("memfd_create", "sched_getaffinity", "sched_getscheduler", "sched_setscheduler", "sched_param"):
    delattr(os, name)
sys.platform = "darwin"

def no_proc(event, arguments):
    if event == "open" and str(arguments[0]).startswith("/proc"):
        raise FileNotFoundError(2, "No such file or directory", arguments[0])

sys.addaudithook(no_proc)
from clippedgossip.devices import usable_cores
assert usable_cores() == os.cpu_count()
"""
WINDOWS = """
import sys
sys.modules |= dict.fromkeys(("fcntl", "grp", "pwd", "resource", "termios"))
"""


def _python(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)


@pytest.mark.usefixtures("one_thread")
def test_a_run_needs_nothing_that_linux_alone_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = _python(MACOS + RUN, tmp_path)
    assert done.returncode == 0, done.stderr
    (records,) = tmp_path.glob("runs/*/records.jsonl")
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    with pytest.raises(SystemExit, match="0"):
        main(COMMAND)
    (same,) = here.glob("runs/*/records.jsonl")
    assert records.read_bytes() == same.read_bytes()


def test_windows_is_refused_in_two_lines(tmp_path: Path) -> None:
    done = _python(WINDOWS + RUN, tmp_path)
    assert done.returncode == 2
    first, second = done.stderr.splitlines()
    assert "Windows is not supported" in first
    assert "Windows Subsystem for Linux" in second


def test_rules_and_networks_need_no_locks(tmp_path: Path) -> None:
    code = "import clippedgossip as cg; cg.rules.ClippedGossip(1.0); cg.Network(cg.graphs.ring(nodes=5))"
    done = _python(WINDOWS + code, tmp_path)
    assert done.returncode == 0, done.stderr
