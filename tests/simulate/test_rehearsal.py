"""Some of the tests for a GPU, rehearsed without one in `make test`; `make rehearse` runs the others too."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
CHOSEN = (
    "test_training_agrees_with_the_cpu[mlp-rule0] or test_what_is_compiled_is_found_right[cnn-float32] or "
    "test_attacked_training_agrees_with_the_cpu[dissensus] or test_a_module_of_one_s_own or "
    "(captured_once and Median and phases and edges) or (near_consensus and few and geometric)"
)
TRITON = importlib.util.find_spec("triton") is not None or (Path(sys.prefix) / "triton").is_dir()


pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: it runs these tests itself"),
    pytest.mark.skipif(torch.version.cuda is not None, reason="needs PyTorch's build for CPUs"),
    pytest.mark.skipif(not TRITON, reason="needs Triton, which `make test` installs"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs the compiler g++"),
]


def rehearse(plugin: str, *arguments: str) -> None:
    plugins = ["-p", f"tests.rehearsal.{plugin}", "-p", "no:xdist", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, "-q", "--show-capture=no", *arguments],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout, done.stdout


@pytest.mark.timeout(900)  # 45 s of computing, on one of three processes of a machine that may be busy
def test_the_code_for_a_gpu_gives_what_the_code_for_a_cpu_gives() -> None:
    rehearse("plugin", "tests/simulate/test_gpu.py", "-k", CHOSEN)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_gpu_gets_machine_code() -> None:
    rehearse("hopper", "tests/rehearsal/machine_code.py", "-k", "cnn and bfloat16 or optimizer or rules")
