import dataclasses
import json
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from clippedgossip.decode import from_json
from clippedgossip.errors import RunError
from clippedgossip.files import canonical, replacing, to_line, write_atomic, write_tensors
from clippedgossip.records import Round, RunDirectory, State, run_name

CONFIG = {"rule": "clipped-gossip", "radius": 1.0, "seed": 0}

numbers = st.none() | st.floats(allow_nan=False, allow_infinity=False)
edges = st.tuples(st.integers() | st.text(), st.text(), st.floats(0, 1)).map(list)
rounds = st.builds(
    Round,
    round=st.integers(0, 10**9),
    accuracy=st.none() | st.dictionaries(st.text(), numbers),
    loss=numbers,
    consensus_distance=numbers,
    clipped_edges=st.none()
    | st.lists(st.tuples(st.integers() | st.text(), st.text(), st.floats(0, 1)).map(list)),
    peer=st.none() | st.text(),
    missing=st.none() | st.integers(0, 100),
    extra=st.dictionaries(st.text(min_size=1).map(lambda name: f"x {name}"), numbers),
).filter(lambda record: record.peer is None or record.consensus_distance is None)  # no peer can know Ξ


def filled(root: Path, count: int) -> RunDirectory:
    run = RunDirectory.open(root, CONFIG, "run")
    for number in range(count):
        run.append(Round(round=number, loss=1 / (number + 3)))
    return run


@given(rounds)
def test_a_round_survives_its_line(record: Round) -> None:
    line = to_line(record.to_json())
    assert line.count("\n") == 1
    assert line.endswith("\n")
    assert Round.from_json(json.loads(line)) == record


@given(rounds)
def test_metrics_are_what_was_measured_by_name(record: Round) -> None:
    assert all(record.to_json()[name] is value for name, value in record.metrics.items())
    assert record.to_json().keys() - record.metrics.keys() <= {"round", "peer"}
    assert Round(round=1, accuracy={"all": 0.5}, loss=0.1).metrics == {"accuracy": {"all": 0.5}, "loss": 0.1}


@given(st.floats())
def test_what_is_not_finite_becomes_null_and_the_rest_is_exact(value: float) -> None:
    read = json.loads(to_line({"round": 0, "loss": value, "deep": {"x": [value]}}))
    expected = value if math.isfinite(value) else None
    assert read == {"round": 0, "loss": expected, "deep": {"x": [expected]}}


def test_tensors_and_arrays_are_plain_numbers() -> None:
    record = {
        "round": np.int64(3),
        "a": torch.tensor(0.5),
        "b": np.float32(0.25),
        "c": np.array([1.0, math.nan]),
    }
    assert to_line(record) == '{"round": 3, "a": 0.5, "b": 0.25, "c": [1.0, null]}\n'


def test_what_json_cannot_hold_is_named() -> None:
    with pytest.raises(RunError, match="of type object"):
        to_line({"round": 0, "x": object()})


def test_a_record_without_a_round_is_refused() -> None:
    with pytest.raises(RunError, match="'round' is None; it must be a whole number"):
        Round.from_json({"loss": 1.0})


@pytest.mark.parametrize(
    ("entry", "must"),
    [
        ({"loss": "<b>"}, "'<b>'; it must be a number"),
        ({"loss": [1.0]}, "it must be a number"),
        ({"accuracy": 0.5}, "it must be a section"),
        ({"accuracy": {"all": "x"}}, "it must be a section"),
        ({"clipped_edges": 3}, "it must be a list"),
        ({"clipped_edges": [["a", "b"]]}, r"\['a', 'b'\]; it must be \[from, to, fraction\]"),
        ({"clipped_edges": [["a", "b", None]]}, r"it must be \[from, to, fraction\]"),
        ({"components": [1]}, "it must be a list"),
        ({"missing": 0.5}, "it must be a whole number"),
        ({"peer": 3}, "it must be text"),
        ({"metric": 3}, "it must be text"),
        ({"metric": "f1", "f1": 0.5}, "it must be a section"),
        ({"metric": "f1", "worst_f1": "x"}, "it must be a number"),
    ],
)
def test_a_record_of_other_types_is_refused(tmp_path: Path, entry: dict[str, Any], must: str) -> None:
    run = RunDirectory.open(tmp_path, {}, "run")
    run.append({"round": 1, **entry})
    with pytest.raises(RunError, match=rf"a record's {list(entry)[-1]} (is|has) .*{must}.*\n.*delete"):
        list(run.rounds())


