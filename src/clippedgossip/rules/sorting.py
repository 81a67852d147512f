"""Sorting and selecting: the smallest entries of rows, and order statistics of a short list of tensors. The
latter are a network of minima and maxima.

`torch.sort` along a short, strided dimension is an order of magnitude slower than this on the CPU.
"""

from collections.abc import Iterable
from functools import cache

import torch
from torch import Tensor

from clippedgossip.devices import constant

Comparator = tuple[int, int, bool, bool]  # (low, high, minimum wanted, maximum wanted)


@constant
def selection_network(size: int, wanted: frozenset[int]) -> tuple[Comparator, ...]:
    """The comparators that bring the order statistics at the wanted places there."""
    return _network(size, wanted)


@cache
def _network(size: int, wanted: frozenset[int]) -> tuple[Comparator, ...]:
    """Batcher's odd-even merge sort, without the parts that do not lead to a wanted place."""
    comparators = []
    p = 1
    while p < size:
        k = p
        while k >= 1:
            for j in range(k % p, size - k, 2 * k):
                comparators += [
                    (low, low + k)
                    for low in range(j, min(j + k, size - k))
                    if low // (2 * p) == (low + k) // (2 * p)
                ]
            k //= 2
        p *= 2
    return _leading_to(wanted, comparators)


def _leading_to(wanted: Iterable[int], comparators: list[tuple[int, int]]) -> tuple[Comparator, ...]:
    needed = set(wanted)
    kept: list[Comparator] = []
    for low, high in reversed(comparators):
        want_low, want_high = low in needed, high in needed
        if want_low or want_high:
            kept.append((low, high, want_low, want_high))
            needed |= {low, high}
    return tuple(reversed(kept))


@cache
def middle_network(size: int, trim: int) -> tuple[tuple[Comparator, ...], tuple[int, ...]]:
    """The comparators that part the `trim` largest and smallest from the others, and where the others are
    then. To peel off the ends of a few takes half the comparisons of sorting them."""
    wanted = range(trim, size - trim)
    sorting = _network(size, frozenset(wanted))
    if sum(3 * (size - 2 * done) // 2 - 1 for done in range(trim)) >= len(sorting):
        return sorting, tuple(wanted)
    comparators: list[tuple[int, int]] = []
    places = list(range(size))
    for _ in range(trim):
        lows, highs, rest = places[0 : size - size % 2 : 2], places[1::2], []
        comparators += zip(lows, highs, strict=True)
        if size % 2:  # a last one without a partner: of it and the first pair, the middle one is no end
            rest = places[-1:]
            comparators += [(lows[0], rest[0]), (rest[0], highs[0])]
        comparators += [(lows[0], low) for low in lows[1:]] + [(high, highs[0]) for high in highs[1:]]
        places, size = rest + lows[1:] + highs[1:], size - 2
    return _leading_to(places, comparators), tuple(places)


def select(values: list[Tensor], wanted: range) -> list[Tensor]:
    """The order statistics at the wanted places; `values` is overwritten."""
    compare = _compare_purely if values[0].is_cuda else _compare
    values = compare(values, selection_network(len(values), frozenset(wanted)))
    return [values[place] for place in wanted]


def middle(values: list[Tensor], trim: int) -> list[Tensor]:
    """All but the `trim` largest and smallest, in any order; `values` is overwritten."""
    comparators, places = middle_network(len(values), trim)
    values = _compare(values, comparators)
    return [values[place] for place in places]


def _compare(values: list[Tensor], comparators: Iterable[Comparator]) -> list[Tensor]:
    values, spare = list(values), torch.empty_like(values[0])
    for low, high, want_low, want_high in comparators:
        a, b = values[low], values[high]
        if want_low and want_high:
            torch.minimum(a, b, out=spare)
            torch.maximum(a, b, out=b)
            values[low], spare = spare, a
        elif want_low:
            torch.minimum(a, b, out=a)
        else:
            torch.maximum(a, b, out=b)
    return values


def _compare_purely(values: list[Tensor], comparators: Iterable[Comparator]) -> list[Tensor]:
    """The same without writing in place, for a compiler to keep in registers: one comparison and two choices,
    where a minimum that NaN passes through takes four instructions. A NaN may come out at any place."""
    values = list(values)
    for low, high, want_low, want_high in comparators:
        a, b = values[low], values[high]
        less = a < b
        if want_low:
            values[low] = torch.where(less, a, b)
        if want_high:
            values[high] = torch.where(less, b, a)
    return values


def sorted_with_weights(values: list[Tensor], weights: Tensor) -> tuple[Tensor, Tensor]:
    """(b, k+1, c) values in order, and the weight that belongs to each."""
    ordered, order = torch.stack(values, 1).sort(1)
    return ordered, weights[:, :, None].expand_as(ordered).gather(1, order)


def rounding(weights: Tensor) -> Tensor:
    """(b, 1) by how much sums of a node's weights (b, k) may miss what they should be: for float32 numbers,
    more. A rest of weight below it is none: a Byzantine message may be 1e30 times as long as a model."""
    narrow = (weights.float() == weights).all(-1, keepdim=True)
    return torch.full_like(narrow, 1e-9, dtype=torch.float64).masked_fill(narrow, 1e-6)


def before(weights: Tensor) -> Tensor:
    """(b, k, …) the weight before each place of a row; 0, exactly, before the first."""
    return torch.cat([torch.zeros_like(weights[:, :1]), weights[:, :-1]], 1).cumsum(1)


def beyond(weights: Tensor) -> Tensor:
    """(b, k, …) the weight after each place of a row. From the end: beside 1, one below 1e-16 is lost."""
    return before(weights.flip(1)).flip(1)


def halfway(low: Tensor, high: Tensor) -> Tensor:
    """Their mean, between them for any two numbers: a sum might overflow."""
    return torch.add(low * 0.5, high, alpha=0.5)


def mean(values: list[Tensor], dtype: torch.dtype) -> Tensor:
    """The mean, summed in this type; the first value may be overwritten."""
    total = values[0].to(dtype)
    for value in values[1:]:
        total += value
    return total.div_(len(values))


def nearest(keys: Tensor, count: Tensor) -> Tensor:
    """Mask of the `count` (b,) smallest entries of each row of keys (b, k); ties go to the earlier one."""
    rank = keys.argsort(dim=-1, stable=True).argsort(-1)
    return rank < count.reshape(*count.shape, *([1] * (keys.dim() - count.dim())))


def uniform_over(chosen: Tensor) -> Tensor:
    """Equal coefficients on the chosen entries of each row."""
    share = chosen.to(torch.float64)
    return share / share.sum(-1, keepdim=True)
