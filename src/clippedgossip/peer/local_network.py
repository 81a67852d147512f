"""A whole network on one machine: write its folders, start its peers as processes, stop them cleanly."""

import contextlib
import json
import logging
import multiprocessing
import os
import random
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier
from pathlib import Path
from types import FrameType
from typing import Any

from clippedgossip import own
from clippedgossip.errors import PeerError, UserError, tell, unknown_name
from clippedgossip.files import write_atomic
from clippedgossip.peer import identity
from clippedgossip.peer import peer_config as configs
from clippedgossip.peer.peer_config import Address, Config, Neighbour
from clippedgossip.peer.peer_folder import LAST_START, in_use, mark_of_last_start, peer_folders
from clippedgossip.peer.round_neighbours import schedule_thing
from clippedgossip.peer.telemetry import STATUS_FILE, read_status
from clippedgossip.settings import RuleConfig

log = logging.getLogger(__name__)
NETWORK_FILE = "network.json"
_PRELOADED = [
    "torch",
    "sympy",  # PyTorch imports it for `vmap`
    "prometheus_client",
    "clippedgossip.tasks",
    "clippedgossip.peer.loop",
]
"""What the process from which peers are forked imports once. No gRPC: it must not be forked."""
_PORTS = range(20000, 32000)
"""Below the range from which the system hands out ports by itself."""


def write_network(edges: Iterable[tuple[int, int]], nodes: int, out: Path, template: Config) -> list[Path]:
    """One folder per peer: identity, config, neighbours. Peers are named 0 … nodes−1."""
    if out.exists() and any(out.iterdir()):
        raise PeerError(f"{out} is not empty; name a new folder")
    identities = [identity.create() for _ in range(nodes)]
    addresses = [Address("127.0.0.1", port) for port in free_ports(nodes)]
    around: list[list[int]] = [[] for _ in range(nodes)]
    for a, b in edges:
        around[a].append(b)
        around[b].append(a)
    folders = []
    rule = RuleConfig.from_value(template.rule, template.folder)
    schedule = schedule_thing(template.network, template.folder)
    origins = [*template.data.origins, *template.model.origins, *template.training.origins, *rule.origins]
    origins += [] if schedule is None else schedule.origins
    for i, me in enumerate(identities):
        folder = out / str(i)
        identity.save(me, folder)
        (folder / "neighbours").mkdir()
        known = []
        for j in sorted(around[i]):
            known.append(Neighbour(name=str(j), address=addresses[j], fingerprint=identities[j].fingerprint))
            (folder / "neighbours" / f"{j}.pem").write_bytes(identities[j].certificate.pem)
        mine = replace(template, name=str(i), bind=addresses[i], neighbours=tuple(known), nodes=nodes, node=i)
        (folder / configs.CONFIG_FILE).write_text(configs.dump(mine))
        for origin in origins:
            own.copy(origin, folder)
        folders.append(folder)
    write_atomic(out / NETWORK_FILE, json.dumps({"run": template.run, "peers": nodes}))
    return folders


def read_network(net: Path) -> list[Config]:
    """The configs of all peers in a network's folder."""
    folders = peer_folders(net)
    if folders == [net]:
        raise PeerError(f"{net} is the folder of one peer\nstart it: clippedgossip peer start {net}")
    return [configs.load(folder) for folder in folders]


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Ports nobody listens on just now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found: list[int] = []
    draw = random.SystemRandom()
    for _ in range(100 * count):
        if len(found) == count:
            return found
        port = draw.choice(_PORTS)
        with socket.socket(family) as probe, contextlib.suppress(OSError):
            probe.bind((host, port))
            if port not in found:
                found.append(port)
    raise PeerError(
        f"no {count} free ports between {_PORTS.start} and {_PORTS.stop} on {host}\n"
        "stop other programs, or use fewer peers"
    )


class LocalNetwork:
    """Peers as processes, forked from a server process that has torch loaded, so that each starts quickly."""

    def __init__(self, configs: Sequence[Config], *, clocks: Mapping[str, float] | None = None) -> None:
        """`clocks`: peers whose clock jumps by so many seconds once they run; for drills."""
        self.configs = {config.name: config for config in configs}
        self.processes: dict[str, BaseProcess] = {}
        self._clocks = dict(clocks or {})
        self._together: Barrier | None = None
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(_PRELOADED)

    def __enter__(self) -> "LocalNetwork":
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self, *names: str) -> None:
        """Starts these peers, or all; these begin together, once the last of them is up."""
        _start_server()
        if not names:
            self._together = self._context.Barrier(len(self.configs))
        for name in names or tuple(self.configs):
            config = self.configs[name]
            (config.folder / STATUS_FILE).unlink(missing_ok=True)
            together = None if names else self._together
            packed = configs.dump(config), str(config.folder)
            arguments = (packed, self._clocks.get(name, 0.0), together)
            process = self._context.Process(target=_child, args=arguments, daemon=True)
            process.start()
            self.processes[name] = process

    def alive(self) -> list[str]:
        return [name for name, process in self.processes.items() if process.is_alive()]

    def wait(self, timeout: float | None = None) -> bool:
        """Until all have ended; False when the time is over before."""
        until = None if timeout is None else time.monotonic() + timeout
        for process in self.processes.values():
            process.join(None if until is None else max(until - time.monotonic(), 0.0))
        return not self.alive()

    def stop(self) -> None:
        """Asks everyone to end; whoever does not, is killed."""
        for process in self.processes.values():
            if process.is_alive():
                process.terminate()
        if self._together is not None:
            self._together.abort()
        if not self.wait(10.0):
            for process in self.processes.values():
                process.kill()
            self.wait(5.0)

    def status(self) -> dict[str, dict[str, Any]]:
        """What each peer last said of itself."""
        found = {name: read_status(config.folder) for name, config in self.configs.items()}
        return {name: status for name, status in found.items() if status is not None}

    def rows(self) -> list[dict[str, Any]]:
        """One row per peer: `peer`, `rounds`, `metric`, `score`, `missing`, `rejected`."""
        status, rows = self.status(), []
        for name, config in self.configs.items():
            last = {"round": 0, "metric": None, "score": None, "missing": 0, "rejected": 0}
            last |= status.get(name, {})
            row = {"peer": name, "rounds": last["round"]}
            row |= {key: last[key] for key in ("metric", "score", "missing", "rejected")}
            rows.append(row | ({"misbehaves": config.misbehave} if config.misbehave else {}))
        return rows