@pytest.mark.parametrize("text", ["\ud800", "\udc00 \ud800"])
def test_half_of_a_pair_is_no_text(tmp_path: Path, text: str) -> None:
    """JSON can say it, and nothing can write it."""
    run = RunDirectory.open(tmp_path, {}, "run")
    (run.path / "environment.json").write_text(json.dumps({"device": text}))
    with pytest.raises(RunError, match=r"environment.json: .*surrogates not allowed\n"):
        run.environment  # noqa: B018  # a property
    assert from_json(json.dumps({"device": "\U0001f600"})) == {"device": "\U0001f600"}


def test_what_was_spoilt_is_named_with_what_to_do(tmp_path: Path) -> None:
    run = RunDirectory.open(tmp_path, {}, "run")
    run.records_path.write_text('{"round": "x"}\n{"round": 1}\n')
    run.summary_path.write_text("{")
    for read, name in ((lambda: list(run.rounds()), "records.jsonl"), (lambda: run.state, "summary.json")):
        with pytest.raises(RunError, match=rf"{name}: .*\nleave .* out, or delete it and run it again"):
            read()


def test_the_name_depends_on_the_config_alone() -> None:
    assert run_name(CONFIG, "run") == run_name(dict(reversed(CONFIG.items())), "run")
    assert run_name(CONFIG, "run") != run_name(CONFIG | {"seed": 1}, "run")
    assert run_name({"radius": math.inf}, "run") != run_name({"radius": None}, "run")
    assert run_name({"shape": (1, 2)}, "run") == run_name({"shape": [1, 2]}, "run")
    assert run_name({"a": 1}, "run") == "run-b606a40d68ae"  # frozen: a change would orphan every finished run


def test_a_config_may_hold_frozen_dataclasses() -> None:
    @dataclasses.dataclass(frozen=True)
    class Inner:
        radius: float = 1.0

    assert json.loads(canonical({"rule": Inner()})) == {"rule": {"radius": 1.0}}


def test_opening_twice_finds_the_same_run(tmp_path: Path) -> None:
    run = filled(tmp_path, 3)
    again = RunDirectory.open(tmp_path, CONFIG, "run")
    assert again == run
    assert [record.round for record in again.rounds()] == [0, 1, 2]
    assert again.config == CONFIG
    assert set(again.environment) == {"format", "clippedgossip", "python", "torch", "platform", "device"}


def test_a_config_changed_by_hand_is_refused(tmp_path: Path) -> None:
    run = filled(tmp_path, 1)
    run.config_path.write_text("{}")
    with pytest.raises(RunError, match="was changed"):
        RunDirectory.open(tmp_path, CONFIG, "run")


@pytest.mark.parametrize("torn", ['{"round": 3', '{"round": 3}', '{"rou\n', "\0\0\0", "\n"])
def test_a_torn_last_line_is_dropped(tmp_path: Path, torn: str) -> None:
    run = filled(tmp_path, 3)
    with run.records_path.open("a") as file:
        file.write(torn)
    assert [record.round for record in run.rounds()] == [0, 1, 2]
    assert run.truncate_to(10) == 2
    run.append(Round(round=3, loss=1 / 6))
    assert run.records_path.read_bytes() == filled(tmp_path / "whole", 4).records_path.read_bytes()


def test_append_mends_a_torn_line_by_itself(tmp_path: Path) -> None:
    run = filled(tmp_path, 1)
    with run.records_path.open("a") as file:
        file.write('{"round": 1, "lo')
    run.append(Round(round=1))
    assert [record.round for record in run.rounds()] == [0, 1]


def test_a_corrupt_line_in_the_middle_is_an_error(tmp_path: Path) -> None:
    run = filled(tmp_path, 1)
    with run.records_path.open("a") as file:
        file.write('rubbish\n{"round": 1}\n')
    with pytest.raises(RunError, match="line 2 is not a record"):
        list(run.records())


@given(st.integers(-1, 6), st.integers(0, 40))
def test_a_resumed_run_has_the_bytes_of_an_uninterrupted_one(checkpoint: int, torn: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        whole = filled(Path(folder) / "whole", 7).records_path.read_bytes()
        run = filled(Path(folder) / "killed", 7)
        os.truncate(run.records_path, max(0, len(whole) - torn))
        last = run.truncate_to(checkpoint)
        for number in range(0 if last is None else last + 1, 7):
            run.append(Round(round=number, loss=1 / (number + 3)))
        assert run.records_path.read_bytes() == whole


def test_truncating_takes_the_summary_back(tmp_path: Path) -> None:
    run = filled(tmp_path, 3)
    run.write_summary({"accuracy": 0.5})
    assert run.truncate_to(2) == 2
    assert run.finished
    assert run.truncate_to(1) == 1
    assert not run.finished


def test_a_run_goes_through_its_states(tmp_path: Path) -> None:
    run = RunDirectory.open(tmp_path, CONFIG, "run")
    states: list[State] = [run.state]
    with run.lock():
        states.append(run.state)
        run.append(Round(round=0))
    states.append(run.state)
    run.write_failure("the loss is not finite")
    assert run.failure == "the loss is not finite"
    states.append(run.state)
    run.write_summary({"accuracy": math.nan})
    states.append(run.state)
    assert run.summary == {"accuracy": None}
    assert not run.failure_path.exists()
    run.clear()
    states.append(run.state)
    assert states == ["new", "running", "stopped", "failed", "finished", "new"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (None, "does not exist"),
        ([], "it has no config.json and records.jsonl"),
        (["records.jsonl"], "it has no config.json"),
        (["config.json"], "has no records yet"),
        (["config.json", "records.jsonl"], "has no records yet"),
    ],
)
def test_what_is_not_a_run_says_what_is_missing(
    tmp_path: Path, files: list[str] | None, message: str
) -> None:
    path = tmp_path / "run"
    if files is not None:
        path.mkdir()
        for name in files:
            (path / name).touch()
    with pytest.raises(RunError, match=message):
        RunDirectory.existing(path)


