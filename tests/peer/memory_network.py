"""A network inside one event loop: the seam of the real one, no sockets, and links that can be cut."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import TypeVar

from clippedgossip.peer import wire_pb2 as pb
from clippedgossip.peer.identity import Certificate, Identity
from clippedgossip.peer.peer_config import Neighbour
from clippedgossip.peer.rejection import Rejected, Rejection
from clippedgossip.peer.transport.base import Service

_T = TypeVar("_T")


class MemoryNetwork:
    """All peers of a test, by fingerprint."""

    def __init__(self) -> None:
        self.members: dict[bytes, MemoryTransport] = {}
        self.cut: set[frozenset[bytes]] = set()
        self.delay: Callable[[], float] = lambda: 0.0
        """Seconds that a call takes on its way."""

    @contextlib.contextmanager
    def partition(self, *pairs: tuple[bytes, bytes]) -> Iterator[None]:
        """Cuts links for a while."""
        cut = {frozenset(pair) for pair in pairs}
        self.cut |= cut
        try:
            yield
        finally:
            self.cut -= cut


class MemoryTransport:
    """One peer's end of a `MemoryNetwork`."""

    def __init__(self, network: MemoryNetwork, identity: Identity, neighbours: tuple[Neighbour, ...]) -> None:
        self.network = network
        self.identity = identity
        self.names = {mark: neighbour.name for neighbour in neighbours for mark in neighbour.fingerprints}
        self.service: Service | None = None

    async def start(self, service: Service) -> None:
        self.service = service
        self.network.members[self.identity.fingerprint] = self

    async def close(self) -> None:
        self.network.members.pop(self.identity.fingerprint, None)
        self.service = None

    def link(self, neighbour: Neighbour) -> "MemoryLink":
        self.names |= dict.fromkeys(neighbour.fingerprints, neighbour.name)
        return MemoryLink(self, neighbour)

    async def unlink(self, name: str) -> None:
        self.names = {mark: known for mark, known in self.names.items() if known != name}

    async def change_identity(self, identity: Identity) -> None:
        self.network.members.pop(self.identity.fingerprint, None)
        self.identity = identity
        self.network.members[identity.fingerprint] = self


class MemoryLink:
    """The way to one neighbour of a `MemoryNetwork`."""

    def __init__(self, here: MemoryTransport, neighbour: Neighbour) -> None:
        self.here = here
        self.neighbour = neighbour

    @property
    def _there(self) -> MemoryTransport | None:
        members = self.here.network.members
        return next((members[mark] for mark in self.neighbour.fingerprints if mark in members), None)

    @property
    def certificate(self) -> Certificate | None:
        there = self._there
        return there.identity.certificate if there else None

    def _reach(self) -> tuple[Service, str]:
        mark, there = self.here.identity.fingerprint, self._there
        if there is None or there.service is None or mark not in there.names:
            raise Rejected(Rejection.DEAD, f"no way to {self.neighbour.name}")
        if frozenset((mark, there.identity.fingerprint)) in self.here.network.cut:
            raise Rejected(Rejection.DEAD, f"the way to {self.neighbour.name} is cut")
        return there.service, there.names[mark]

    async def _call(self, ask: Callable[[Service, str], Awaitable[_T]]) -> _T:
        self._reach()
        await asyncio.sleep(self.here.network.delay())
        service, name = self._reach()
        return await ask(service, name)

    async def hello(self, request: pb.HelloRequest) -> pb.HelloReply:
        return await self._call(lambda service, name: service.hello(name, request))

    async def witness(self, request: pb.WitnessRequest) -> pb.WitnessReply:
        return await self._call(lambda service, name: service.witness(name, request))

    async def renew(self) -> None:
        """There is nothing to throw away."""

    @asynccontextmanager
    async def pull(self, request: pb.PullRequest) -> AsyncIterator[AsyncIterator[bytes]]:
        self._reach()
        if delay := self.here.network.delay():
            await asyncio.sleep(delay)
        service, name = self._reach()
        queue: asyncio.Queue[bytes | Rejected | None] = asyncio.Queue(maxsize=1)

        async def serve() -> None:
            try:
                await service.pull(name, request, queue.put)
                await queue.put(None)
            except Rejected as rejected:
                await queue.put(rejected)

        task = asyncio.create_task(serve())
        try:
            yield _QueueParts(queue, self)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)  # raises if this task is cancelled too


class _QueueParts(AsyncIterator[bytes]):
    def __init__(self, queue: asyncio.Queue[bytes | Rejected | None], link: MemoryLink) -> None:
        self._queue = queue
        self._link = link

    async def __anext__(self) -> bytes:
        item = await self._queue.get()
        self._link._reach()
        if item is None:
            raise StopAsyncIteration
        if isinstance(item, Rejected):
            raise item
        return item
