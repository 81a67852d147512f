"""Sorting and selecting: the smallest entries of rows, and order statistics of a short list of tensors. The
latter are a network of minima and maxima.

`torch.sort` along a short, strided dimension is an order of magnitude slower than this on the CPU.
"""

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
    needed = set(wanted)
    kept: list[Comparator] = []
    for low, high in reversed(comparators):
        want_low, want_high = low in needed, high in needed
        if want_low or want_high:
            kept.append((low, high, want_low, want_high))
            needed |= {low, high}
    return tuple(reversed(kept))


def select(values: list[Tensor], wanted: range) -> list[Tensor]:
    """The order statistics at the wanted places; `values` is overwritten."""
    values = list(values)
    if values[0].is_cuda:
        return _select_purely(values, wanted)
    spare = torch.empty_like(values[0])
    for low, high, want_low, want_high in selection_network(len(values), frozenset(wanted)):
        a, b = values[low], values[high]
        if want_low and want_high:
            torch.minimum(a, b, out=spare)
            torch.maximum(a, b, out=b)
            values[low], spare = spare, a
        elif want_low:
            torch.minimum(a, b, out=a)
        else:
            torch.maximum(a, b, out=b)
    return [values[place] for place in wanted]


def middle(values: list[Tensor], trim: int) -> list[Tensor]:
    """All but the `trim` largest and smallest, in any order; `values` is overwritten.

    To peel off the ends of a few takes half the comparisons of sorting them.
    """
    size = len(values)
    wanted = range(trim, size - trim)
    peeling = sum(3 * (size - 2 * done) // 2 - 1 for done in range(trim))
    if peeling >= len(selection_network(size, frozenset(wanted))):
        return select(values, wanted)
    spare = torch.empty_like(values[0])
    for _ in range(trim):
        values, spare = _without_ends(values, spare)
    return values


def _without_ends(values: list[Tensor], spare: Tensor) -> tuple[list[Tensor], Tensor]:
    """Two or more values without the largest and the smallest, and a tensor to spare."""

    def ordered(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal spare
        if a.is_cuda:
            return _ordered_purely(a, b)
        low = torch.minimum(a, b, out=spare)
        spare = a
        return low, torch.maximum(a, b, out=b)

    lows, highs, rest = [], [], []
    for a, b in zip(values[0::2], values[1::2], strict=False):
        low, high = ordered(a, b)
        lows.append(low)
        highs.append(high)
    if len(values) % 2:  # a last value without a partner: of it and the first pair, the middle one is no end
        low, odd = ordered(lows[0], values[-1])
        odd, high = ordered(odd, highs[0])
        lows[0], highs[0] = low, high
        rest.append(odd)
    lowest, highest = lows[0], highs[0]
    for low in lows[1:]:
        lowest, inner = ordered(lowest, low)
        rest.append(inner)
    for high in highs[1:]:
        inner, highest = ordered(highest, high)
        rest.append(inner)
    return rest, spare


def _select_purely(values: list[Tensor], wanted: range) -> list[Tensor]:
    """The same without writing in place, for a compiler to keep in registers."""
    for low, high, want_low, want_high in selection_network(len(values), frozenset(wanted)):
        smaller, larger = _ordered_purely(values[low], values[high])
        if want_low:
            values[low] = smaller
        if want_high:
            values[high] = larger
    return [values[place] for place in wanted]


def _ordered_purely(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The smaller and the larger, for a compiler to keep in registers: one comparison and two choices, where
    a minimum that NaN passes through takes four instructions. A NaN may come out at any place."""
    less = a < b
    return torch.where(less, a, b), torch.where(less, b, a)


def sorted_with_weights(values: list[Tensor], weights: Tensor) -> tuple[Tensor, Tensor]:
    """(b, k+1, c) values in order, and the weight that belongs to each."""
    ordered, order = torch.stack(values, 1).sort(1)
    return ordered, weights[:, :, None].expand_as(ordered).gather(1, order)


def rounding(weights: Tensor) -> Tensor:
    """(b, 1) by how much sums of a node's weights (b, k) may miss what they should be: for float32 numbers,
    more. A rest of weight below it is none: a Byzantine message may be 1e30 times as long as a model."""
    narrow = (weights.float() == weights).all(-1, keepdim=True)
    return torch.full_like(narrow, 1e-9, dtype=torch.float64).masked_fill(narrow, 1e-6)


def beyond(weights: Tensor) -> Tensor:
    """(b, k) the weight after each place of a row. It is summed from the end: beside 1, a weight below 1e-16
    would be lost."""
    after = torch.nn.functional.pad(weights, (0, 1))[:, 1:]
    return after.flip(1).cumsum(1).flip(1)


def halfway(low: Tensor, high: Tensor) -> Tensor:
    """Their mean, between them for any two numbers: a sum might overflow."""
    return torch.add(low * 0.5, high, alpha=0.5)


def mean(values: list[Tensor], dtype: torch.dtype) -> Tensor:
    """The mean, summed in this type; the first value may be overwritten. A GPU keeps what each sum loses and
    adds it in the end, which is as good as float64 and takes no conversion."""
    first, *others = values
    if first.is_cuda:
        total, lost = first, torch.zeros_like(first)
        for value in others:
            grown = total + value
            part = grown - total
            lost = lost + ((total - (grown - part)) + (value - part))
            total = grown
        return (total + lost) / len(values)
    total = first.to(dtype)
    for value in others:
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
