"""The seam between a node and its network: a real one, and in tests one in memory, stand behind it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from clippedgossip.peer import wire_pb2 as pb
from clippedgossip.peer.identity import Certificate, Identity
from clippedgossip.peer.peer_config import Neighbour

Send = Callable[[bytes], Awaitable[None]]


class Service(Protocol):
    """What a node answers. `name` is the neighbour whose pinned certificate was presented, never a claim.

    To decline, raise `Rejected`; the other side's `NeighbourLink` raises the same reason.
    """

    async def hello(self, name: str, request: pb.HelloRequest) -> pb.HelloReply: ...

    async def pull(self, name: str, request: pb.PullRequest, send: Send) -> None: ...

    async def witness(self, name: str, request: pb.WitnessRequest) -> pb.WitnessReply: ...


class NeighbourLink(Protocol):
    """The way to one neighbour. Whatever goes wrong is raised as `Rejected`; timeouts are the caller's."""

    @property
    def certificate(self) -> Certificate | None:
        """The neighbour's certificate, once it is known; it always matches the pinned fingerprint."""

    async def hello(self, request: pb.HelloRequest) -> pb.HelloReply: ...

    def pull(self, request: pb.PullRequest) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """The Parts of one message, as they come. Leaving the context cancels those on their way."""

    async def witness(self, request: pb.WitnessRequest) -> pb.WitnessReply: ...

    async def renew(self) -> None:
        """Throws the connection away; the next call makes a new one."""


class Transport(Protocol):
    """Carries calls between this node and its neighbours."""

    async def start(self, service: Service) -> None: ...

    def link(self, neighbour: Neighbour) -> NeighbourLink:
        """The way to a neighbour, who may call from now on."""

    async def unlink(self, name: str) -> None:
        """Ends what `link` began: the neighbour is an outsider from now on."""

    async def change_identity(self, identity: Identity) -> None:
        """Every new connection is made with this key."""

    async def close(self) -> None: ...