def prepared(net: Path, *, rounds: int | None, misbehave: Mapping[str, str], resume: bool) -> list[Config]:
    """The configs for one `peer up`: rounds, Byzantine peers, and a run of its own unless it goes on."""
    read = read_network(net)
    names = [config.name for config in read]
    for config in read:
        if in_use(config.folder):
            raise PeerError(
                f"a peer is running in {config.folder} already; nothing was changed\nstop it first"
            )
    for name in misbehave:
        if name not in names:
            raise PeerError(unknown_name("peer", name, names))
    mark = mark_of_last_start(net) if resume else f"-{int(time.time()):x}{os.getpid():x}"
    if mark is None:
        raise PeerError(f"{net} was never started: nothing to go on with; leave --resume out")
    changed = [
        replace(
            config.until(rounds),
            run=config.run + mark,
            misbehave=misbehave.get(config.name, config.misbehave),
        )
        for config in read
    ]
    for config in changed:
        configs.check(config)
    write_atomic(net / LAST_START, mark)
    return changed


@contextlib.contextmanager
def terminating() -> Iterator[None]:
    """Turns SIGTERM into a normal exit, so that processes end and what was mounted is unmounted. After the
    first signal, others (a second Ctrl-C) are ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        for either in previous:
            signal.signal(either, signal.SIG_IGN)
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    previous = {number: signal.signal(number, leave) for number in (signal.SIGINT, signal.SIGTERM)}
    if previous[signal.SIGINT] == signal.SIG_IGN:  # as it is for the background jobs of a shell
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)


@contextlib.contextmanager
def running(configs: Sequence[Config]) -> Iterator[LocalNetwork]:
    """All peers of a network, running; none is left behind, whatever happens."""
    with terminating(), LocalNetwork(configs) as started:
        started.start()
        yield started


def _start_server() -> None:
    """Starts the process from which peers are forked. It ignores Ctrl-C while it imports: it would print a
    long traceback."""
    if threading.current_thread() is not threading.main_thread():
        return
    heard = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        forkserver.ensure_running()
    finally:
        signal.signal(signal.SIGINT, heard)


def _jump_clock(by: float) -> None:
    """Makes `time.time()` jump by so many seconds, three seconds after the peer has started."""
    real, start = time.time, time.monotonic()
    time.time = lambda: real() + (by if time.monotonic() - start > 3 else 0.0)


def _child(packed: tuple[str, str], clock: float, together: Barrier | None) -> None:
    """The life of a peer process."""
    import torch

    from clippedgossip.peer.loop import run_peer
    from clippedgossip.peer.telemetry import log_to

    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_die_with, args=(parent,), daemon=True).start()
    torch.set_num_threads(1)
    if clock:
        _jump_clock(clock)
    text, folder = packed
    config = configs.parse(text.encode(), folder=Path(folder))
    log_to(config.folder / "log.jsonl")
    warnings.showwarning = lambda message, *_: tell(f"note: peer {config.name}: {message}")

    def wait_for_all() -> None:
        """With many peers on few cores, the first would otherwise begin before the last one listens."""
        from clippedgossip.peer.transport import rpc  # noqa: F401  # takes a while: gRPC

        if together is not None:
            with contextlib.suppress(threading.BrokenBarrierError):
                together.wait(config.deadlines.join)

    try:
        outcome = run_peer(config, ready=wait_for_all)
        sys.exit(0 if outcome.saved else 1)
    except Exception as error:  # the user's own code may raise anything; an error of ours is raised again
        said = str(error) if isinstance(error, UserError) else own.blamed(error)
        log.error("ended by an error", extra={"error": said or repr(error)})
        if said is None:
            raise
        tell(f"error: peer {config.name}: {said}")
        sys.exit(2)
    finally:
        if together is not None:
            together.abort()  # where this one failed, the others need not wait for it


def _die_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)
