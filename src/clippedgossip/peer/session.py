"""Robust mixing inside a user's own training loop: create it, then call `mix` after `optimizer.step()`."""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn

from clippedgossip.errors import PeerError
from clippedgossip.peer import identity as identities
from clippedgossip.peer import peer_config as configs
from clippedgossip.peer import peer_folder
from clippedgossip.peer import wire_tensors as tensors
from clippedgossip.peer.identity import Identity
from clippedgossip.peer.journal import Journal
from clippedgossip.peer.membership import Membership
from clippedgossip.peer.node import Node
from clippedgossip.peer.peer_config import Config
from clippedgossip.peer.peer_mixing import (
    Losses,
    Mixed,
    Mixing,
    ModuleLoss,
    describe_rule,
    module_losses,
    without_losses,
)
from clippedgossip.peer.telemetry import starting
from clippedgossip.peer.transport.base import Transport
from clippedgossip.rules import Median

log = logging.getLogger(__name__)
_T = TypeVar("_T")


class Peer:
    """A peer that mixes whatever model it is given.

    The exchange has a thread and an event loop of its own. `mix` blocks the caller until the round is over
    (at most the deadline), `amix` does not block the caller's event loop. Parameters that are trained travel;
    frozen ones and buffers (batch-norm statistics and the like) stay each peer's own. A rule that compares
    losses (Mozi) needs `loss`: (model, round) -> the model's loss on a sample of the peer's own, the same
    throughout a round.
    """

    def __init__(
        self,
        config: Config,
        identity: Identity,
        *,
        model: nn.Module | None = None,
        loss: ModuleLoss | None = None,
        transport: Callable[[], Transport] | None = None,
        node: Callable[..., Node] = Node,
        round: int = 0,
        journal: Journal | None = None,
    ) -> None:
        """Goes on with `round` after a restart. Writes a journal, as `peer start` does, unless one is given:
        then the caller writes it and holds the lock of the folder."""
        self.config = config
        self.identity = identity
        self.loss = loss
        self.mixing = Mixing(config)
        self._members = Membership(config, identity) if config.folder != Path() else None
        if model is not None and loss is None and self.mixing.rule.needs_losses:
            raise PeerError(without_losses(config))
        self._lock = peer_folder.take(config.folder) if journal is None else None
        self._journal = Journal(config) if journal is None else None
        self.node: Node | None = None
        self._starting: Node | None = None
        self._hurried = False
        self._make_transport = transport or self._real_transport
        self._make_node = node
        self._first_round = round
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="peer", daemon=True)
        self._thread.start()
        self._closed = False
        if model is not None:
            try:
                self.start(sum(p.numel() for p in tensors.trainable(model)), tensors.tensor_names(model))
            except BaseException:
                self.close(linger=False)
                raise

    @classmethod
    def from_config(
        cls,
        path: str | Path,
        model: nn.Module | None = None,
        *,
        loss: ModuleLoss | None = None,
        round: int = 0,
    ) -> Self:
        """Reads `peer.toml` and the identity beside it. With the model given, listens at once. `round` is
        where to go on: 0, or after a restart what `peer.round` was when the model was saved."""
        config = configs.load(Path(path))
        return cls(config, identities.load(config.folder), model=model, loss=loss, round=round)

    @property
    def round(self) -> int:
        """The round the next `mix` belongs to."""
        return self._first_round if self.node is None else self.node.round

    def start(self, length: int, names: Sequence[str] = ()) -> Node:
        """Listens and greets the neighbours (at most `deadlines.join` seconds)."""
        if self.node is None:

            async def begin() -> Node:
                node = self._make_node(
                    self.config,
                    self.identity,
                    self._make_transport(),
                    length=length,
                    rule=describe_rule(self.config),
                    round=self._first_round,
                    tensors=names,
                )
                self._starting = node
                self._refuse_what_is_done(node)
                if self._hurried:
                    node.hurry.set()
                await node.start()
                return node

            with nullcontext() if self._journal is None else starting(self.config):
                if self._journal is not None:
                    self._journal.begin()
                self.node = self._run(begin())
            if self._journal is not None:
                self._journal.go_on_from(self.node.round)
        return self.node

    def _refuse_what_is_done(self, node: Node) -> None:
        """A loop of one's own that is run again would serve nothing: all its rounds are signed already."""
        highest = node.signed.highest
        if self._journal is not None and highest >= self.config.rounds - 1 >= self._first_round:
            node.signed.close()
            raise PeerError(
                f"run {self.config.run!r} was done in {self.config.folder} before; no round is signed twice\n"
                f"choose a new run in every peer.toml, or more rounds and round={highest + 1} to go on"
            )

    def enter(self, model: nn.Module) -> None:
        """For a newcomer in a run that others have begun, before its first `mix`: writes the median, by
        coordinate, of the neighbours' models into the model."""
        parameters = tensors.trainable(model)
        length = sum(parameter.numel() for parameter in parameters)
        tensors.unflatten(self.first_vector(length, tensors.tensor_names(model)), parameters)

    def first_vector(self, length: int, names: Sequence[str] = ()) -> Tensor:
        """`enter` for a flat float32 vector.

        Fewer than half of the neighbours can be Byzantine, and then no coordinate is beyond those of the
        regular ones. For this so many must be heard that the regular ones are the majority of them.
        """
        node = self.start(length, names)
        first = self._run(node.receive_first())
        came: list[Tensor] = [
            row for n, row in zip(node.neighbours, first.received, strict=True) if n not in first.missing
        ]
        fewest = 2 * ((len(node.neighbours) - 1) // 2) + 1
        if len(came) < fewest:
            raise PeerError(
                f"{len(came)} of {len(node.neighbours)} neighbours sent a model; a newcomer needs {fewest}\n"
                f"see that {', '.join(first.missing)} run and have added it, or remove one; then start again"
            )
        log.info("models of the neighbours came", extra={"rounds": first.rounds, "needed": fewest})
        if len(came) == 1:
            return came[0].clone()
        weights = torch.full((len(came) - 1,), 1 / len(came), dtype=torch.float64)
        return Median()(came[0], torch.stack(came[1:]), weights)

    def hurry(self) -> None:
        """Makes `start` wait no longer for neighbours; from any thread, or a signal's handler."""
        self._hurried = True
        if self._starting is not None:
            self._loop.call_soon_threadsafe(self._starting.hurry.set)

    def mix(self, model: nn.Module) -> Mixed:
        """One round: sends the parameters, receives the neighbours', writes the mixture into the model."""
        parameters = tensors.trainable(model)
        losses = None if self.loss is None else module_losses(model, self.loss)
        self.make_room()
        names = tensors.tensor_names(model)
        return self._mix(tensors.flatten(parameters), parameters, losses, names)

    async def amix(self, model: nn.Module) -> Mixed:
        """`mix` for asyncio: the caller's event loop runs on meanwhile."""
        streams = tensors.streams(tensors.trainable(model))

        def mix() -> Mixed:
            with ExitStack() as stack:
                for stream in streams:
                    stack.enter_context(torch.cuda.stream(stream))
                return self.mix(model)

        return await asyncio.to_thread(mix)

    def make_room(self) -> None:
        """Frees messages that no neighbour waits for. `mix` calls it; call it before you make the vector for
        `mix_vector`."""
        if self.node is not None:
            self._run(self.node.outbox.make_room())

    def mix_vector(self, vector: Tensor, losses: Losses | None = None) -> tuple[Tensor, Mixed]:
        """`mix` for a flat float32 vector on the CPU, which is not to be changed afterwards."""
        mixed = torch.empty_like(vector)
        return mixed, self._mix(vector, [mixed], losses)

    def _mix(
        self, vector: Tensor, into: Sequence[Tensor], losses: Losses | None, names: Sequence[str] = ()
    ) -> Mixed:
        if losses is None and self.mixing.rule.needs_losses:
            raise PeerError(without_losses(self.config))
        node = self.start(len(vector), names)
        self._follow(node)
        if len(vector) != node.length:
            raise PeerError(f"a model of {len(vector)} coordinates; this run began with {node.length}")
        report = self.mixing(vector, self._run(node.exchange(vector)), into, losses=losses)
        if self._journal is not None:
            self._journal.add(report, node)
        return report

    def _follow(self, node: Node) -> None:
        """Takes the neighbours and the key that the folder names now."""
        change = self._members.changed() if self._members is not None else None
        if change is not None:
            self.mixing = Mixing(change.config)
            self.config, self.identity = change.config, change.identity
            self._run(node.change(change.config.neighbours, change.identity, change.config.network))

    def close(self, *, linger: bool = True) -> None:
        """Lets the neighbours have the last message, then leaves."""
        if self._closed:
            return
        self._closed = True
        if self.node is not None:
            if self._journal is not None:
                self._journal.end(self.node, self.round)
            self._run(self.node.leave() if linger else self.node.close())
        if self._journal is not None:
            self._journal.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)
        if self._lock is not None:
            self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self.close(linger=kind is None)

    def _real_transport(self) -> Transport:
        from clippedgossip.peer.transport.pins import Pins
        from clippedgossip.peer.transport.rpc import RpcTransport

        pins = Pins(self.config.neighbours, self.config.folder / "neighbours")
        return RpcTransport(self.identity, self.config.bind, pins, self.config.limits)

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise
