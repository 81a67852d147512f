"""Devices that are not what they seem."""

import os
import subprocess
import sys

import pytest

from clippedgossip.devices import hides_tiles

CPU = "processor\t: 0\nmodel name\t: Some CPU\ncpuid level\t: {level}\nwp\t\t: yes\nflags\t\t: {flags}\n"


@pytest.mark.parametrize(
    ("level", "flags", "hidden"),
    [
        (32, "fpu amx_bf16 amx_tile amx_int8", False),
        (28, "fpu amx_bf16 amx_tile amx_int8", True),
        (28, "fpu avx512f", False),
        (13, "fpu", False),
    ],
)
def test_tiles_of_unknown_size_are_noticed(level: int, flags: str, hidden: bool) -> None:
    assert hides_tiles(CPU.format(level=level, flags=flags)) == hidden


def test_a_cpu_of_another_kind_hides_nothing() -> None:
    assert not hides_tiles("processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd\n")


def test_products_in_bfloat16_end_no_process() -> None:
    """In a process of its own: what goes wrong here ends it."""
    code = (
        "import torch, clippedgossip.devices\nx = torch.ones(64, 64).bfloat16()\nassert (x @ x == 64).all()"
    )
    environment = {name: value for name, value in os.environ.items() if name != "ONEDNN_MAX_CPU_ISA"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr or f"ended by signal {-done.returncode}"
