"""Late messages: how many rounds ago the newest message was sent that a node has of each neighbour."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from clippedgossip.decode import Kind, decode, errors_of
from clippedgossip.errors import NetworkError
from clippedgossip.network.spectrum import Ints


@dataclass(frozen=True)
class Delay(ABC):
    """Regular nodes use the newest message that has come. Before the first one has come, its weight goes to
    the node's own model. Byzantine nodes are never late."""

    @property
    @abstractmethod
    def most(self) -> int:
        """The largest age of a message, in rounds."""

    @abstractmethod
    def ages(self, receivers: Ints, senders: Ints, round: int, seed: int) -> Ints:
        """How many rounds ago each sender's message was sent that the receiver uses in this round."""


@dataclass(frozen=True)
class FixedDelay(Delay):
    """Every message takes so many rounds."""

    rounds: Annotated[int, "how late every message is"] = 1

    def __post_init__(self) -> None:
        _at_least("delay", self.rounds, 0)

    @property
    def most(self) -> int:
        return self.rounds

    def ages(self, receivers: Ints, senders: Ints, round: int, seed: int) -> Ints:
        return np.full(len(senders), self.rounds, dtype=np.int64)


@dataclass(frozen=True)
class EdgeDelay(Delay):
    """Every link has a delay of its own, drawn from 0 to `rounds`, and keeps it; the way back has another."""

    rounds: Annotated[int, "the longest delay of a link"] = 2

    def __post_init__(self) -> None:
        _at_least("delay.edges", self.rounds, 0)

    @property
    def most(self) -> int:
        return self.rounds

    def ages(self, receivers: Ints, senders: Ints, round: int, seed: int) -> Ints:
        return _drawn("delay of a link", self.rounds + 1, seed, receivers, senders)


@dataclass(frozen=True)
class SlowNodes(Delay):
    """Every node sends in each v-th round, with a v of its own, drawn from 1 to `rounds`. Meanwhile its
    newest message is used again."""

    rounds: Annotated[int, "the slowest node sends in every so many rounds"] = 3

    def __post_init__(self) -> None:
        _at_least("delay.nodes", self.rounds, 1)

    @property
    def most(self) -> int:
        return self.rounds - 1

    def ages(self, receivers: Ints, senders: Ints, round: int, seed: int) -> Ints:
        return round % (1 + _drawn("speed of a node", self.rounds, seed, senders))


DELAY = Kind(
    word="delay",
    names={"fixed": FixedDelay, "edges": EdgeDelay, "nodes": SlowNodes},
    base=Delay,
    group="clippedgossip.delays",
    fix="make it a Delay, with a method ages(receivers, senders, round, seed)",
    number="fixed",
    error=NetworkError,
)


def delay_of(said: Any) -> Delay:
    """A delay from Python: itself, a number of rounds, or the words that a config uses."""
    if isinstance(said, Delay):
        return said
    if isinstance(said, type) or not isinstance(said, int | str | Mapping):
        raise NetworkError(f"delay is {said!r}\ngive a number of rounds, {{'edges': 2}} or {{'nodes': 3}}")
    with errors_of(DELAY):
        found: Delay = decode(DELAY, said, ("delay",)).build()
    return found


def _drawn(purpose: str, count: int, seed: int, *counters: Ints) -> Ints:
    import torch

    from clippedgossip.randomness import hash_bits

    words = [torch.from_numpy(np.ascontiguousarray(counter)) for counter in counters]
    bits = hash_bits(seed, purpose, *words).numpy()
    found: Ints = (((bits >> 33) & 0x7FFFFFFF) * count) >> 31
    return found


def _at_least(name: str, value: int, bound: int) -> None:
    if value < bound:
        raise NetworkError(f"{name} is {value} rounds; it must be at least {bound}")
