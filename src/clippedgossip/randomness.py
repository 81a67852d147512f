"""Randomness derived from (seed, purpose, node, round): no state, so every engine and peer draws the same.

Two forms. `generator` gives an ordinary `torch.Generator` for set-up work. The `hash_*` functions are
counter-based: each element of the result depends on its own counters alone, so a node's draws are the same
whoever else is in the call, on the CPU and on a GPU, and nothing waits for the device (they may be captured
in a CUDA graph with the round as a 0-dim tensor).
"""

import math
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor

Word = int | Tensor  # a signed 64-bit word, or a tensor of them
TURNS = 24  # of the shuffle of an epoch

_ONE_THREAD = threading.RLock()
_GOLDEN, _FIRST, _SECOND = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15


def key(seed: int, purpose: str, *counters: int) -> int:
    """A 64-bit key, stable over machines and versions of Python."""
    words = [str(word).encode() for word in (int(seed), *map(int, counters))]
    return int.from_bytes(blake2b(b"\0".join([purpose.encode(), *words]), digest_size=8).digest(), "big")


def generator(seed: int, purpose: str, *counters: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator for one purpose (and node, and round)."""
    return torch.Generator(device=device).manual_seed(key(seed, purpose, *counters))


def _wrap(word: Word) -> Word:
    # Tensors overflow as 64-bit words do; Python's integers must be reduced.
    return word if isinstance(word, Tensor) else ((word + (1 << 63)) & ((1 << 64) - 1)) - (1 << 63)


def _fold(word: Word, shift: int) -> Word:
    # `>>` keeps the sign; the mask makes it the logical shift that splitmix64 means.
    return word ^ ((word >> shift) & ((1 << (64 - shift)) - 1))


def _mix(word: Word) -> Word:
    """One step of splitmix64 (Steele, Lea and Flood, 2014)."""
    word = _wrap(word + _GOLDEN)
    word = _wrap(_fold(word, 30) * _FIRST)
    word = _wrap(_fold(word, 27) * _SECOND)
    return _fold(word, 31)


def purpose_word(purpose: str) -> int:
    """The word that a purpose's draws start from."""
    return int.from_bytes(blake2b(purpose.encode(), digest_size=8).digest(), "big", signed=True)


def hash_bits(seed: Word, purpose: str, *counters: Word) -> Tensor:
    """64 random bits for every combination of the broadcast counters, as int64. Put the counters of small
    shape first: the work is done at the shape reached so far."""
    word: Word = purpose_word(purpose)
    for counter in (seed, *counters):
        word = _mix(word ^ (counter if isinstance(counter, Tensor) else _wrap(int(counter))))
    return word if isinstance(word, Tensor) else torch.tensor(word)


def hash_uniform(seed: Word, purpose: str, *counters: Word, dtype: torch.dtype = torch.float32) -> Tensor:
    """Uniform in [0, 1), every value exact in `dtype`: the same bits on every device."""
    digits = 53 if dtype == torch.float64 else 24
    bits = (hash_bits(seed, purpose, *counters) >> (64 - digits)) & ((1 << digits) - 1)
    return bits.to(dtype) * 2.0**-digits


def hash_normal(seed: Word, purpose: str, *counters: Word, dtype: torch.dtype = torch.float32) -> Tensor:
    """Standard normal by Box and Muller: equal across devices up to rounding."""
    radius = 1.0 - hash_uniform(seed, purpose, *counters, 0, dtype=dtype)
    angle = hash_uniform(seed, purpose, *counters, 1, dtype=dtype)
    return (-2.0 * radius.log()).sqrt() * (2.0 * math.pi * angle).cos()


def _last(word: Word) -> Word:
    return word[..., None] if isinstance(word, Tensor) else word


def batch_indices(seed: Word, node_ids: Tensor, round: Word, sizes: Tensor, batch: int) -> Tensor:
    """Positions in each node's own samples for one round's batch, drawn with replacement: (n, batch).

    `seed`, `node_ids`, `round` and `sizes` broadcast, so `round[:, None]` gives (rounds, n, batch) and
    `seed[:, None]` gives (runs, n, batch) in one call.
    """
    slots = torch.arange(batch, device=node_ids.device)
    bits = hash_bits(_last(seed), "batch", _last(node_ids), _last(round), slots)
    return (((bits >> 33) & 0x7FFFFFFF) * sizes[..., None].long()) >> 31


def epoch_indices(
    seed: Word, node_ids: Tensor, round: Word, sizes: Tensor, batch: int, *, same: bool
) -> Tensor:
    """As `batch_indices`, but each sample comes once in an epoch. Every epoch has an order of its own, or the
    `same`; a batch may end one and begin the next. The swap-or-not shuffle (Hoang, Morris and Rogaway, 2012)
    finds a place in the order without the others: each turn pairs the places, and half of the pairs swap."""
    sizes = sizes[..., None].long()
    number = _last(round) * batch + torch.arange(batch, device=node_ids.device)
    place, epoch = number % sizes, 0 if same else number // sizes
    shuffle = hash_bits(_last(seed), "epoch", _last(node_ids), epoch)[..., None]
    turns = hash_bits(shuffle, "turn", torch.arange(TURNS, device=node_ids.device)).unbind(-1)
    for turn in turns:
        other = ((turn >> 1 & 0x7FFFFFFF) % sizes - place) % sizes
        bits = _mix(turn ^ torch.maximum(place, other))
        assert isinstance(bits, Tensor)
        place = torch.where(bits & 1 == 1, other, place)
    return place


def keep_mask(
    seed: Word, node_ids: Tensor, round: Word, layer: Word, shape: Sequence[int], rate: float
) -> Tensor:
    """Dropout's mask, True with probability 1 - rate: (n, *shape), fresh for each node, round and layer."""
    count = math.prod(shape)
    quads = torch.arange(-(-count // 4), device=node_ids.device)
    bits = hash_bits(_last(seed), "dropout", layer, _last(node_ids), _last(round), quads)
    # Four draws from each word. PyTorch 2.11's `vmap` cannot batch `view(torch.int16)`.
    places = torch.arange(0, 64, 16, device=node_ids.device)
    lots = ((bits[..., None] >> places) & 0xFFFF ^ 0x8000).flatten(-2)[..., :count] - 0x8000
    return (lots >= int(rate * 65536) - 32768).reshape(*lots.shape[:-1], *shape)


@contextmanager
def own_randomness(
    seed: int | None = None, devices: Sequence[torch.device] = ()
) -> Iterator[Callable[[], bool]]:
    """The global random numbers of PyTorch (on the CPU and these GPUs), Python and NumPy, from a seed if
    there is one; their states come back. All threads share them, so one thread at a time is in here. Without
    a seed, gives a function that says whether any of Python's or NumPy's were drawn."""
    with _ONE_THREAD, torch.random.fork_rng(devices=list(devices)):
        before = random.getstate(), np.random.get_state()
        if seed is not None:
            seed_all(seed, on_gpu=bool(devices))
        try:
            yield lambda: (random.getstate(), _words(np.random.get_state())) != (before[0], _words(before[1]))
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])


def seed_all(seed: int, *, on_gpu: bool = False) -> None:
    """The global random numbers of PyTorch, Python and NumPy from a seed; within `own_randomness`."""
    # Not torch.manual_seed: it keeps a record of each call, for devices not yet in use.
    torch.default_generator.manual_seed(seed)
    if on_gpu:
        torch.cuda.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def _words(state: Any) -> tuple[object, ...]:
    """A state of NumPy's as something that can be compared."""
    return tuple(part.tobytes() if isinstance(part, np.ndarray) else part for part in state)


@contextmanager
def drawn_from(seed: int) -> Iterator[None]:
    """`own_randomness` for what may be made on any device."""
    with own_randomness(seed):
        torch.manual_seed(seed)
        yield
