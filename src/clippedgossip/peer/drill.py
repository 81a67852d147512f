"""A fire drill: a network of real processes learns while one fault after another is done to it."""

import contextlib
import os
import signal
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from clippedgossip.errors import PeerError
from clippedgossip.peer import identity
from clippedgossip.peer.config import Address, Config, Deadlines, Limits, Training
from clippedgossip.peer.launch import Crowd, free_ports, read_network, write_network
from clippedgossip.peer.memory import Memory
from clippedgossip.peer.proxy import Proxy

DEADLINES = Deadlines(least=1.0, most=4.0, join=20.0, linger=3.0)


class Fault(StrEnum):
    """Everything that is done to the network; every member really fires."""

    NONE = "none"
    KILL = "SIGKILL and restart"
    STOP = "SIGSTOP for three deadlines"
    RESET = "connection reset in mid-message"
    GARBAGE_BYTES = "garbage bytes on the port"
    NO_CERTIFICATE = "TLS client without certificate"
    FOREIGN_CERTIFICATE = "TLS client with a foreign certificate"
    OVERSIZE = "10 GB announced"
    DRIP = "one byte a second"
    REPLAY = "replayed rounds"
    EQUIVOCATION = "two models for one round"
    NAN = "NaN"
    WRONG_SHAPE = "wrong shape"
    GARBAGE = "garbage messages"
    CONNECTION_FLOOD = "flood of connections"
    MESSAGE_FLOOD = "flood of messages"
    FULL_DISK = "full disk for checkpoints"
    CLOCK_JUMP = "clock jumps by a year"
    PARTITION = "partition that heals"


LIES = {
    Fault.OVERSIZE: "oversize",
    Fault.DRIP: "stalling",
    Fault.REPLAY: "replay",
    Fault.EQUIVOCATION: "equivocation",
    Fault.NAN: "nan",
    Fault.WRONG_SHAPE: "wrong-shape",
    Fault.GARBAGE: "garbage",
    Fault.MESSAGE_FLOOD: "flooding",
}


@dataclass(frozen=True, kw_only=True)
class Result:
    """How the honest peers came through."""

    fault: Fault
    fired: bool
    """Whether the fault left its trace: it was not skipped or too late."""
    ended_badly: tuple[str, ...]
    accuracy: float
    """Mean over the honest peers."""
    worst: float
    rounds: int
    """Of the honest peer that got least far."""
    missing: int
    rejected: int
    overrun: float
    """By how many seconds an exchange exceeded its deadline, at worst."""
    growth: float
    """Memory: by how many MB an honest peer kept growing, at worst."""
    peak: float
    """Memory: the most MB an honest peer ever held."""
    seconds: float