def test_only_one_process_runs_a_run_and_a_killed_one_lets_go(tmp_path: Path) -> None:
    run = RunDirectory.open(tmp_path, CONFIG, "run")
    program = f"""
        import sys, time
        from pathlib import Path
        from clippedgossip.records import RunDirectory
        run = RunDirectory(Path({str(run.path)!r}))
        lock = run.lock()
        (run.path / ".checkpoint.safetensors.0000.tmp").touch()
        print("locked", flush=True)
        time.sleep(60)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True
    ) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "locked\n"
            assert run.running
            assert run.try_lock() is None
            with pytest.raises(RunError, match="another process"):
                run.lock()
        finally:
            other.send_signal(signal.SIGKILL)
            other.wait()
    assert not run.running
    with run.lock():
        assert not list(run.path.glob(".*.tmp"))


def _locks(
    path: Path, queue: "multiprocessing.Queue[bool]", barrier: "multiprocessing.synchronize.Barrier"
) -> None:
    barrier.wait()
    lock = RunDirectory(path).try_lock()
    queue.put(lock is not None)
    barrier.wait()


def test_of_many_processes_one_gets_the_lock(tmp_path: Path) -> None:
    run = RunDirectory.open(tmp_path, CONFIG, "run")
    context = multiprocessing.get_context("fork")
    queue, barrier = context.Queue(), context.Barrier(6)
    processes = [context.Process(target=_locks, args=(run.path, queue, barrier)) for _ in range(6)]
    for process in processes:
        process.start()
    assert sorted(queue.get(timeout=30) for _ in processes) == [False] * 5 + [True]
    for process in processes:
        process.join()


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    """A file size limit stands in for the disk: the write that crosses it is cut short, like ENOSPC."""
    program = f"""
        import resource
        from pathlib import Path
        from clippedgossip.errors import RunError
        from clippedgossip.records import Round, RunDirectory
        run = RunDirectory.open(Path({str(tmp_path)!r}), {CONFIG!r}, "run")
        run.append(Round(round=0, loss=0.5))
        run.append(Round(round=1, loss=0.5))
        with run.writing_checkpoint() as path:
            path.write_bytes(b"old")
        resource.setrlimit(resource.RLIMIT_FSIZE, (70, 70))
        for attempt in (
            lambda: run.append(Round(round=2, loss=0.123456789)),
            lambda: run.write_summary({{"text": "x" * 100}}),
            lambda: checkpoint(),
        ):
            try:
                attempt()
            except RunError as error:
                assert "cannot write" in str(error) and "free space" in str(error)
                assert "File too large" in str(error)
                print("refused")
    """.replace(
        "        for attempt",
        """        def checkpoint():
            import torch
            from clippedgossip.files import write_tensors
            with run.writing_checkpoint() as path:
                write_tensors(path, {"x": torch.zeros(100)}, {})
        for attempt""",
    )
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["refused"] * 3, done.stderr
    run = RunDirectory(tmp_path / run_name(CONFIG, "run"))
    assert [record.round for record in run.rounds()] == [0, 1]
    assert run.records_path.read_bytes().endswith(b"\n")
    assert run.checkpoint_path.read_bytes() == b"old"
    assert not run.finished
    assert not list(run.path.glob(".*.tmp"))


def test_a_folder_that_cannot_be_made_is_a_user_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"cannot write .*file.*\n.*another folder"):
        RunDirectory.open(tmp_path / "file", CONFIG, "run")


def test_what_a_link_names_is_written_and_pipes_stay_pipes(tmp_path: Path) -> None:
    real, link, pipe = (tmp_path / name for name in ("real", "link", "pipe"))
    real.write_text("old")
    link.symlink_to("real")
    write_atomic(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_atomic(pipe, "through")
    assert os.read(reader, 100) == b"through"
    os.close(reader)
    assert pipe.is_fifo()


def test_an_atomic_write_is_all_or_nothing(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_atomic(path, "old")
    path.chmod(0o640)
    with suppress(KeyboardInterrupt), replacing(path) as temporary:
        temporary.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    write_atomic(path, b"new")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("new", 0o640)
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]


def test_tensors_are_written_into_the_file_that_is_named(tmp_path: Path) -> None:
    """A file beside it, renamed at the end, would stay where a process is killed, and have another mode."""
    path, pipe = tmp_path / "tensors", tmp_path / "pipe"
    path.touch(0o640)
    file = path.stat()
    dtypes = (
        torch.float32,
        torch.float64,
        torch.bfloat16,
        torch.complex64,
        torch.int64,
        torch.uint8,
        torch.bool,
    )
    tensors = {f"{place} é": torch.arange(3).to(dtype) for place, dtype in enumerate(dtypes)}
    tensors |= {"one": torch.tensor(3), "none": torch.empty(0, 4)}
    write_tensors(path, tensors, {"round": "3"})
    assert (path.stat().st_ino, path.stat().st_mode) == (file.st_ino, file.st_mode)
    read = load_file(path)
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor)
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_tensors(pipe, tensors, {"round": "3"})
    assert os.read(reader, 10_000) == path.read_bytes()
    os.close(reader)
    assert pipe.is_fifo()


def test_a_peers_old_record_is_read_under_its_new_name() -> None:
    """A peer knows the distance to what it received, not Ξ; version 0.1 gave both one name."""
    old = Round.from_json({"round": 3, "peer": "ann", "consensus_distance": 0.5})
    assert old.neighbour_distance == 0.5
    assert old.consensus_distance is None
    simulated = Round.from_json({"round": 3, "consensus_distance": 0.5})
    assert simulated.consensus_distance == 0.5
    assert Round.from_json(old.to_json()) == old
