"""One round of exchange between a peer and its neighbours, beside plain asyncio TLS sockets and gloo.

    python benchmarks/exchange.py [--megabytes 5 50] [--neighbours 2 4 8] [--rounds 8] [--parts]

A hub exchanges models with its neighbours, every one a process of its own on loopback; the same bytes go both
ways on each link. Printed: seconds a round (median of three interleaved repetitions), ratio to asyncio TLS,
rounds a second, and for the hub CPU seconds a round and its peak memory: MB beyond the process that has done
nothing yet, and how many models that is beyond the same exchange of tiny models. "peers" is the exchange;
"peers + mix" is `peer.mix(module)` with a module of that size, which counts, and ClippedGossip.

With --parts, instead: what share of a round of "peers + mix" goes to the hub's journal (records, status,
metrics), to the record on disk of what is signed, to looking for changed neighbours, to the hello of each
connection (once; over 1000 rounds), and to keepalive: CPU time of the idle hub.
"""

import argparse
import asyncio
import contextlib
import inspect
import itertools
import multiprocessing
import os
import queue
import resource
import ssl
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import torch

from clippedgossip.peer import Peer, identity
from clippedgossip.peer.identity import Identity
from clippedgossip.peer.local_network import free_ports
from clippedgossip.peer.peer_config import Address, Config, Deadlines, Limits, Neighbour
from clippedgossip.settings import TrainingConfig

