"""How the ranks of one attempt find each other in a store that may still hold what the last attempt left.

After `torchrun --max-restarts` restarts its workers they share a store with the dead ones, and the count of
restarts differs from host to host, so neither can tell a live address from a stale one. Tokens can.
"""

import secrets
import time
from dataclasses import dataclass

from torch.distributed.distributed_c10d import PrefixStore, Store

from clippedgossip.errors import RunError

POLL = 0.01


@dataclass(frozen=True)
class Meeting:
    """What the ranks of this attempt share: a corner of the store by its name, and a word from each."""

    name: str
    store: Store
    words: tuple[str, ...]


def meet(store: Store, rank: int, size: int, word: str, timeout: float) -> Meeting:
    """Return when all ranks are there.

    Everyone announces a fresh token; rank 0 calls the roll until each has answered to its own. Who finds its
    token on a roll knows that the caller lives, and who answers a caller's token lives as well.
    """
    token = secrets.token_hex(8)
    deadline = time.monotonic() + timeout
    store.set(f"here/{rank}", f"{token} {word}")
    caller, words = (
        _call(store, size, token, word, deadline)
        if rank == 0
        else _answer(store, rank, size, token, deadline)
    )
    return Meeting(caller, PrefixStore(caller, store), tuple(words))


def _call(store: Store, size: int, token: str, word: str, deadline: float) -> tuple[str, list[str]]:
    others = range(1, size)
    while True:
        here = [rank for rank in others if store.check([f"here/{rank}"])]
        if len(here) == len(others):
            found = [store.get(f"here/{rank}").decode() for rank in others]
            roll = "\n".join([f"{token} {word}", *found])
            store.set("roll", roll)
            if not others or store.check([f"{token}/{rank}" for rank in others]):
                return token, _words(roll)
        if time.monotonic() > deadline:
            missing = [rank for rank in others if not store.check([f"{token}/{rank}"])]
            raise RunError(f"{names(missing)} of {size} did not come; look at why they did not start")
        time.sleep(POLL)


def _answer(store: Store, rank: int, size: int, token: str, deadline: float) -> tuple[str, list[str]]:
    while True:
        if store.check(["roll"]):
            roll = store.get("roll").decode()
            tokens = [line.split(" ")[0] for line in roll.split("\n")]
            if len(tokens) == size and tokens[rank] == token:
                store.set(f"{tokens[0]}/{rank}", "")
                return tokens[0], _words(roll)
        if time.monotonic() > deadline:
            raise RunError(f"rank 0 of {size} did not come, rank {rank} waited; look at why it did not start")
        time.sleep(POLL)


def _words(roll: str) -> list[str]:
    return [line.partition(" ")[2] for line in roll.split("\n")]


def names(ranks: list[int]) -> str:
    """`rank 3`, or `ranks 1, 3`."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