@dataclass
class Drill:
    """One network under one or more faults."""

    faults: Sequence[Fault]
    peers: int = 8
    rounds: int = 200
    model: str = "mlp"
    victim: str = "1"
    """To whom faults happen from outside; the liar, where one is needed, is the last peer."""
    fired: set[Fault] = field(default_factory=set)

    def run(self) -> Result:
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as temporary, contextlib.ExitStack() as stack:
            configs = self._configs(Path(temporary))
            proxies = (
                self._proxies(configs, stack) if {Fault.RESET, Fault.PARTITION} & set(self.faults) else {}
            )
            if proxies:
                configs = [_through(config, proxies) for config in configs]
            if Fault.FULL_DISK in self.faults:
                _fill_disk(configs[int(self.victim)].folder / "checkpoints", stack)
                self.fired.add(Fault.FULL_DISK)
            clocks = {self.victim: 365 * 86400.0} if Fault.CLOCK_JUMP in self.faults else {}
            crowd = stack.enter_context(Crowd(configs, clocks=clocks))
            crowd.start()
            memory = self._drive(crowd, proxies)
            return self._judge(crowd, memory, time.monotonic() - started)

    def honest(self, crowd: Crowd) -> list[str]:
        return [name for name, config in crowd.configs.items() if not config.misbehave]

    def _configs(self, folder: Path) -> list[Config]:
        template = Config(
            name="template",
            run="drill",
            rounds=self.rounds,
            checkpoint_every=5,
            deadlines=DEADLINES,
            limits=Limits(backoff_most=5.0),
            task={"name": "digits", "model": self.model},
            training=Training(lr=0.05),
        )
        ring = [(i, (i + 1) % self.peers) for i in range(self.peers)]
        write_network(ring, self.peers, folder / "net", template)
        configs = read_network(folder / "net")
        lies = [LIES[fault] for fault in self.faults if fault in LIES]
        for place, lie in enumerate(lies):
            configs[-1 - place] = replace(configs[-1 - place], misbehave=lie)
        return configs

    def _proxies(self, configs: list[Config], stack: contextlib.ExitStack) -> dict[tuple[str, str], Proxy]:
        """A proxy for every direction of the links that are to be bad: two opposite ones of the ring."""
        half = self.peers // 2
        cut = [(half - 1, half), (self.peers - 1, 0)]
        found = {}
        for a, b in [*cut, *((b, a) for a, b in cut)]:
            listen = Address("127.0.0.1", free_ports(1)[0])
            proxy = Proxy(listen, configs[b].bind)
            stack.callback(proxy.close)
            found[str(a), str(b)] = proxy
        return found

    def _drive(self, crowd: Crowd, proxies: Mapping[tuple[str, str], Proxy]) -> Memory:
        """Waits for the network to be under way, does the faults, waits for its end; watches memory."""
        memory, honest = Memory(), self.honest(crowd)
        begun = iter(self._actions(crowd, proxies))
        until = time.monotonic() + 60 + 3.0 * self.rounds
        waiting: float | None = None
        while crowd.alive():
            if time.monotonic() > until:
                break
            status = crowd.status()
            rounds = [status.get(name, {}).get("round", 0) for name in crowd.configs]
            for name in honest:
                last = status.get(name, {})
                if last.get("running"):
                    memory.look(last["pid"], last["round"])
            if min(rounds) >= min(10, self.rounds // 4) and (waiting is None or time.monotonic() >= waiting):
                waiting = time.monotonic() + next(begun, 1e9)
            time.sleep(0.1)
        return memory

    def _actions(self, crowd: Crowd, proxies: Mapping[tuple[str, str], Proxy]) -> Iterator[float]:
        """Does one thing after another; yields how long to wait before the next."""
        address = crowd.configs[self.victim].bind
        for fault in self.faults:
            if fault in _FROM_OUTSIDE:
                _FROM_OUTSIDE[fault](address)
                self.fired.add(fault)
                yield 0.1
            elif fault is Fault.KILL:
                crowd.processes[self.victim].kill()
                crowd.processes[self.victim].join(5)
                yield 0.5
                crowd.start(self.victim)
                yield 0.1
            elif fault is Fault.STOP:
                stopped = crowd.processes[str(int(self.victim) + 2)]
                if not stopped.is_alive():  # it has finished its rounds: too late for this fault to fire
                    continue
                os.kill(stopped.pid or 0, signal.SIGSTOP)
                yield 3 * DEADLINES.least
                os.kill(stopped.pid or 0, signal.SIGCONT)
                self.fired.add(fault)
            elif fault is Fault.RESET:
                for _ in range(10):
                    for proxy in proxies.values():
                        proxy.set("reset")
                    yield 0.15
                    for proxy in proxies.values():
                        proxy.set("pass")
                    yield 0.15
                self.fired.add(fault)
            elif fault is Fault.PARTITION:
                for proxy in proxies.values():
                    proxy.set("blackhole")
                yield 3 * DEADLINES.least
                for proxy in proxies.values():
                    proxy.set("pass")
                self.fired.add(fault)

    def _judge(self, crowd: Crowd, memory: Memory, seconds: float) -> Result:
        honest, status = self.honest(crowd), crowd.status()
        bad = {name for name in honest if crowd.processes[name].exitcode != 0}
        rows = [status.get(name, {}) for name in honest]
        accuracies = [float(row.get("accuracy") or 0.0) for row in rows]
        self._find_traces(crowd, rows)
        return Result(
            fault=self.faults[0],
            fired=set(self.faults) - {Fault.NONE} <= self.fired,
            ended_badly=tuple(sorted(bad)),
            accuracy=sum(accuracies) / len(accuracies),
            worst=min(accuracies),
            rounds=min(int(row.get("round", 0)) for row in rows),
            missing=sum(int(row.get("missing", 0)) for row in rows),
            rejected=sum(int(row.get("rejected", 0)) for row in rows),
            overrun=max(float(row.get("overrun", 0.0)) for row in rows),
            growth=memory.growth() / 1e6,
            peak=memory.peak / 1e6,
            seconds=seconds,
        )

    def _find_traces(self, crowd: Crowd, rows: Sequence[Mapping[str, Any]]) -> None:
        """A fault that nobody noticed did not fire."""
        seen = {reason for row in rows for reasons in row.get("reasons", {}).values() for reason in reasons}
        traces = {
            Fault.KILL: any(row.get("resumed") for row in rows),
            Fault.OVERSIZE: "wrong shape" in seen,
            Fault.DRIP: "late" in seen,
            Fault.REPLAY: "wrong round" in seen,
            Fault.NAN: "non-finite" in seen,
            Fault.WRONG_SHAPE: "wrong shape" in seen,
            Fault.GARBAGE: "malformed" in seen,
            Fault.MESSAGE_FLOOD: any(row.get("refused_calls") for row in rows),
            # On a ring nobody holds both models, so the liar's word is all there is.
            Fault.EQUIVOCATION: any(c.misbehave == "equivocation" for c in crowd.configs.values()),
            Fault.CLOCK_JUMP: any(row.get("time", 0) > time.time() + 86400 for row in rows),
        }
        self.fired |= {fault for fault, trace in traces.items() if trace and fault in self.faults}


def _garbage_bytes(address: Address) -> None:
    for size in (1, 100, 100_000):
        with contextlib.suppress(OSError), socket.create_connection((address.host, address.port), 5) as raw:
            raw.sendall(os.urandom(size))


def _knock(address: Address, me: identity.Identity | None) -> None:
    """A TLS client that must not get in; says hello in HTTP/2 all the same."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with tempfile.TemporaryDirectory() as folder:
        if me is not None:
            identity.save(me, Path(folder))
            context.load_cert_chain(
                Path(folder) / identity.CERTIFICATE_FILE, Path(folder) / identity.KEY_FILE
            )
        try:
            with (
                socket.create_connection((address.host, address.port), 5) as raw,
                context.wrap_socket(raw, server_hostname=identity.HOST) as tls,
            ):
                tls.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
                while answer := tls.recv(1000):
                    raise PeerError(f"a stranger got an answer: {answer[:20]!r}")
        except (OSError, ssl.SSLError):
            return


def _connection_flood(address: Address) -> None:
    opened = []
    for _ in range(300):
        with contextlib.suppress(OSError):
            opened.append(socket.create_connection((address.host, address.port), 1))
    for connection in opened:
        connection.close()


_FROM_OUTSIDE: dict[Fault, Callable[[Address], None]] = {
    Fault.GARBAGE_BYTES: _garbage_bytes,
    Fault.NO_CERTIFICATE: lambda address: _knock(address, None),
    Fault.FOREIGN_CERTIFICATE: lambda address: _knock(address, identity.create()),
    Fault.CONNECTION_FLOOD: _connection_flood,
}


def _through(config: Config, proxies: Mapping[tuple[str, str], Proxy]) -> Config:
    """The same config, its bad links leading through proxies."""
    neighbours = tuple(
        replace(n, address=proxies[config.name, n.name].listen) if (config.name, n.name) in proxies else n
        for n in config.neighbours
    )
    return replace(config, neighbours=neighbours)


def _fill_disk(folder: Path, stack: contextlib.ExitStack) -> None:
    """A file system with no room; where one cannot be mounted, a file stands in the folder's place."""
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode == 0:
        stack.callback(subprocess.run, ["umount", "-l", str(folder)], check=False)
    else:
        folder.rmdir()
        folder.write_text("not a folder")


def table(results: Sequence[Result]) -> str:
    """The results as a Markdown table."""
    head = (
        "fault",
        "ended badly",
        "rounds",
        "accuracy",
        "change",
        "missing",
        "rejected",
        "overrun s",
        "grew MB",
        "peak MB",
    )
    base = next((r.accuracy for r in results if r.fault is Fault.NONE), None)
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for r in results:
        cells = [r.fault.value if r.fired else f"{r.fault.value} (did not fire)"]
        cells += [", ".join(r.ended_badly) or "none", str(r.rounds), f"{100 * r.accuracy:.1f} %"]
        cells += [
            "" if base is None else f"{100 * (r.accuracy - base):+.1f}",
            str(r.missing),
            str(r.rejected),
        ]
        cells += [f"{max(r.overrun, 0):.2f}", f"{r.growth:.1f}", f"{r.peak:.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def page(results: Sequence[Result], *, peers: int, rounds: int) -> str:
    """The results as a page of the documentation."""
    return f"""# Faults

A ring of {peers} real processes learns `digits` for {rounds} rounds while one fault is done to it. Made by
`clippedgossip peer drill --peers {peers} --rounds {rounds} --out docs/faults.md` on {os.cpu_count()} cores.

Accuracy is the mean over the honest peers, `change` its difference in points to the run without a fault.
`overrun` is by how much an exchange exceeded its deadline at worst; a stopped process counts the time it was
stopped. `grew` is by how much the honest process that grew most *kept* growing: once it has done its first
rounds its life is cut into four, and the part that added least counts four times, so that a cache that fills
once does not count and a leak does. `peak` is the most any honest process ever
held.

{table(results)}
"""
