"""Mirrors, and what happens when one fails."""

import socket
import threading
from pathlib import Path

import pytest

from clippedgossip.errors import DataError
from clippedgossip.tasks.datasets import load_spec
from clippedgossip.tasks.sources.fetch import fetch_spec
from tests.tasks.sources.tiny_data import IDX, Fault, Mirror, check_idx, kept, mirrored_spec, write


def test_a_mirror_is_asked_once_and_the_cache_afterwards(mirrors: list[Mirror], cache: Path) -> None:
    spec = mirrored_spec(*mirrors)
    seen: list[tuple[str, int, int | None]] = []
    done = fetch_spec(spec, progress=lambda *event: seen.append(event))
    assert set(done.origins) == set(IDX) == kept(cache)
    assert {label for label, sofar, total in seen if sofar == total} == {f"{name}.gz" for name in IDX}
    assert len(mirrors[0].requests) == 4
    assert fetch_spec(spec).origins == {}
    assert len(mirrors[0].requests) == 4
    assert mirrors[1].requests == []
    check_idx(load_spec(spec))


def test_a_broken_connection_is_resumed_where_it_broke(mirrors: list[Mirror], cache: Path) -> None:
    spec = mirrored_spec(mirrors[0])
    mirrors[0].fault = Fault.CUT
    with pytest.raises(DataError, match="bytes are kept"):
        fetch_spec(spec)
    assert mirrors[0].ranges()  # it resumed by itself, as long as bytes came
    parts = {path.name: path.stat().st_size for path in (cache / "tiny" / "downloads").iterdir()}
    assert all(size > 0 for size in parts.values())
    mirrors[0].fault, mirrors[0].requests = Fault.NONE, []
    fetch_spec(spec)
    assert set(mirrors[0].ranges()) == {f"bytes={size}-" for size in parts.values()}
    assert kept(cache) == set(IDX)
    check_idx(load_spec(spec))


@pytest.mark.parametrize("fault", [Fault.NO_RANGE, Fault.NONE])
def test_a_stale_part_costs_a_fresh_start_and_nothing_else(
    mirrors: list[Mirror], cache: Path, fault: Fault
) -> None:
    spec = mirrored_spec(mirrors[0])
    mirrors[0].fault = fault
    longest = max(item.size for item in spec.downloads)
    names = [f"{name}.gz.part" for name in IDX]
    write(
        cache / "tiny" / "downloads", dict(zip(names, [b"?", b"??", b"?" * longest, b"?" * 9], strict=True))
    )
    fetch_spec(spec)
    check_idx(load_spec(spec))


@pytest.mark.parametrize("fault", [Fault.WRONG, Fault.ABSENT])
def test_the_second_mirror_helps_out(mirrors: list[Mirror], fault: Fault) -> None:
    mirrors[0].fault = fault
    done = fetch_spec(mirrored_spec(*mirrors))
    assert len(mirrors[1].requests) == 4
    check_idx(load_spec(mirrored_spec(*mirrors)))
    assert set(done.origins.values()) == {"mirror"}


def test_too_many_bytes_are_cut_off(mirrors: list[Mirror]) -> None:
    mirrors[0].fault = Fault.LONG
    fetch_spec(mirrored_spec(mirrors[0]))
    check_idx(load_spec(mirrored_spec(mirrors[0])))


def test_wrong_bytes_never_reach_the_cache(mirrors: list[Mirror], cache: Path) -> None:
    mirrors[0].fault = Fault.WRONG
    with pytest.raises(DataError, match=r"4 of 4 files are missing(.|\n)*wrong digest(.|\n)*--from FOLDER"):
        fetch_spec(mirrored_spec(mirrors[0]))
    assert kept(cache) == {"downloads"}
    assert list((cache / "tiny" / "downloads").iterdir()) == []


def test_without_a_network_the_error_says_so_and_each_host_is_tried_once(
    mirrors: list[Mirror], tmp_path: Path, cache: Path
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        mirrors[0].url = f"http://127.0.0.1:{unused.getsockname()[1]}/"
    some = dict(list(IDX.items())[:1])
    write(tmp_path / "mine", some)
    with pytest.raises(
        DataError, match=r"3 of 4 files are missing\n  mirror: 127.0.0.1:\d+: Connection refused"
    ) as e:
        fetch_spec(mirrored_spec(mirrors[0]), folder=tmp_path / "mine")
    assert str(e.value).count("refused") == 1
    assert kept(cache) >= set(some)


def test_two_fetches_at_once_do_the_work_once(mirrors: list[Mirror]) -> None:
    spec = mirrored_spec(mirrors[0])
    threads = [threading.Thread(target=fetch_spec, args=(spec,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(mirrors[0].requests) == 4
    check_idx(load_spec(spec))
