"""A fire drill: a network of real processes learns while one fault after another is done to it."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from clippedgossip.errors import ConfigError, unknown_name
from clippedgossip.peer import evidence, identity, membership
from clippedgossip.peer import peer_config as configs
from clippedgossip.peer.drill import outsiders
from clippedgossip.peer.drill.fault import MISBEHAVIOURS, Fault, Result
from clippedgossip.peer.drill.leaks import Memory
from clippedgossip.peer.drill.proxy import Proxy
from clippedgossip.peer.local_network import (
    LocalNetwork,
    free_ports,
    read_network,
    terminating,
    write_network,
)
from clippedgossip.peer.peer_config import Address, Config, Deadlines, Limits
from clippedgossip.peer.signed_rounds import AHEAD
from clippedgossip.settings import ModelConfig, TrainingConfig

NETWORKS = ("ring", "chords")
FEWEST_PEERS, FEWEST_ROUNDS = 5, 60
_UNDER_WAY = 10
_FELL_OUT = 10.0
"""Seconds without a message of a neighbour, at the end."""
_LARGEST_LOG = 200_000
_BYTES_PER_SECOND = 500_000.0
"""Of each peer: 200 rounds take fifteen seconds or more, so that faults come in mid-run on any machine."""
DEADLINES = Deadlines(least=1.0, most=4.0, join=20.0, linger=3.0)


@dataclass
class Drill:
    """One network under one or more faults."""

    faults: Sequence[Fault]
    network: str = "ring"
    peers: int = 8
    rounds: int = 200
    model: str = "mlp"
    victim: str = "1"
    """To whom faults happen from outside; the Byzantine peer, where there is one, is the last."""
    fired: set[Fault] = field(default_factory=set)
    _made: int = 0
    _first_key: bytes = b""

    def __post_init__(self) -> None:
        if self.network not in NETWORKS:
            raise ConfigError(unknown_name("network of a drill", self.network, NETWORKS))
        if self.peers < FEWEST_PEERS or self.rounds < FEWEST_ROUNDS:
            raise ConfigError(
                f"{self.peers} peers, {self.rounds} rounds: that is too few for a drill\n"
                f"use at least {FEWEST_PEERS} peers and {FEWEST_ROUNDS} rounds"
            )

    def run(self) -> Result:
        started = time.monotonic()
        with terminating(), tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            edges = edges_of("chords" if Fault.EQUIVOCATION in self.faults else self.network, self.peers)
            made = self._configs(edges, Path(folder))
            proxies: list[Proxy] = []
            if {Fault.RESET, Fault.PARTITION, Fault.HALF_OPEN} & set(self.faults):
                through = self._proxies(edges, made, stack)
                made = [_through(config, through) for config in made]
                proxies = list(through.values())
            if Fault.FULL_DISK in self.faults:
                _fill_disk(made[int(self.victim)].folder / "checkpoints", stack)
            clocks = {self.victim: 365 * 86400.0} if Fault.CLOCK_JUMP in self.faults else {}
            for config in made:  # what a running peer reads when its neighbours change
                (config.folder / configs.CONFIG_FILE).write_text(configs.dump(config))
            self._first_key = identity.load(made[int(self.victim)].folder).fingerprint
            net = stack.enter_context(LocalNetwork(made, clocks=clocks))
            net.start()
            memory = self._drive(net, proxies)
            self._find_traces(net, proxies)
            return self._judge(net, memory, time.monotonic() - started)

    def regular(self, net: LocalNetwork) -> list[str]:
        return [name for name, config in net.configs.items() if not config.misbehave]

    @property
    def stopped(self) -> str:
        """Who is stopped by a signal: not the victim, so that both can happen in one drill."""
        return str(int(self.victim) + 2)

    def _configs(self, edges: Sequence[tuple[int, int]], folder: Path) -> list[Config]:
        template = Config(
            name="template",
            run="drill",
            checkpoint_every=5,
            deadlines=DEADLINES,
            limits=Limits(backoff_most=5.0, bytes_per_second=_BYTES_PER_SECOND),
            model=ModelConfig(self.model),
            training=TrainingConfig(rounds=self.rounds, lr=0.05, evaluate_every=10),
            witness=Fault.EQUIVOCATION in self.faults,
        )
        write_network(edges, self.peers, folder / "net", template)
        made = read_network(folder / "net")
        lies = [MISBEHAVIOURS[fault] for fault in self.faults if fault in MISBEHAVIOURS]
        for place, lie in enumerate(lies):
            made[-1 - place] = replace(made[-1 - place], misbehave=lie)
        return made

    def _proxies(
        self, edges: Sequence[tuple[int, int]], made: Sequence[Config], stack: contextlib.ExitStack
    ) -> dict[tuple[str, str], Proxy]:
        """A proxy for each direction of every link between the two halves of the network."""
        half = self.peers // 2
        cut = [(a, b) for a, b in edges if (a < half) != (b < half)]
        found, both = {}, [*cut, *((b, a) for a, b in cut)]
        taken = {config.bind.port for config in made}  # by peers that do not listen yet
        free = [port for port in free_ports(len(both) + len(made)) if port not in taken]
        for (a, b), port in zip(both, free, strict=False):
            proxy = Proxy(Address("127.0.0.1", port), made[b].bind)
            stack.callback(proxy.close)
            found[str(a), str(b)] = proxy
        return found

    def _drive(self, net: LocalNetwork, proxies: Sequence[Proxy]) -> Memory:
        """Waits for the network to be under way, does the faults, waits for its end; watches memory."""
        memory, regular = Memory(), self.regular(net)
        begun = iter(self._actions(net, proxies))
        until = time.monotonic() + 60 + 3.0 * self.rounds
        waiting: float | None = None
        while {*net.alive()} & {*regular}:
            if time.monotonic() > until:
                break
            status = net.status()
            rounds = [status.get(name, {}).get("round", 0) for name in net.configs]
            for name in regular:
                last = status.get(name, {})
                if last.get("running"):
                    memory.look(last["pid"], last["round"])
            if min(rounds) >= _UNDER_WAY and (waiting is None or time.monotonic() >= waiting):
                waiting = time.monotonic() + next(begun, 1e9)
            time.sleep(0.1)
        return memory

    def _actions(self, net: LocalNetwork, proxies: Sequence[Proxy]) -> Iterator[float]:
        """Does one thing after another; yields how long to wait before the next."""
        for fault in Fault:
            if fault in self.faults:
                yield from self.act(fault, net, proxies)
        while True:  # what leaks a little each time shows only when it is done again and again
            for fault in self.faults:
                if fault in FROM_OUTSIDE and FROM_OUTSIDE[fault](net.configs[self.victim].bind):
                    self.fired.add(fault)
                    yield 0.1
            yield 3.0

    def act(self, fault: Fault, net: LocalNetwork, proxies: Sequence[Proxy]) -> Iterator[float]:
        """Does one fault once; nothing where a Byzantine peer or an outsider does it."""

        def everywhere(mode: str) -> None:
            for proxy in proxies:
                proxy.set(mode)

        def kill(*names: str) -> None:
            for name in names:
                net.processes[name].kill()
                net.processes[name].join(5)

        folder = net.configs[self.victim].folder
        match fault:
            case Fault.KILL:
                kill(self.victim)
                yield 0.5
                net.start(self.victim)
                yield 0.1
            case Fault.DAMAGED_CHECKPOINT:
                kill(self.victim)
                newest = max((folder / "checkpoints").rglob("*.safetensors"), key=lambda path: path.name)
                newest.write_bytes(newest.read_bytes()[:-100])
                net.start(self.victim)
                yield 0.1
            case Fault.RESTORED_BACKUP:
                with _backup(folder, "checkpoints", "signed"):
                    _wait_for_change(folder / "signed", times=30 // AHEAD)
                    kill(self.victim)
                net.start(self.victim)
                yield 0.1
            case Fault.SECOND_START:
                command = [sys.executable, "-m", "clippedgossip", "peer", "start", str(folder), "--no-resume"]
                second = subprocess.run(command, capture_output=True, text=True, check=False)
                if second.returncode == 2 and "is running in" in second.stderr:
                    self.fired.add(fault)
            case Fault.MEMBERS:
                yield from self._change_members(net)
            case Fault.STOP:
                pid = net.processes[self.stopped].pid or 0
                with contextlib.suppress(ProcessLookupError):  # it has finished: too late to fire
                    os.kill(pid, signal.SIGSTOP)
                    yield 3 * DEADLINES.least
                    os.kill(pid, signal.SIGCONT)
            case Fault.RESET:
                for _ in range(10):
                    everywhere("reset")
                    yield 0.3
                    everywhere("pass")
                    yield 0.3
            case Fault.PARTITION:
                everywhere("blackhole")
                yield 3 * DEADLINES.least
                everywhere("pass")
            case Fault.HALF_OPEN:
                self._made = sum(proxy.made for proxy in proxies)
                everywhere("forget")
            case Fault.MAINTENANCE:
                names = [str(i) for i in range(1, self.peers)]
                kill(*names)
                yield 12.0
                for name in names:
                    net.start(name)

    def _change_members(self, net: LocalNetwork) -> Iterator[float]:
        """A neighbour removes the victim and adds it again; then the victim changes its key."""
        config = net.configs[self.victim]
        near = [net.configs[neighbour.name] for neighbour in config.neighbours]
        mark = identity.load(config.folder).fingerprint.hex()
        membership.remove(near[0].folder, self.victim)
        yield 2.0
        membership.add(near[0].folder, self.victim, str(config.bind), mark)
        yield 2.0
        new = membership.make_next_key(config.folder)
        for each in near:
            membership.rekey(each.folder, self.victim, new.fingerprint.hex())
        yield 1.0
        membership.use_next_key(config.folder)
        for name in (self.victim, *(each.name for each in near)):  # as they are when started again
            now = configs.load(net.configs[name].folder)
            net.configs[name] = replace(net.configs[name], neighbours=now.neighbours)
        yield 1.0

    def _find_traces(self, net: LocalNetwork, proxies: Sequence[Proxy]) -> None:
        """A fault that nobody noticed did not fire."""
        status = net.status()
        rows = {name: status.get(name, {}) for name in self.regular(net)}
        victim = rows[self.victim]
        counted = [item for row in rows.values() for item in row.get("reasons", {}).items()]

        def byzantine(fault: Fault) -> set[str]:
            """Who misbehaves so."""
            return {n for n, c in net.configs.items() if c.misbehave == MISBEHAVIOURS[fault]}

        def against(fault: Fault) -> set[str]:
            """Why regular neighbours did without the message of whoever misbehaves so."""
            return {reason for name, reasons in counted if name in byzantine(fault) for reason in reasons}

        traces = {
            Fault.KILL: bool(victim.get("resumed")),
            Fault.STOP: any(name == self.stopped and "late" in reasons for name, reasons in counted),
            Fault.RESET: any(proxy.cuts for proxy in proxies),
            Fault.PARTITION: any(proxy.lost for proxy in proxies) and any(reasons for _, reasons in counted),
            Fault.HALF_OPEN: any(proxy.lost for proxy in proxies)
            and sum(proxy.made for proxy in proxies) > self._made,
            Fault.MAINTENANCE: all(row.get("resumed") for name, row in rows.items() if name != "0"),
            Fault.HELLO_FLOOD: self._logs(net) < _LARGEST_LOG
            and any(_logged(net.configs[name], "refused neighbour") for name in rows),
            Fault.STALL_LATER: "late" in against(Fault.STALL_LATER),
            Fault.GZIP_BOMB: "malformed" in against(Fault.GZIP_BOMB),
            Fault.DAMAGED_CHECKPOINT: bool(victim.get("resumed"))
            and _logged(net.configs[self.victim], "checkpoint is damaged"),
            Fault.RESTORED_BACKUP: any(row.get("suspicions") for row in rows.values()),
            Fault.MEMBERS: self._know_new_key(net),
            Fault.OVERSIZE: "wrong shape" in against(Fault.OVERSIZE),
            Fault.DRIP: "late" in against(Fault.DRIP),
            Fault.REPLAY: {"replayed", "malformed"} <= against(Fault.REPLAY),
            Fault.EQUIVOCATION: {_mark(net.configs[n]) for n in byzantine(Fault.EQUIVOCATION)}
            <= _convicted(net),
            Fault.FALSE_ROUND: self._far_off(net, byzantine(Fault.FALSE_ROUND)),
            Fault.NAN: "non-finite" in against(Fault.NAN),
            Fault.WRONG_SHAPE: "wrong shape" in against(Fault.WRONG_SHAPE),
            Fault.GARBAGE: "malformed" in against(Fault.GARBAGE),
            Fault.MESSAGE_FLOOD: any(row.get("refused_calls") for row in rows.values()),
            Fault.FULL_DISK: _logged(net.configs[self.victim], "checkpoint failed"),
            Fault.CLOCK_JUMP: victim.get("time", 0) > time.time() + 86400,
        }
        self.fired |= {fault for fault, trace in traces.items() if trace and fault in self.faults}

    def _know_new_key(self, net: LocalNetwork) -> bool:
        """Whether the victim has changed its key, and its neighbours have seen the new one."""
        now = identity.load(net.configs[self.victim].folder).fingerprint
        files = [
            net.configs[neighbour.name].folder / "neighbours" / f"{self.victim}.pem"
            for neighbour in net.configs[self.victim].neighbours
        ]
        seen = [identity.read_certificate(path.read_bytes()).fingerprint for path in files]
        return now != self._first_key and all(mark == now for mark in seen)

    def _logs(self, net: LocalNetwork) -> int:
        """Bytes of the longest log of a regular peer."""
        paths = [net.configs[name].folder / "log.jsonl" for name in self.regular(net)]
        return max(path.stat().st_size for path in paths if path.exists())

    def _far_off(self, net: LocalNetwork, byzantine: set[str]) -> bool:
        """Whether regular peers used messages of these that said to be of the far future."""
        for name in self.regular(net):
            for path in (net.configs[name].folder / "runs").glob("*/records.jsonl"):
                for line in path.read_text().splitlines():
                    others = json.loads(line).get("other_rounds", {})
                    if any(others.get(each, 0) >= 10**9 for each in byzantine):
                        return True
        return False

    def _fell_out(self, net: LocalNetwork) -> tuple[str, ...]:
        """Links between regular peers that were not used in the last seconds in which both did rounds."""
        status, found = net.status(), []
        ended = {name: row.get("round_time") or 0.0 for name, row in status.items()}
        for name in self.regular(net):
            for other, then in status.get(name, {}).get("exchanged", {}).items():
                both = min(ended.get(name, 0.0), ended.get(other, 0.0))
                if not net.configs[other].misbehave and both - (then or 0.0) > _FELL_OUT:
                    found.append(f"{other} to {name}")
        return tuple(found)

    def _judge(self, net: LocalNetwork, memory: Memory, seconds: float) -> Result:
        regular, status = self.regular(net), net.status()
        rows = [status.get(name, {}) for name in regular]
        accuracies = [float(row.get("score") or 0.0) for row in rows]
        unable = self.victim if Fault.FULL_DISK in self.faults else None  # to write its model: it must say so
        return Result(
            fault=self.faults[0],
            fired=set(self.faults) - {Fault.NONE} <= self.fired,
            ended_badly=tuple(n for n in regular if net.processes[n].exitcode != int(n == unable)),
            fell_out=self._fell_out(net),
            convicted=tuple(name for name in regular if _mark(net.configs[name]) in _convicted(net)),
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


def edges_of(network: str, peers: int) -> list[tuple[int, int]]:
    """A ring, or a ring with chords, in which neighbours have common neighbours."""
    steps = (1, 2) if network == "chords" else (1,)
    pairs = [(i, (i + step) % peers) for step in steps for i in range(peers)]
    return sorted({(min(pair), max(pair)) for pair in pairs})


FROM_OUTSIDE: dict[Fault, Callable[[Address], bool]] = {
    Fault.GARBAGE_BYTES: outsiders.garbage_bytes,
    Fault.NO_CERTIFICATE: lambda address: outsiders.knock(address, None),
    Fault.FOREIGN_CERTIFICATE: lambda address: outsiders.knock(address, identity.create()),
    Fault.CONNECTION_FLOOD: outsiders.flood_of_connections,
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
    stack.callback(subprocess.run, ["umount", "-l", str(folder)], capture_output=True, check=False)
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        folder.rmdir()
        folder.write_text("not a folder")


@contextlib.contextmanager
def _backup(folder: Path, *names: str) -> Iterator[None]:
    """These folders are afterwards as they were before."""
    with tempfile.TemporaryDirectory() as copy:
        for name in names:
            shutil.copytree(folder / name, Path(copy) / name)
        yield
        for name in names:
            shutil.rmtree(folder / name)
            shutil.copytree(Path(copy) / name, folder / name)


def _wait_for_change(folder: Path, *, times: int) -> None:
    """Until the files of a folder have changed so often; for at most twenty seconds."""
    until = time.monotonic() + 20.0

    def held() -> bytes:
        return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))

    for _ in range(times):
        before = held()
        while held() == before and time.monotonic() < until:
            time.sleep(0.002)


def _convicted(net: LocalNetwork) -> set[str]:
    """The fingerprints of those against whom an regular peer holds a proof."""
    found = set()
    for config in net.configs.values():
        for path in (config.folder / "evidence").glob("*.json") if not config.misbehave else ():
            found.add(identity.format_fingerprint(evidence.verify(path).fingerprint))
    return found


def _mark(config: Config) -> str:
    return identity.format_fingerprint(identity.load(config.folder).fingerprint)


def _logged(config: Config, event: str) -> bool:
    with contextlib.suppress(OSError):
        return f'"event": "{event}"' in (config.folder / "log.jsonl").read_text()
    return False
