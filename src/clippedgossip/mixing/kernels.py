"""The two heavy passes of a round: inner products of all rows, and a linear combination of them.

‖a‖²+‖b‖²−2ab on raw float32 models loses every digit near consensus. Here inner products are accumulated in
float64, where products of float32 are exact and never overflow: the error of a distance is at most a unit of
float32's rounding of the longer of its two ends, whatever huge row stands beside them. Nothing wider than
float64 is at hand for float64 rows, so their distances are taken from differences.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

CHUNK_BYTES = 4 << 20
HUGE = 2.0**60  # the coefficient of a longer row may be too small for float32: it is summed in float64
LONGEST = (
    2.0**490
)  # a float64 message beyond this is scaled down to it: squares of differences must not overflow
EDGE_BYTES = 16 << 20  # of messages at a time, where each is copied for its receiver
GPU_BYTES = 2 << 30  # the same on a GPU, where many small pieces take longer


@contextmanager
def full_precision() -> Iterator[None]:
    """No TF32 in a float32 product, whatever the training step asked for."""
    matmul = torch.backends.cuda.matmul
    before, matmul.allow_tf32 = matmul.allow_tf32, False
    try:
        yield
    finally:
        matmul.allow_tf32 = before


def column_chunks(rows: int, columns: int, itemsize: int, budget: int = CHUNK_BYTES) -> list[slice]:
    """Slices of coordinates such that `rows` of them stay within a cache-sized budget."""
    width = max(64, budget // max(1, rows * itemsize))
    return [slice(start, min(start + width, columns)) for start in range(0, columns, width)]


def message_chunks(messages: int, models: Tensor, itemsize: int = 4) -> list[slice]:
    """Slices of coordinates such that so many messages fit."""
    budget = GPU_BYTES if models.is_cuda else EDGE_BYTES
    return column_chunks(messages, models.shape[1], itemsize, budget)


def wide_chunks(models: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """A copy of a few coordinates of all models at a time, in float64: there, sums and squares of float32
    numbers do not overflow."""
    budget = GPU_BYTES if models.is_cuda else CHUNK_BYTES
    for part in column_chunks(2 * len(models), models.shape[1], 8, budget):
        yield part, models[:, part].to(torch.float64, copy=True)


def mean_model(models: Tensor) -> Tensor:
    """(d,) the mean of the models, summed in float64."""
    found = torch.empty_like(models[0])
    for part, wide in wide_chunks(models):
        found[part] = wide.mean(0)
    return found


def squared_distances(models: Tensor, centre: Tensor | None = None) -> Tensor:
    """(n,) ‖x_i − centre‖², float64. The mean of those to the models' own mean, the default, is Ξ."""
    total = models.new_zeros(len(models), dtype=torch.float64)
    for part, wide in wide_chunks(models):
        total += wide.sub_(wide.mean(0) if centre is None else centre[part]).square_().sum(1)
    return total


def gram(blocks: list[Tensor]) -> Tensor:
    """Inner products, in float64, of all rows of the blocks stacked; symmetric to the last bit."""
    first = blocks[0]
    if first.is_cuda and first.dtype == torch.float32:
        from clippedgossip.mixing.kernels_cuda import gram_cuda

        return gram_cuda(blocks)
    rows = sum(len(block) for block in blocks)
    total = first.new_zeros(rows, rows, dtype=torch.float64)
    # With one thread and few rows, the product is up to twice as fast if coordinates come first.
    turned = rows <= 64 and torch.get_num_threads() == 1
    parts = column_chunks(rows, first.shape[1], 8, 1 << 20 if turned else CHUNK_BYTES)
    scratch = total.new_empty(rows * (parts[0].stop if parts else 0))
    for part in parts:
        width, start = part.stop - part.start, 0
        room = scratch[: rows * width]
        chunk = room.view(width, rows).T if turned else room.view(rows, width)
        for block in blocks:
            chunk[start : start + len(block)] = block[:, part]
            start += len(block)
        total.addmm_(chunk, chunk.T)
    return symmetric(total)


def symmetric(products: Tensor) -> Tensor:
    """The lower triangle copied onto the upper one: a product's two halves may round differently, and what
    ties by definition must tie to the last bit."""
    lower = torch.tril(products)
    return lower.add_(torch.tril(lower, -1).mT)


def finite_rows(block: Tensor) -> Tensor:
    """(rows,) whether every element of a row is finite: smallest and largest are, and NaN would be both."""
    if not block.shape[1]:
        return block.new_ones(len(block), dtype=torch.bool)
    return torch.isfinite(block.amax(1)) & torch.isfinite(block.amin(1))


def shortened(block: Tensor) -> Tensor:
    """Scale float64 rows beyond LONGEST down to it by a power of two, which keeps their direction."""
    peaks = block.abs().amax(1, keepdim=True) if block.shape[1] else block.new_zeros(len(block), 1)
    if not bool((peaks > LONGEST).any()):
        return block
    down = torch.exp2((torch.log2(LONGEST / peaks)).floor()).clamp(max=1.0)
    return torch.where(torch.isfinite(peaks), block * down, block)


def saturated(messages: Tensor, dtype: torch.dtype) -> Tensor:
    """The messages in this type: an element beyond its range, also an infinite one, is its largest number.
    NaN stays."""
    most = torch.finfo(dtype).max
    if not messages.is_cuda and bool(finite_rows(found := messages.to(dtype)).all()):
        return found
    return messages.clamp(-most, most).to(dtype)


