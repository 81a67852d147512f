"""Devices that are not what they seem."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from clippedgossip.devices import (
    MOST_KINDS,
    WAIT,
    CapturedWork,
    capturing,
    compiled,
    find_device,
    hides_tiles,
)
from clippedgossip.errors import RunError

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


@pytest.mark.parametrize(
    ("asked", "gpus", "found"), [("auto", 0, "cpu"), ("auto", 1, "cuda"), ("cuda:1", 2, "cuda:1")]
)
def test_a_device_is_found_by_its_name(
    asked: str, gpus: int, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, gpus)
    assert find_device(asked) == find_device(torch.device(found)) == torch.device(found)


@pytest.mark.parametrize(
    ("asked", "gpus", "said"),
    [
        ("cuda", 0, r"'cuda', but PyTorch finds no GPU here\ntake"),
        ("cuda:2", 2, "there are 2 GPUs; count from 0"),
    ],
)
def test_a_gpu_that_is_not_there_is_refused(
    asked: str, gpus: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, gpus)
    with pytest.raises(RunError, match=said):
        find_device(asked)


def pretend(monkeypatch: pytest.MonkeyPatch, gpus: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)


@pytest.mark.gpu
def test_work_that_cannot_be_captured_is_done_anew_and_said() -> None:
    total = torch.zeros(1, device="cuda")

    def work() -> None:
        total.add_(float(total.sum()) + 1)  # reads a value on the CPU

    captured = CapturedWork(work, lambda: [total])
    with pytest.warns(RuntimeWarning, match="a CUDA graph cannot hold these rounds"):
        captured()
    captured()
    assert not captured.replays
    assert float(total) == 3


@pytest.mark.gpu
def test_no_capture_ends_because_an_old_graph_is_destroyed_as_garbage() -> None:
    total = torch.zeros(1, device="cuda")

    def add() -> None:
        total.add_(1)

    old = CapturedWork(add, lambda: [total])
    old()
    held = [old]
    del old

    def work() -> None:
        add()
        if capturing():
            garbage: list[object] = [held.pop()]
            garbage.append(garbage)
            del garbage
            assert len([[number] for number in range(10_000)]) == 10_000  # makes Python look for garbage

    captured = CapturedWork(work, lambda: [total])
    captured()
    captured()
    assert captured.replays
    assert not held
    assert float(total) == 3


def test_a_user_who_waits_for_the_compiler_is_told_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        for _ in range(2):
            compiled(("of this test", rank), abs, told="Net")
    compiled(("of this test", "unnamed"), abs)
    assert capsys.readouterr().err == f"compiling Net for the GPU: {WAIT}\n"


def test_the_compiler_chooses_sums_by_rule_not_by_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a process whose cache is empty could choose another form, rounded otherwise."""
    given: dict[str, Any] = {}
    monkeypatch.setattr(torch, "compile", lambda function, **how: given.update(how) or function)
    compiled(("of this test", "by rule"), abs, options={"keep_output_stride": False})
    assert given["options"] == {"deterministic": True, "graph_partition": False, "keep_output_stride": False}


class Some:
    def __init__(self, number: int) -> None:
        self.number = number

    @torch.no_grad()
    def plus(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.number


def test_the_hundredth_kind_is_compiled_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """To PyTorch all methods under `no_grad` are one function that is compiled again and again."""
    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, options, **how: compile_(f, backend="eager", **how))
    before = counters["stats"]["unique_graphs"]
    for number in range(100):
        compiled(("of this test", number), Some(number).plus, dynamic=False)(torch.ones(3))
    assert counters["stats"]["unique_graphs"] - before == 100
    assert torch._dynamo.config.accumulated_recompile_limit >= MOST_KINDS


COMPILE = """
import torch
from torch._dynamo.utils import counters
from clippedgossip.devices import compiled
call = compiled("x", lambda x: (x.sin() * 3).cumsum(0))
call(torch.ones(7))
print(counters["aot_autograd"]["autograd_cache_hit"] + counters["inductor"]["fxgraph_cache_hit"])
"""


@pytest.mark.slow
def test_another_process_reuses_compiled_code(tmp_path: Path) -> None:
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    said = [
        subprocess.run(
            [sys.executable, "-c", COMPILE], env=environment, check=True, capture_output=True, text=True
        ).stdout
        for _ in range(2)
    ]
    assert [int(line) > 0 for line in said] == [False, True]
