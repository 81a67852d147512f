"""Walks through the code stay short: from the arguments to the first record, and to the claims."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RING = str(ROOT / "examples" / "ring.toml")


@pytest.mark.parametrize(
    ("command", "bound", "passed"),
    [
        (
            ["run", RING, "training.rounds=1"],
            30,
            {"cli/run.py", "records.py", "rules/clipped_gossip.py"},
        ),
        pytest.param(
            ["reproduce", "dumbbell", "--length", "0.01", "--seeds", "1"],
            45,
            {"cli/reproduce.py", "paper/dumbbell.py", "report/claims.py"},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["run", "reproduce"],
)
def test_a_walk_gets_no_longer(command: list[str], bound: int, passed: set[str]) -> None:
    """The bounds may only fall."""
    program = [sys.executable, str(ROOT / "tools" / "walk.py"), *command]
    done = subprocess.run(program, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *files, last = done.stdout.splitlines()
    assert passed <= set(files)
    assert last.startswith(f"{len(files)} files in which a function runs, ")
    assert len(files) <= bound, "\n".join(files)
