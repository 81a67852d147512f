"""Metrics for Prometheus: anybody who reaches the port may call, and takes little by it."""

import contextlib
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator

import pytest

from clippedgossip.peer import metrics_server
from clippedgossip.peer.metrics_server import CONNECTIONS
from clippedgossip.peer.peer_config import Address
from clippedgossip.peer.telemetry import Metrics


@pytest.fixture(params=["127.0.0.1", "localhost", "::1"])
def place(request: pytest.FixtureRequest) -> Iterator[Address]:
    metrics = Metrics(lambda: {"round": 7})
    try:
        yield metrics.serve(Address(request.param, 0))
    except OSError:
        pytest.skip("this machine has no IPv6")
    finally:
        metrics.close()


def asked(place: Address) -> str:
    with urllib.request.urlopen(f"http://{place}/metrics", timeout=20) as answer:
        return str(answer.read().decode())


def threads() -> int:
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


def test_metrics_are_served(place: Address) -> None:
    assert "clippedgossip_round 7.0" in asked(place)


@pytest.mark.parametrize("place", ["127.0.0.1"], indirect=True)
@pytest.mark.parametrize("first", [b"", b"GET /metrics HTTP/1.1\r\nX: ", b"GET /metrics HTTP/1.1\r\n\r\n"])
def test_idle_and_slow_connections_are_few_and_end(
    place: Address, first: bytes, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """They send nothing, half a request for ever, or do not read the answer."""
    monkeypatch.setattr(metrics_server, "LONGEST", 2.0)
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(socket.create_connection((place.host, place.port))) for _ in range(50)]
        for connection in idle:
            with contextlib.suppress(OSError):  # refused already
                connection.sendall(first)
        assert threads() <= CONNECTIONS
        if not first.endswith(b"\r\n\r\n"):
            with pytest.raises(OSError, match=r"503|reset|Broken pipe"):
                asked(place)
        until = time.monotonic() + 10
        while threads() and time.monotonic() < until:
            for connection in idle:
                with contextlib.suppress(OSError):
                    connection.sendall(first and b"a")
            time.sleep(0.1)
        assert not threads()
        assert "clippedgossip_round 7.0" in asked(place)
    assert not capfd.readouterr().err
