"""The cache: damaged files, full disks."""

import os
import shutil
from pathlib import Path

import pytest

from clippedgossip.errors import DataError
from clippedgossip.tasks.datasets import load_spec
from clippedgossip.tasks.sources.fetch import fetch_spec, file_state, set_state
from tests.tasks.sources.tiny_data import IDX, Mirror, check_idx, idx_spec, kept, mirrored_spec, write


def test_a_half_written_cache_is_noticed_and_mended(
    mirrors: list[Mirror], cache: Path, tmp_path: Path
) -> None:
    spec = mirrored_spec(mirrors[0])
    assert set_state(cache / "tiny", spec) == "absent"
    fetch_spec(spec)
    assert set_state(cache / "tiny", spec) == "ready"
    victim, other = cache / "tiny" / spec.train[0].name, cache / "tiny" / spec.test[0].name
    victim.write_bytes(victim.read_bytes()[:100])
    (cache / "tiny" / ".left.123.tmp").write_bytes(b"from a killed process")
    assert file_state(cache / "tiny", spec.train[0]) == "damaged"
    assert set_state(cache / "tiny", spec) == "damaged"
    with pytest.raises(DataError, match=r"half written.*\nrun `clippedgossip data fetch tiny` to mend it"):
        load_spec(spec)
    untouched = other.stat().st_mtime_ns
    fetch_spec(spec)
    check_idx(load_spec(spec))
    assert other.stat().st_mtime_ns == untouched
    assert not list((cache / "tiny").glob(".*.tmp"))
    victim.unlink()
    assert set_state(cache / "tiny", spec) == "partial"


def test_a_full_disk_loses_nothing(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "mine", IDX)
    real, calls = os.fsync, []

    def fsync(handle: int) -> None:
        calls.append(handle)
        if len(calls) > 3:  # the file and its folder, once; then the second file fails
            raise OSError(28, "No space left on device")
        real(handle)

    monkeypatch.setattr("os.fsync", fsync)
    with pytest.raises(DataError, match=r"disk full: \d+ bytes do not fit in (.|\n)*XDG_CACHE_HOME"):
        fetch_spec(idx_spec(), folder=tmp_path / "mine")
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert len(kept(cache)) >= 1
    assert not list((cache / "tiny").glob(".*.tmp"))
    for file in idx_spec().files:
        assert file_state(cache / "tiny", file) in ("ready", "missing")
    fetch_spec(idx_spec(), folder=tmp_path / "mine")
    check_idx(load_spec(idx_spec()))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_disk_that_fills_up_during_a_download_is_not_taken_for_a_dead_mirror(
    mirrors: list[Mirror], cache: Path
) -> None:
    spec = mirrored_spec(*mirrors)
    part = write(cache / "tiny" / "downloads", {}) / f"{spec.train[0].name}.gz.part"
    part.symlink_to("/dev/full")
    with pytest.raises(DataError, match="disk full"):
        fetch_spec(spec)
    assert mirrors[1].requests == []
    part.unlink()
    fetch_spec(spec)
    check_idx(load_spec(spec))


def test_what_cannot_fit_is_refused_before_the_first_byte(
    mirrors: list[Mirror], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage._replace(free=10))
    with pytest.raises(DataError, match="disk full"):
        fetch_spec(mirrored_spec(mirrors[0]))
    assert mirrors[0].requests == []


def test_a_cache_that_cannot_be_made_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(DataError, match="cannot write to"):
        fetch_spec(idx_spec())


def test_a_cache_that_is_ready_is_not_written_to(tmp_path: Path, cache: Path) -> None:
    write(tmp_path / "mine", IDX)
    fetch_spec(idx_spec(), folder=tmp_path / "mine")
    lock = cache / "tiny" / ".lock"
    lock.unlink()
    lock.mkdir()  # nobody can open it to write, not even root
    assert fetch_spec(idx_spec()).origins == {}
    (cache / "tiny" / "train-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match="cannot write to"):
        fetch_spec(idx_spec())