PATIENCE = 300
TINY = 1000
IDLE = 12.0
"""Seconds: more than one keepalive ping of each connection."""
DEADLINES = Deadlines(least=60, most=60, join=60, linger=5)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One measurement: who exchanges how much."""

    leaves: int
    length: int
    rounds: int
    ports: tuple[int, ...]
    folder: str
    empty: int = 0
    """What the process held before it did anything, in bytes."""

    def identity(self, i: int) -> Identity:
        return identity.load(Path(self.folder) / str(i))


@dataclass(frozen=True, kw_only=True)
class Cost:
    seconds: float
    cpu: float
    bytes: int
    parts: Mapping[str, float] = field(default_factory=dict)
    """Seconds a round, by part."""


def measured(case: Case, work: Callable[[], Any], ready: Barrier) -> Cost:
    """Times `rounds` rounds after one to warm up."""
    work()
    ready.wait()
    started, cpu = time.perf_counter(), time.process_time()
    for _ in range(case.rounds):
        work()
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    return Cost(seconds=seconds / case.rounds, cpu=cpu / case.rounds, bytes=peak_bytes() - case.empty)


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def config_of(case: Case, me: int) -> Config:
    """The hub is 0 and has everyone as a neighbour; the others have the hub."""
    others = range(1, case.leaves + 1) if me == 0 else [0]
    return Config(
        name=str(me),
        run="benchmark",
        neighbours=tuple(
            Neighbour(
                name=str(j),
                address=Address("127.0.0.1", case.ports[j]),
                fingerprint=case.identity(j).fingerprint,
            )
            for j in others
        ),
        bind=Address("127.0.0.1", case.ports[me]),
        deadlines=DEADLINES,
        limits=Limits(model_bytes=1 << 32),
        training=TrainingConfig(rounds=10**9),
    )


def peers(case: Case, me: int, ready: Barrier, results: Any) -> None:
    """The product: Node over gRPC with mutual TLS, digests and signatures."""
    from clippedgossip.peer.node import Node
    from clippedgossip.peer.transport.pins import Pins
    from clippedgossip.peer.transport.rpc import RpcTransport

    config = config_of(case, me)
    # In a thread, as in the product: whoever has finished a round still serves those who have not.
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    async def begin() -> Node:
        pins = Pins(config.neighbours, None)
        transport = RpcTransport(case.identity(me), config.bind, pins, config.limits)
        node = Node(config, case.identity(me), transport, length=case.length, rule="none")
        await node.start()
        return node

    node = asyncio.run_coroutine_threadsafe(begin(), loop).result()

    def one_round() -> None:
        vector = torch.full((case.length,), float(me))
        result = asyncio.run_coroutine_threadsafe(node.exchange(vector), loop).result()
        assert not result.missing, result.missing

    cost = measured(case, one_round, ready)
    asyncio.run_coroutine_threadsafe(node.leave(), loop).result()
    if me == 0:
        results.put(cost)


def peers_and_mix(case: Case, me: int, ready: Barrier, results: Any) -> None:
    """The product as a user's loop sees it."""
    config = replace(config_of(case, me), folder=Path(case.folder) / str(me))
    model = torch.nn.Linear(case.length // 100, 100, bias=False)
    with Peer(config, case.identity(me), model=model) as peer:

        def one_round() -> None:
            report = peer.mix(model)
            assert not report.missing, report.missing

        cost = measured(case, one_round, ready)
    if me == 0:
        results.put(cost)


@contextlib.contextmanager
def timed(owner: type, name: str, spent: dict[str, float]) -> Iterator[None]:
    """Adds up the seconds in a method, which may be a coroutine."""
    method, label = getattr(owner, name), f"{owner.__name__}.{name}"
    spent[label] = 0.0

    async def later(*arguments: Any) -> Any:
        began = time.perf_counter()
        try:
            return await method(*arguments)
        finally:
            spent[label] += time.perf_counter() - began

    def now(*arguments: Any, **named: Any) -> Any:
        began = time.perf_counter()
        try:
            return method(*arguments, **named)
        finally:
            spent[label] += time.perf_counter() - began

    setattr(owner, name, later if inspect.iscoroutinefunction(method) else now)
    yield
    setattr(owner, name, method)


def parts(case: Case, me: int, ready: Barrier, results: Any) -> None:
    """`peers_and_mix`, with the hub's time in each part."""
    from clippedgossip.peer.journal import Journal
    from clippedgossip.peer.membership import Membership
    from clippedgossip.peer.node import Node
    from clippedgossip.peer.signed_rounds import SignedRounds

    spent: dict[str, float] = {}
    with contextlib.ExitStack() as stack:
        for owner, name in (
            (Journal, "add"),
            (SignedRounds, "add"),
            (Membership, "changed"),
            (Node, "_greet"),
        ):
            stack.enter_context(timed(owner, name, spent))
        config = replace(config_of(case, me), folder=Path(case.folder) / str(me))
        model = torch.nn.Linear(case.length // 100, 100, bias=False)
        with Peer(config, case.identity(me), model=model) as peer:
            greeting = spent["Node._greet"] / max(case.leaves, 1)
            peer.mix(model)
            spent.update(dict.fromkeys(spent, 0.0))
            cost = measured(case, lambda: peer.mix(model), ready)
            spent = {label: seconds / (case.rounds + 1) for label, seconds in spent.items()}
            spent["Node._greet"] = greeting / 1000
            began, cpu = time.perf_counter(), time.process_time()
            time.sleep(IDLE)
            share = (time.process_time() - cpu) / (time.perf_counter() - began)
            spent["idle"] = share * cost.seconds
            ready.wait()
    if me == 0:
        results.put(replace(cost, parts=spent))


def asyncio_tls(case: Case, me: int, ready: Barrier, results: Any) -> None:
    """Plain asyncio streams with mutual TLS 1.3 moving the same bytes, and nothing else."""

    def context(purpose: int) -> ssl.SSLContext:
        made = ssl.SSLContext(purpose)
        made.minimum_version = ssl.TLSVersion.TLSv1_3
        made.check_hostname = False
        made.verify_mode = ssl.CERT_REQUIRED
        for j in range(case.leaves + 1):
            made.load_verify_locations(Path(case.folder) / str(j) / identity.CERTIFICATE_FILE)
        own = Path(case.folder) / str(me)
        made.load_cert_chain(own / identity.CERTIFICATE_FILE, own / identity.KEY_FILE)
        return made

    loop = asyncio.new_event_loop()
    links: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def begin() -> None:
        if me == 0:
            everyone = asyncio.Event()

            async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                links.append((reader, writer))
                if len(links) == case.leaves:
                    everyone.set()

            server = context(ssl.PROTOCOL_TLS_SERVER)
            await asyncio.start_server(accept, "127.0.0.1", case.ports[0], ssl=server, limit=1 << 20)
            await everyone.wait()
            return
        client = context(ssl.PROTOCOL_TLS_CLIENT)
        while True:
            try:
                links.append(
                    await asyncio.open_connection("127.0.0.1", case.ports[0], ssl=client, limit=1 << 20)
                )
                return
            except OSError:
                await asyncio.sleep(0.05)

    async def send(writer: asyncio.StreamWriter, body: memoryview) -> None:
        for start in range(0, len(body), 1 << 20):
            writer.write(body[start : start + (1 << 20)])
            await writer.drain()

    async def receive(reader: asyncio.StreamReader, into: memoryview) -> None:
        filled = 0
        while filled < len(into):
            chunk = await reader.read(min(1 << 20, len(into) - filled))
            if not chunk:
                raise EOFError("a neighbour has gone")
            into[filled : filled + len(chunk)] = chunk
            filled += len(chunk)

    buffers = [memoryview(bytearray(4 * case.length)) for _ in range(case.leaves if me == 0 else 1)]
    loop.run_until_complete(begin())

    async def both() -> None:
        body = torch.full((case.length,), float(me)).view(torch.uint8).numpy().data
        sends = [send(writer, body) for _, writer in links]
        receives = [receive(reader, into) for (reader, _), into in zip(links, buffers, strict=True)]
        await asyncio.gather(*sends, *receives)
        # drain() leaves bytes in buffers that nobody sends once the loop stands still
        for _, writer in links:
            writer.write(b"!")
        for reader, _ in links:
            await reader.readexactly(1)

    def one_round() -> None:
        loop.run_until_complete(both())

    cost = measured(case, one_round, ready)
    ready.wait()
    if me == 0:
        results.put(cost)


def gloo(case: Case, me: int, ready: Barrier, results: Any) -> None:
    """torch.distributed point to point: no encryption, no protection from outsiders."""
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(case.ports[0]))
    dist.init_process_group("gloo", rank=me, world_size=case.leaves + 1)
    others = list(range(1, case.leaves + 1)) if me == 0 else [0]
    buffers = [torch.empty(case.length) for _ in others]

    def one_round() -> None:
        body = torch.full((case.length,), float(me))
        works = [dist.isend(body, other) for other in others]
        works += [dist.irecv(into, other) for other, into in zip(others, buffers, strict=True)]
        for work in works:
            if work is not None:
                work.wait()

    cost = measured(case, one_round, ready)
    ready.wait()
    dist.destroy_process_group()
    if me == 0:
        results.put(cost)


KINDS: dict[str, Any] = {
    "asyncio TLS": asyncio_tls,
    "peers": peers,
    "peers + mix": peers_and_mix,
    "gloo": gloo,
}
PARTS = "parts"


def start(kind: str, case: Case, me: int, ready: Barrier, results: Any) -> None:
    torch.set_num_threads(1)
    (parts if kind == PARTS else KINDS[kind])(replace(case, empty=peak_bytes()), me, ready, results)


def outcome(kind: str, processes: Sequence[BaseProcess], results: Any) -> Cost:
    """What the hub measured. Whoever ends badly ends the benchmark: the others would wait for it."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        with contextlib.suppress(queue.Empty):
            cost: Cost = results.get(timeout=0.2)
            return cost
        for i, process in enumerate(processes):
            if process.exitcode:
                raise SystemExit(f"error: {kind}: process {i} ended with {process.exitcode}; see above why")
    raise SystemExit(f"error: {kind}: no result after {PATIENCE} s")


def run(kind: str, leaves: int, length: int, rounds: int) -> Cost:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "clippedgossip.peer.loop"])
    with tempfile.TemporaryDirectory() as folder:
        for i in range(leaves + 1):
            identity.save(identity.create(), Path(folder) / str(i))
        ports = tuple(free_ports(leaves + 1))
        case = Case(leaves=leaves, length=length, rounds=rounds, ports=ports, folder=folder)
        ready, results = context.Barrier(leaves + 1), context.Queue()
        processes = [
            context.Process(target=start, args=(kind, case, i, ready, results), daemon=True)
            for i in range(leaves + 1)
        ]
        try:
            for process in processes:
                process.start()
            cost = outcome(kind, processes, results)
            for process in processes:
                process.join(30)
        finally:
            for process in processes:
                process.kill()
    return cost


def show_parts(sizes: Sequence[float], neighbours: Sequence[int], rounds: int, repeat: int) -> None:
    print("  MB links  s/round  " + "  ".join(f"{name:>10}" for name in (*PART_NAMES, "together")))
    for leaves, megabytes in itertools.product(neighbours, sizes):
        costs = [run(PARTS, leaves, int(megabytes * 250_000), rounds) for _ in range(repeat)]
        shares = [
            statistics.median(cost.parts[label] / cost.seconds for cost in costs)
            for label in PART_NAMES.values()
        ]
        seconds = statistics.median(cost.seconds for cost in costs)
        shown = "  ".join(f"{share:10.2%}" for share in (*shares, sum(shares)))
        print(f"{megabytes:4g} {leaves:5d} {seconds:8.3f}  {shown}", flush=True)


PART_NAMES = {
    "journal": "Journal.add",
    "signing": "SignedRounds.add",
    "neighbours": "Membership.changed",
    "hello": "Node._greet",
    "keepalive": "idle",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--megabytes", type=float, nargs="+", default=[5, 50])
    parser.add_argument("--neighbours", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--parts", action="store_true")
    options = parser.parse_args()
    if options.parts:
        show_parts(options.megabytes, options.neighbours, options.rounds, options.repeat)
        return
    print(f"{os.cpu_count()} cores, torch {torch.__version__}")
    print("  MB links  transport     s/round  ratio rounds/s  cpu s     MB models")
    for leaves in options.neighbours:
        tiny = {kind: run(kind, leaves, TINY, options.rounds).bytes for kind in options.kinds}
        for megabytes in options.megabytes:
            costs: dict[str, list[Cost]] = {kind: [] for kind in options.kinds}
            for _ in range(options.repeat):
                for kind in options.kinds:
                    costs[kind].append(run(kind, leaves, int(megabytes * 250_000), options.rounds))
            medians = {kind: statistics.median(c.seconds for c in costs[kind]) for kind in costs}
            base = medians.get("asyncio TLS", float("nan"))
            for kind, seconds in medians.items():
                cpu = statistics.median(c.cpu for c in costs[kind])
                held = max(c.bytes for c in costs[kind]) / 1e6
                models = (held - tiny[kind] / 1e6) / megabytes
                print(
                    f"{megabytes:4g} {leaves:5d}  {kind:<12} {seconds:8.3f} {seconds / base:6.2f} "
                    f"{1 / seconds:8.1f} {cpu:6.2f} {held:6.0f} {models:6.1f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