def linear_messages(
    coefficients: Tensor, models: Tensor, slots: Tensor, product: Callable[[Tensor], Tensor]
) -> Tensor:
    """(l, d) product(coefficients) = Σ_j coefficients[i, j]·models[slots[i, j]], saturated. What overflows on
    the way to the sum, and would make NaN, is summed in another way. Without a stop on a GPU."""
    most = torch.finfo(models.dtype).max
    if models.dtype == torch.float64:  # there is no wider type: sum smaller ones, by a power of two
        up = torch.log2(coefficients.abs().amax(1, keepdim=True)).ceil().clamp(0, 1024)
        down = torch.exp2(-up.nan_to_num() - math.ceil(math.log2(coefficients.shape[1])))
        return product(coefficients * down).clamp_(-most * down, most * down).div_(down)
    found = product(coefficients)
    wrong = ~(torch.isfinite(row_squares(found)) if found.is_cuda else finite_rows(found))
    if found.is_cuda or bool(wrong.any()):
        # Any float32 number but 0 is beyond the range, times the bound on a coefficient.
        bounded = coefficients.clamp(-(2.0**800), 2.0**800)
        found = sum_wide(bounded, models, slots, wrong, found).clamp_(-most, most)
    return found


def row_squares(block: Tensor) -> Tensor:
    """(rows,) ‖x‖² in float64, finite for every finite float32 row; NaN for a float64 row that is not."""
    if block.is_cuda and block.dtype == torch.float32:
        from clippedgossip.mixing.kernels_cuda import row_squares_cuda

        return row_squares_cuda(block)
    if block.dtype != torch.float64:
        norms: Tensor = torch.linalg.vector_norm(block, dim=1, dtype=torch.float64)
        return norms.square_()
    return torch.where(finite_rows(block), block.square().sum(1), torch.nan)


def row_lengths(block: Tensor) -> Tensor:
    """(rows,) ‖x‖ in float64, to a part in a thousand; not finite where an element is not."""
    if block.dtype != torch.float32 or block.is_cuda:
        return row_squares(block).sqrt()
    found: Tensor = torch.linalg.vector_norm(block, dim=1).double()
    again = ~torch.isfinite(found)  # or its square is above float32's largest
    if bool(again.any()):
        found[again] = row_squares(block[again]).sqrt()
    return found


def squared_along_edges(blocks: list[Tensor], slots: Tensor) -> Tensor:
    """(b, k) ‖x_i − x_j‖², in float64, for slots (b, k+1) that name rows of the blocks, own rows first."""
    first = blocks[0]
    if first.is_cuda and first.dtype == torch.float32:
        from clippedgossip.mixing.kernels_cuda import squared_along_edges_cuda

        return squared_along_edges_cuda(blocks, slots)
    total = torch.zeros(slots[:, 1:].shape, dtype=torch.float64, device=slots.device)
    for part in message_chunks(len(slots), first):
        held = torch.cat([block[:, part] for block in blocks])
        own = held[slots[:, 0]]
        for place in range(total.shape[1]):
            difference = held.index_select(0, slots[:, place + 1]).sub_(own)
            # No norm: its root rounds, and what ties must tie however the coordinates are divided.
            total[:, place] += difference.double().square_().sum(1)
    if first.dtype != torch.float64 and bool(torch.isinf(total).any()):  # above float32's largest
        return squared_along_edges([block.double() for block in blocks], slots)
    return total


def combine(
    coefficients: list[Tensor], blocks: list[Tensor], ok: Tensor, wide: Tensor | None, out: Tensor
) -> Tensor:
    """out ← Σ_b coefficients[b] @ blocks[b], in full precision, rows that are not `ok` left out.

    A row left out must have coefficient 0; it is skipped, since 0·NaN is NaN. Outputs that are `wide` are
    summed in float64: their terms cancel, or a coefficient is too small for float32.
    """
    if wide is None or not bool(wide.any()):
        return _combine(coefficients, blocks, ok, out)
    if not bool(wide.all()):
        _combine(coefficients, blocks, ok, out)
    weights = torch.cat(coefficients, 1)[wide]
    for part in column_chunks(sum(map(len, blocks)), out.shape[1], 8):
        held = torch.cat([block[:, part].double() for block in blocks])
        out[wide, part] = (weights @ torch.where(ok[:, None], held, 0.0)).to(out.dtype)
    return out


def _combine(coefficients: list[Tensor], blocks: list[Tensor], ok: Tensor, out: Tensor) -> Tensor:
    start = 0
    for place, (weights, block) in enumerate(zip(coefficients, blocks, strict=True)):
        fine, beta = ok[start : start + len(block)], 1 if place else 0
        start += len(block)
        weights = weights.to(block.dtype)
        if bool(fine.all()):
            torch.addmm(out, weights, block, beta=beta, out=out)
            continue
        if not bool(fine.any()):  # a product over no rows is 0, and would lose that a coefficient is NaN
            if not place:
                out.zero_()
            out += weights.sum(1, keepdim=True)
            continue
        for part in column_chunks(len(block), block.shape[1], block.element_size()):
            target = out[:, part]  # what is left is copied, so a little at a time
            torch.addmm(target, weights[:, fine], block[:, part][fine], beta=beta, out=target)
    return out


def sum_wide(coefficients: Tensor, held: Tensor, slots: Tensor, which: Tensor, out: Tensor) -> Tensor:
    """out[i] ← Σ_j coefficients[i, j]·held[slots[i, j]] in float64, for those i of `which`; others stay."""
    if out.is_cuda and out.dtype == torch.float32:
        from clippedgossip.mixing.kernels_cuda import sum_wide_cuda

        return sum_wide_cuda(coefficients, [held], slots, which.to(torch.int8), out)
    if not bool(which.any()):
        return out
    weights, rows = coefficients[which], slots[which]
    for part in message_chunks(rows.numel(), held, 8):
        terms = held[:, part][rows].double() * weights[:, :, None]
        out[which, part] = terms.sum(1).to(out.dtype)
    return out
