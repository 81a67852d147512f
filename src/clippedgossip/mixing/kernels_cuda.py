"""The two heavy passes on a GPU. Each reads every model once.

Inner products are taken in float64, where products of float32 numbers are exact, as on a CPU. Data-centre
GPUs have float64 tensor cores. A message that is a sum of models may be so near that rounding hides the
distance: further kernels take such distances again, from differences. They always run, and end at once if
there is nothing to do: a captured round cannot read on the CPU whether they are needed.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from clippedgossip.mixing.kernels import HUGE, column_chunks, full_precision, symmetric
from clippedgossip.mixing.launches import launch
from clippedgossip.mixing.slots import Layout

MOST_ROWS = 128
FLOAT64_DOT = tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (3, 5)
GRAM = {32: (2112, 4, 1), 64: (2112, 3, 2)}
"""For so many rows: the most programs (an H200 has 132 multiprocessors), stages, warps. For more
rows, cuBLAS multiplies copies in float64."""
GRAM_BLOCK = 32  # coordinates at a time
GRAM_STEPS = 32  # blocks in one sum: 1,024 products round by less than `inbox.SLACK`
COMBINE = {32: (64, 8, 3, 2), 128: (64, 1, 1, 4)}
"""For so many rows: coordinates at a time, how many times, stages, warps."""
AGAIN = 16  # programs that share a row which is taken again
FARTHEST = tl.constexpr(HUGE)
UNIT = 2.0**-46  # error of a product of two rows, by their lengths
CERTAIN = (
    16 * 2.0**-23
)  # a distance D may be off by this times ‖x_i‖ + D, as rounding the result to float32 is


@triton.jit
def _rows_on(
    models, extra, first, column, inside, n, rows, models_stride, extra_stride, ROWS: tl.constexpr,
    EXTRA: tl.constexpr,
):  # fmt: skip
    """So many rows of [models; extra] from the first one on, on a few coordinates, in float64; zeros below
    the last."""
    row = first + tl.arange(0, ROWS)
    tile = tl.load(
        models + row[:, None].to(tl.int64) * models_stride + column[None, :],
        mask=(row < n)[:, None] & inside[None, :],
        other=0.0,
    )
    if EXTRA:
        others = tl.load(
            extra + (row[:, None] - n).to(tl.int64) * extra_stride + column[None, :],
            mask=((row >= n) & (row < rows))[:, None] & inside[None, :],
            other=0.0,
        )
        tile = tl.where((row < n)[:, None], tile, others)
    return tile.to(tl.float64)


@triton.jit
def _added(
    upper, across, lower, models, extra, column, inside, n, rows, models_stride, extra_stride,
    HALF: tl.constexpr, EXTRA: tl.constexpr,
):  # fmt: skip
    """The products within the upper half of the rows, of the lower with the upper half, and within the lower
    half, with those on a few coordinates added."""
    one = _rows_on(models, extra, 0, column, inside, n, rows, models_stride, extra_stride, HALF, EXTRA)
    two = _rows_on(models, extra, HALF, column, inside, n, rows, models_stride, extra_stride, HALF, EXTRA)
    upper = tl.dot(one, tl.trans(one), upper, out_dtype=tl.float64)
    across = tl.dot(two, tl.trans(one), across, out_dtype=tl.float64)
    lower = tl.dot(two, tl.trans(two), lower, out_dtype=tl.float64)
    return upper, across, lower


@triton.jit
def _gram_kernel(
    models, extra, output, n, rows, columns, models_stride, extra_stride, groups, steps, HALF: tl.constexpr,
    BLOCK: tl.constexpr, EXTRA: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Inner products of all rows, on some coordinates: sums of sums, so that rounding does not add up. Of the
    products across the two halves of the rows, one half is taken."""
    program = tl.program_id(0).to(tl.int64)
    whole = columns // BLOCK * BLOCK  # the compiler sees that it may read wide words up to here
    upper = tl.zeros((HALF, HALF), dtype=tl.float64)
    across = tl.zeros((HALF, HALF), dtype=tl.float64)
    lower = tl.zeros((HALF, HALF), dtype=tl.float64)
    for group in range(groups):
        some_upper = tl.zeros((HALF, HALF), dtype=tl.float64)
        some_across = tl.zeros((HALF, HALF), dtype=tl.float64)
        some_lower = tl.zeros((HALF, HALF), dtype=tl.float64)
        for step in tl.range(0, steps, num_stages=STAGES):
            column = ((program * groups + group) * steps + step) * BLOCK + tl.arange(0, BLOCK)
            some_upper, some_across, some_lower = _added(
                some_upper, some_across, some_lower, models, extra, column, column < whole, n, rows,
                models_stride, extra_stride, HALF, EXTRA,
            )  # fmt: skip
        upper += some_upper
        across += some_across
        lower += some_lower
    if program == 0:
        column = whole.to(tl.int64) + tl.arange(0, BLOCK)
        upper, across, lower = _added(
            upper, across, lower, models, extra, column, column < columns, n, rows,
            models_stride, extra_stride, HALF, EXTRA,
        )  # fmt: skip
    row = tl.arange(0, HALF)
    place = output + program * 4 * HALF * HALF + row[:, None] * 2 * HALF + row[None, :]
    tl.store(place, (upper + tl.trans(upper)) / 2)  # its two halves may round differently
    tl.store(place + HALF, tl.trans(across))
    tl.store(place + 2 * HALF * HALF, across)
    tl.store(place + 2 * HALF * HALF + HALF, (lower + tl.trans(lower)) / 2)


@triton.jit
def _total_kernel(partial, total, programs, ROWS: tl.constexpr, MANY: tl.constexpr):
    """A row of the products, summed over the programs: both halves in the same order, so they stay equal."""
    row = tl.program_id(0)
    other = tl.arange(0, ROWS)
    sums = tl.zeros((MANY, ROWS), dtype=tl.float64)
    for start in range(0, programs, MANY):
        program = (start + tl.arange(0, MANY)).to(tl.int64)
        place = partial + (program[:, None] * ROWS + row) * ROWS + other[None, :]
        sums += tl.load(place, mask=(program < programs)[:, None], other=0.0)
    tl.store(total + row * ROWS + other, tl.sum(sums, 0))


@triton.jit
def _values(
    models, extra, linear, source, column, inside, n, written, models_stride, extra_stride,
    EXTRA: tl.constexpr, LINEAR: tl.constexpr,
):  # fmt: skip
    """A row of [models; linear @ models; extra] on a few coordinates, in float64."""
    found = tl.load(models + source * models_stride + column, mask=inside & (source < n), other=0.0).to(
        tl.float64
    )
    if EXTRA:
        found += tl.load(
            extra + (source - written) * extra_stride + column, mask=inside & (source >= written), other=0.0
        ).to(tl.float64)
    if LINEAR:  # noqa: SIM102 - known when compiled
        if (source >= n) & (source < written):
            for j in range(n):
                share = tl.load(linear + (source - n) * n + j)
                value = tl.load(
                    models + tl.cast(j, tl.int64) * models_stride + column, mask=inside, other=0.0
                )
                found += tl.where(share != 0.0, share * value.to(tl.float64), 0.0)  # 0·NaN is NaN
    return found


@triton.jit
def _squared_kernel(
    products, sizes, slots, output, uncertain, k, stride, unit, certain, PADDED: tl.constexpr,
    SIZES: tl.constexpr,
):  # fmt: skip
    """‖x_i − x_j‖² of one node's slots from the products; and, where some rows are sums of models, which of
    the distances are lost in rounding."""
    node = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, PADDED)
    here = place < k
    own = tl.load(slots + node * (k + 1))
    other = tl.load(slots + node * (k + 1) + 1 + place, mask=here, other=0)
    other = tl.where(here, other, own)
    mine = tl.load(products + own * stride + own)
    theirs = tl.load(products + other * stride + other)
    squared = tl.maximum(mine + theirs - 2 * tl.load(products + own * stride + other), 0.0)
    tl.store(output + node * k + place, squared, mask=here)
    if SIZES:
        norm, distance = tl.sqrt(tl.maximum(mine, 0.0)), tl.sqrt(squared)
        size = mine + tl.load(sizes + other)
        unclear = unit * size > certain * tl.maximum(distance, certain * norm) * (norm + distance)
        tl.store(uncertain + node * k + place, (unclear & (other != own)).to(tl.int8), mask=here)


@triton.jit
def _again_kernel(
    models, extra, linear, slots, which, output, n, written, k, columns, models_stride, extra_stride, steps,
    BLOCK: tl.constexpr, EXTRA: tl.constexpr, LINEAR: tl.constexpr,
):  # fmt: skip
    """⟨x_j − x_i, x_l − x_i⟩ of the nodes in `which`, the lower half, in float64."""
    node = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1)
    part = tl.program_id(2).to(tl.int64)
    if tl.load(which + node) == 0:
        return
    closed = k + 1
    own = tl.load(slots + node * closed)
    a = tl.load(slots + node * closed + first)
    for second in range(first + 1):
        b = tl.load(slots + node * closed + second)
        total = tl.zeros((BLOCK,), dtype=tl.float64)
        for step in range(steps):
            column = (part * steps + step) * BLOCK + tl.arange(0, BLOCK)
            inside = column < columns
            mine = _values(
                models, extra, linear, own, column, inside, n, written,
                models_stride, extra_stride, EXTRA, LINEAR,
            )  # fmt: skip
            one = _values(
                models, extra, linear, a, column, inside, n, written,
                models_stride, extra_stride, EXTRA, LINEAR,
            )  # fmt: skip
            other = _values(
                models, extra, linear, b, column, inside, n, written,
                models_stride, extra_stride, EXTRA, LINEAR,
            )  # fmt: skip
            total += (one - mine) * (other - mine)
        place = ((node * closed + first) * closed + second) * tl.num_programs(2) + part
        tl.store(output + place, tl.sum(total))


@triton.jit
def _slots_kernel(products, slots, own, output, k, stride, PADDED: tl.constexpr):
    """Own row, then the received ones: the own row in place of what is not finite."""
    node = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, PADDED)
    here = place < k
    mine = tl.load(own + node)
    slot = tl.load(slots + node * k + place, mask=here, other=0)
    fine = tl.abs(tl.load(products + slot * (stride + 1), mask=here, other=0.0)) < float("inf")
    tl.store(output + node * (k + 1), mine)
    tl.store(output + node * (k + 1) + 1 + place, tl.where(fine, slot, mine), mask=here)


@triton.jit
def _spread_kernel(
    coefficients, slots, products, linear, weights, norms, wide, n, written, rows, closed, stride, terms,
    PADDED: tl.constexpr, SOME: tl.constexpr, LINEAR: tl.constexpr,
):  # fmt: skip
    """From an output's coefficients by slot, those by row of [models; extra], and whether this sum needs
    float64, as in `inbox._wide`. And the rows' norms, infinite where a row is not finite."""
    output = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, PADDED)
    inside = row < rows
    square = tl.load(products + row * (stride + 1), mask=inside, other=0.0)
    fine = tl.abs(square) < float("inf")  # false for NaN as well
    norm = tl.where(fine, tl.sqrt(tl.maximum(square, 0.0)), float("inf"))
    spread = tl.zeros((PADDED,), dtype=tl.float64)
    for start in range(0, closed, SOME):
        place = start + tl.arange(0, SOME)
        slot = tl.load(slots + output * closed + place, mask=place < closed, other=rows)[:, None]
        share = tl.load(coefficients + output * closed + place, mask=place < closed, other=0.0)[:, None]
        spread += tl.sum(tl.where(slot == row[None, :], share, 0.0), 0)
        if LINEAR:
            within = (slot >= n) & (slot < written) & (row < n)[None, :]
            spread += tl.sum(
                share * tl.load(linear + (slot - n) * n + row[None, :], mask=within, other=0.0), 0
            )
    held = inside & ((row < n) | (row >= written))
    own = tl.load(slots + output * closed)
    mine = tl.sum(tl.where(row == own, norm, 0.0))
    spread = tl.where(mine < float("inf"), spread, float("nan"))  # a diverged node stays so
    at = tl.where(row < n, row, row - (written - n))
    tl.store(weights + output * (rows - (written - n)) + at, spread, mask=held)
    if output == 0:
        tl.store(norms + at, norm, mask=held)
    used = held & fine & (tl.abs(spread) > 0)
    far = tl.max((used & (norm > FARTHEST)).to(tl.int32))
    total = tl.sum(tl.where(used, tl.abs(spread) * norm, 0.0))
    tl.store(wide + output, ((far > 0) | (total > terms * mine)).to(tl.int8))


@triton.jit
def _sum_wide_kernel(
    coefficients, slots, which, models, extra, output, n, terms, columns, coefficients_stride, models_stride,
    extra_stride, output_stride, steps, BLOCK: tl.constexpr, EXTRA: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """Σ_j c_j x_j in float64, for the outputs in `which`."""
    row = tl.program_id(0).to(tl.int64)
    if tl.load(which + row) == 0:
        return
    part = tl.program_id(1).to(tl.int64)
    for step in range(steps):
        column = (part * steps + step) * BLOCK + tl.arange(0, BLOCK)
        inside = column < columns
        total = tl.zeros((BLOCK,), dtype=tl.float64)
        for j in range(terms):
            share = tl.load(coefficients + row * coefficients_stride + j)
            source = tl.cast(j, tl.int64)
            if SLOTS:
                source = tl.load(slots + row * terms + j)
            value = _values(
                models, extra, models, source, column, inside, n, n,
                models_stride, extra_stride, EXTRA, False,
            )  # fmt: skip
            total += tl.where(share != 0.0, share * value, 0.0)  # 0·NaN is NaN
        tl.store(output + row * output_stride + column, total.to(tl.float32), mask=inside)


@triton.jit
def _edges_kernel(
    models, extra, linear, slots, which, output, n, written, k, columns, models_stride, extra_stride, steps,
    BLOCK: tl.constexpr, EXTRA: tl.constexpr, LINEAR: tl.constexpr, SOME: tl.constexpr,
):  # fmt: skip
    """‖x_i − x_j‖² along the edges, or along those in `which`: in float64, where nothing overflows."""
    node = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1).to(tl.int64)
    own = tl.load(slots + node * (k + 1))
    for place in range(k):
        wanted = 1
        if SOME:
            wanted = tl.load(which + node * k + place).to(tl.int32)
        if wanted != 0:
            source = tl.load(slots + node * (k + 1) + place + 1)
            total = tl.zeros((BLOCK,), dtype=tl.float64)
            for step in range(steps):
                column = (part * steps + step) * BLOCK + tl.arange(0, BLOCK)
                inside = column < columns
                here = _values(
                    models, extra, linear, own, column, inside, n, written,
                    models_stride, extra_stride, EXTRA, LINEAR,
                )  # fmt: skip
                there = _values(
                    models, extra, linear, source, column, inside, n, written,
                    models_stride, extra_stride, EXTRA, LINEAR,
                )  # fmt: skip
                total += (there - here) * (there - here)
            tl.store(output + (node * k + place) * tl.num_programs(1) + part, tl.sum(total))


@triton.jit
def _row_squares_kernel(models, output, columns, stride, steps, BLOCK: tl.constexpr):
    """‖x‖² of a part of a row, in float64."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    total = tl.zeros((BLOCK,), dtype=tl.float64)
    for step in range(steps):
        column = (part * steps + step) * BLOCK + tl.arange(0, BLOCK)
        value = tl.load(models + row * stride + column, mask=column < columns, other=0.0).to(tl.float64)
        total += value * value
    tl.store(output + row * tl.num_programs(1) + part, tl.sum(total))


@triton.jit
def _mix(
    weights, read, models, extra, output, column, inside, outputs, n, rows, models_stride, extra_stride,
    output_stride, ROWS: tl.constexpr, EXTRA: tl.constexpr,
):  # fmt: skip
    row = tl.arange(0, ROWS)
    tile = tl.load(
        models + row[:, None].to(tl.int64) * models_stride + column[None, :],
        mask=(read & (row < n))[:, None] & inside[None, :],
        other=0.0,
    )
    if EXTRA:
        others = tl.load(
            extra + (row[:, None] - n).to(tl.int64) * extra_stride + column[None, :],
            mask=(read & (row >= n) & (row < rows))[:, None] & inside[None, :],
            other=0.0,
        )
        tile = tl.where((row < n)[:, None], tile, others)
    mixed = tl.dot(weights, tile, input_precision="tf32x3")
    tl.store(
        output + row[:, None].to(tl.int64) * output_stride + column[None, :],
        mixed,
        mask=(row < outputs)[:, None] & inside[None, :],
    )


@triton.jit
def _combine_kernel(
    coefficients, norms, models, extra, output, outputs, n, rows, columns, coefficients_stride, models_stride,
    extra_stride, output_stride, steps, ROWS: tl.constexpr, BLOCK: tl.constexpr, EXTRA: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, ROWS)
    weights = tl.load(
        coefficients + row[:, None] * coefficients_stride + row[None, :],
        mask=(row < outputs)[:, None] & (row < rows)[None, :],
        other=0.0,
    ).to(tl.float32)
    # Rows that are not finite are not read: 0·NaN is NaN. Nor are long ones, since TF32 rounds 3.4e38 to
    # infinity: sums with such a row are taken again.
    read = tl.load(norms + row, mask=row < rows, other=float("inf")) <= FARTHEST
    whole = columns // BLOCK * BLOCK  # the compiler sees that it may use wide words up to here
    for step in tl.range(0, steps, num_stages=STAGES):
        column = (program * steps + step) * BLOCK + tl.arange(0, BLOCK)
        _mix(
            weights, read, models, extra, output, column, column < whole,
            outputs, n, rows, models_stride, extra_stride, output_stride, ROWS, EXTRA,
        )  # fmt: skip
    if program == 0:
        column = whole.to(tl.int64) + tl.arange(0, BLOCK)
        _mix(
            weights, read, models, extra, output, column, column < columns,
            outputs, n, rows, models_stride, extra_stride, output_stride, ROWS, EXTRA,
        )  # fmt: skip


@triton.jit
def _joined(values, value):
    return values + (value,)  # noqa: RUF005 - Triton knows no unpacking


@triton.jit
def _compared(values, low: tl.constexpr, high: tl.constexpr, SIZE: tl.constexpr):
    """The tuple with the smaller of two values at one of their places, and the larger at the other."""
    found = ()
    for at in tl.static_range(SIZE):
        if at == low:
            found = _joined(found, tl.minimum(values[low], values[high]))
        elif at == high:
            found = _joined(found, tl.maximum(values[low], values[high]))
        else:
            found = _joined(found, values[at])
    return found


@triton.jit
def _at(values, place: tl.constexpr):
    return values[place]


@triton.jit
def _middle_kernel(
    models, extra, rows, output, n, nodes, columns, models_stride, extra_stride, output_stride,
    SIZE: tl.constexpr, NETWORK: tl.constexpr, PLACES: tl.constexpr, BLOCK: tl.constexpr, EXTRA: tl.constexpr,
):  # fmt: skip
    """Per coordinate, the mean of what a network of comparators leaves at some places. All nodes in turn, so
    that what they have in common is read from memory once."""
    column = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    for node in range(nodes):
        values = ()
        for place in tl.static_range(SIZE):
            row = tl.load(rows + node * SIZE + place)
            source = models + row * models_stride
            if EXTRA:
                source = tl.where(row < n, source, extra + (row - n) * extra_stride)
            values = _joined(values, tl.load(source + column, mask=inside, other=0.0))
        own = _at(values, 0)
        for at in tl.static_range(0, len(NETWORK), 2):
            values = _compared(values, NETWORK[at], NETWORK[at + 1], SIZE)
        total = tl.zeros((BLOCK,), dtype=tl.float64)
        for at in tl.static_range(len(PLACES)):
            total += _at(values, PLACES[at]).to(tl.float64)
        found = (total / len(PLACES)).to(own.dtype)
        found = tl.where(own == own, found, own)  # a diverged node stays so; a comparison may lose its NaN
        tl.store(output + node * output_stride + column, found, mask=inside)


@triton.jit
def _products_kernel(whole, slots, output, closed, stride, PADDED: tl.constexpr):
    """⟨x_j − x_i, x_l − x_i⟩ of one of node i's slots with all of them."""
    node, place = tl.program_id(0).to(tl.int64), tl.program_id(1)
    others = tl.arange(0, PADDED)
    here = others < closed
    own = tl.load(slots + node * closed)
    one = tl.load(slots + node * closed + place)
    other = tl.load(slots + node * closed + others, mask=here, other=0)
    across = tl.load(whole + one * stride + other) + tl.load(whole + own * stride + own)
    found = across - (tl.load(whole + one * stride + own) + tl.load(whole + other * stride + own))
    tl.store(output + (node * closed + place) * closed + others, found, mask=here)


def local_products(whole: Tensor, slots: Tensor) -> Tensor:
    """(b, k+1, k+1) ⟨x_j − x_i, x_l − x_i⟩ for slots (b, k+1), own rows first, from all inner products."""
    nodes, closed = slots.shape
    output = torch.empty(nodes, closed, closed, dtype=torch.float64, device=slots.device)
    if nodes:
        launch(
            _products_kernel, (nodes, closed),
            whole, slots.contiguous(), output, closed, whole.stride(0), PADDED=triton.next_power_of_2(closed),
        )  # fmt: skip
    return output


@triton.jit
def _center_kernel(
    products, reach, present, output, k, iterations, radius, slack, PADDED: tl.constexpr, CLIP: tl.constexpr,
):  # fmt: skip
    node = tl.program_id(0)
    a = tl.arange(0, PADDED)
    here = (tl.load(present + node * k + a, mask=a < k, other=0) != 0).to(tl.float64)
    table = tl.load(
        products + node * k * k + a[:, None] * k + a[None, :],
        mask=(a < k)[:, None] & (a < k)[None, :],
        other=0.0,
    )
    norms = tl.load(products + node * k * k + a * (k + 1), mask=a < k, other=0.0)
    size = tl.load(reach + node * k + a, mask=a < k, other=0.0)
    limit = tl.load(radius)
    mean = here / tl.sum(here)
    share = mean
    if CLIP:
        share = (a == 0).to(tl.float64)
    for _ in range(iterations):
        across = tl.sum(table * share[None, :], axis=1)
        squared = tl.maximum(norms - 2 * across + tl.sum(across * share), 0.0)
        terms = tl.sum(tl.abs(share) * size) + size
        distance = tl.sqrt(squared + slack * terms * terms)
        if CLIP:
            pull = mean * tl.where(distance > limit, limit / distance, 1.0)
            share = share * (1 - tl.sum(pull)) + pull
        else:
            pull = here / tl.maximum(distance, limit)
            share = pull / tl.sum(pull)
    tl.store(output + node * k + a, share, mask=a < k)


def center_cuda(
    products: Tensor, reach: Tensor, present: Tensor, iterations: int, radius: float, slack: float, clip: bool
) -> Tensor:
    """The iterations of `GeometricMedian`, whose smoothing is `radius`, or of `CenteredClipping` if `clip`:
    all of them in one launch."""
    nodes, k = present.shape
    output = torch.empty(nodes, k, dtype=torch.float64, device=products.device)
    exact = torch.full((1,), radius, dtype=torch.float64, device=products.device)  # a number becomes float32
    if nodes:
        launch(
            _center_kernel, (nodes,),
            products.contiguous(), reach.contiguous(), present.contiguous(), output, k, iterations, exact,
            slack, PADDED=triton.next_power_of_2(k), CLIP=clip,
        )  # fmt: skip
    return output


@triton.jit
def _half_step_kernel(
    models, momentum, half, gradient, keep, gain, lr, start, size, models_stride, momentum_stride,
    half_stride, CHANNELS: tl.constexpr, TAPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Momentum and half-step of one piece. Its gradient lies (filters, taps, channels) if it has channels."""
    row = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = column < size
    place = start + column
    source = column
    if CHANNELS > 1:
        kernel = column // (CHANNELS * TAPS) * (CHANNELS * TAPS)
        source = kernel + column % TAPS * CHANNELS + column // TAPS % CHANNELS
    held = tl.load(momentum + row * momentum_stride + place, mask=inside, other=0.0)
    found = tl.load(gradient + row * size + source, mask=inside, other=0.0).to(tl.float32)
    model = tl.load(models + row * models_stride + place, mask=inside, other=0.0)
    held = tl.load(keep) * held + tl.load(gain) * found
    tl.store(momentum + row * momentum_stride + place, held, mask=inside)
    tl.store(half + row * half_stride + place, model - tl.load(lr) * held, mask=inside)


def half_step_cuda(
    models: Tensor,
    momentum: Tensor,
    half: Tensor,
    gradients: Sequence[Tensor],
    gain: tuple[Tensor, Tensor],
    lr: Tensor,
) -> None:
    """As `step.half_step`: reads three arrays of the models' size and writes two, the fewest possible."""
    start = 0
    for piece in gradients:
        size, channels, taps = piece[0].numel(), 1, 1
        if piece.dim() == 5 and piece.permute(0, 1, 3, 4, 2).is_contiguous():
            channels, taps = piece.shape[2], piece[0, 0, 0].numel()
        else:
            piece = piece.contiguous()
        launch(
            _half_step_kernel, (triton.cdiv(size, 2048), len(models)),
            models, momentum, half, piece, gain[0], gain[1], lr, start, size, models.stride(0),
            momentum.stride(0), half.stride(0), CHANNELS=channels, TAPS=taps, BLOCK=2048,
        )  # fmt: skip
        start += size


def compile_round_ahead(
    models: Tensor,
    half: Tensor,
    layout: Layout,
    gradients: Sequence[tuple[Sequence[int], bool]],
    dtype: torch.dtype,
) -> None:
    """Compile ahead the kernels of a round of ClippedGossip without an attack. A gradient has this dtype, its
    shape, and may lie (filters, taps, channels). Other kernels are compiled when they are first launched."""
    if len(models) > MOST_ROWS:
        return
    real = models, half, layout.slots, layout.own  # the layout keeps what it computes: it must not be fake
    with FakeTensorMode() as mode:
        models, half, slots, own = map(mode.from_tensor, real)
        products = gram_cuda([models])
        slots = closed_slots_cuda(products, slots, own)
        squared_from_products(products, None, slots)
        combine_cuda(products.new_empty(slots.shape), slots, products, None, [models], 1.0, half)
        number, pieces = half.new_empty(()), []
        for shape, laid in gradients:
            order = [0, 2, 3, 1] if laid else range(len(shape))
            piece = half.new_empty(len(half), *(shape[place] for place in order), dtype=dtype)
            pieces.append(piece.permute(0, 1, 4, 2, 3) if laid else piece)
        half_step_cuda(models, half, half, pieces, (number, number), number)


def gram_cuda(blocks: list[Tensor]) -> Tensor:
    """As `kernels.gram`, for float32 on a GPU."""
    models, extra = _two(blocks)
    columns, rows = models.shape[1], sum(len(block) for block in blocks)
    padded = max(32, triton.next_power_of_2(rows))
    if padded not in GRAM or not FLOAT64_DOT:
        return _gram_chunked(blocks)
    most, stages, warps = GRAM[padded]
    pieces = triton.cdiv(columns, GRAM_BLOCK)
    steps = min(GRAM_STEPS, max(1, triton.cdiv(pieces, most)))
    groups = max(1, triton.cdiv(pieces, steps * most))
    programs = max(1, triton.cdiv(pieces, steps * groups))
    partial = models.new_empty(programs, padded, padded, dtype=torch.float64)
    total = models.new_empty(padded, padded, dtype=torch.float64)
    launch(
        _gram_kernel, (programs,),
        models, extra, partial, len(models), rows, columns, models.stride(0), extra.stride(0), groups, steps,
        HALF=padded // 2, BLOCK=GRAM_BLOCK, EXTRA=len(blocks) > 1, STAGES=stages, num_warps=warps,
    )  # fmt: skip
    launch(_total_kernel, (rows,), partial, total, programs, ROWS=padded, MANY=8192 // padded, num_warps=8)
    return total[:rows, :rows]


def middle_cuda(
    blocks: list[Tensor], rows: Tensor, network: tuple[int, ...], places: tuple[int, ...]
) -> Tensor:
    """(b, d) per coordinate of the rows named by (b, k+1), own ones first: the mean of what a network of
    comparators, (low, high) in turn, leaves at these places."""
    models, extra = _two(blocks)
    (nodes, size), columns, block = rows.shape, models.shape[1], 128
    output = models.new_empty(nodes, columns)
    if output.numel():
        launch(
            _middle_kernel, (triton.cdiv(columns, block),),
            models, extra, rows.contiguous(), output, len(models), nodes, columns,
            models.stride(0), extra.stride(0), columns,
            SIZE=size, NETWORK=network, PLACES=places, BLOCK=block, EXTRA=len(blocks) > 1, num_warps=1,
        )  # fmt: skip
    return output


def row_squares_cuda(block: Tensor) -> Tensor:
    """As `kernels.row_squares`, for float32 on a GPU: every row is read once, nothing is copied."""
    (block, _), size, steps = _two([block]), 1024, 8
    rows, columns = block.shape
    parts = max(1, triton.cdiv(columns, size * steps))
    partial = block.new_empty(rows, parts, dtype=torch.float64)
    if rows:
        sizes = columns, block.stride(0), steps
        launch(_row_squares_kernel, (rows, parts), block, partial, *sizes, BLOCK=size)
    return partial.sum(1)


def squared_from_products(products: Tensor, sizes: Tensor | None, slots: Tensor) -> tuple[Tensor, Tensor]:
    """(b, k) ‖x_i − x_j‖² for slots (b, k+1), own rows first, and (b, k) which of them are lost in rounding.
    That can be where some rows are linear: `sizes` are the squares of what each row is a sum of."""
    nodes, closed = slots.shape
    found = torch.empty(nodes, closed - 1, dtype=torch.float64, device=slots.device)
    uncertain = torch.empty(nodes, closed - 1, dtype=torch.int8, device=slots.device)
    if found.numel():
        launch(
            _squared_kernel, (nodes,),
            products, products if sizes is None else sizes, slots.contiguous(), found, uncertain, closed - 1,
            products.stride(0), UNIT, CERTAIN,
            PADDED=triton.next_power_of_2(closed - 1), SIZES=sizes is not None,
        )  # fmt: skip
    return found, uncertain


def squared_along_edges_cuda(
    blocks: list[Tensor], slots: Tensor, which: Tensor | None = None, linear: Tensor | None = None
) -> Tensor:
    """(b, k) ‖x_i − x_j‖² for slots (b, k+1), own rows first, or of those in `which` only. Messages are not
    copied; linear ones are computed where they are needed."""
    models, extra = _two(blocks)
    nodes, closed = slots.shape
    columns, block = models.shape[1], 1024
    steps = 16 if which is None else triton.cdiv(columns, block * AGAIN)
    parts = triton.cdiv(columns, block * max(1, steps))
    partial = models.new_empty(nodes, closed - 1, parts, dtype=torch.float64)
    if partial.numel():
        launch(
            _edges_kernel, (nodes, parts),
            models, extra, models if linear is None else linear.contiguous(), slots.contiguous(), slots if
            which is None else which, partial, len(models), len(models) + (0 if linear is None else
            len(linear)), closed - 1, columns, models.stride(0), extra.stride(0), steps, BLOCK=block,
            EXTRA=len(blocks) > 1, LINEAR=linear is not None, SOME=which is not None,
        )  # fmt: skip
    return partial.sum(2)


def products_again(blocks: list[Tensor], slots: Tensor, which: Tensor, linear: Tensor | None) -> Tensor:
    """(b, k+1, k+1) ⟨x_j − x_i, x_l − x_i⟩ in float64, the lower half, of the nodes in `which` (b,) alone."""
    models, extra = _two(blocks)
    nodes, closed = slots.shape
    columns, block = models.shape[1], 1024
    steps = max(1, triton.cdiv(columns, block * AGAIN))
    parts = triton.cdiv(columns, block * steps)
    partial = models.new_empty(nodes, closed, closed, parts, dtype=torch.float64)
    if partial.numel():
        launch(
            _again_kernel, (nodes, closed, parts),
            models, extra, models if linear is None else linear.contiguous(), slots.contiguous(), which,
            partial, len(models), len(models) + (0 if linear is None else len(linear)), closed - 1, columns,
            models.stride(0), extra.stride(0), steps, BLOCK=block, EXTRA=len(blocks) > 1, LINEAR=linear is not
            None,
        )  # fmt: skip
    return partial.sum(3)


def closed_slots_cuda(products: Tensor, slots: Tensor, own: Tensor) -> Tensor:
    """As `inbox.closed_slots`, from the products of all rows."""
    nodes, k = slots.shape
    output = slots.new_empty(nodes, k + 1)
    if nodes:
        launch(
            _slots_kernel, (nodes,),
            products, slots.contiguous(), own.contiguous(), output, k, products.stride(0),
            PADDED=triton.next_power_of_2(max(1, k)),
        )  # fmt: skip
    return output


def sum_wide_cuda(
    coefficients: Tensor, blocks: list[Tensor], slots: Tensor | None, which: Tensor, out: Tensor
) -> Tensor:
    """out[i] ← Σ_j coefficients[i, j]·x_j in float64 for those i of `which`: over all rows, or the slots."""
    models, extra = _two(blocks)
    columns, block = out.shape[1], 1024
    steps = max(1, triton.cdiv(columns, block * AGAIN))
    parts = triton.cdiv(columns, block * steps)
    if parts and len(out):
        launch(
            _sum_wide_kernel, (len(out), parts),
            coefficients, models if slots is None else slots.contiguous(), which, models, extra, out,
            len(models), coefficients.shape[1], columns, coefficients.stride(0), models.stride(0),
            extra.stride(0), out.stride(0), steps, BLOCK=block, EXTRA=len(blocks) > 1, SLOTS=slots is not
            None,
        )  # fmt: skip
    return out


def _gram_chunked(blocks: list[Tensor]) -> Tensor:
    rows, columns = sum(len(block) for block in blocks), blocks[0].shape[1]
    total = blocks[0].new_zeros(rows, rows, dtype=torch.float64)
    for part in column_chunks(rows, columns, 8, 1 << 30):
        chunk = torch.cat([block[:, part].double() for block in blocks])
        total.addmm_(chunk, chunk.T)
    return symmetric(total)


def combine_cuda(
    coefficients: Tensor,
    slots: Tensor,
    products: Tensor,
    linear: Tensor | None,
    blocks: list[Tensor],
    terms: float,
    out: Tensor,
) -> Tensor:
    """out ← Σ_j coefficients[i, j]·(row of slot j), own row first, where a slot names a row of
    [models; linear @ models; extra]. Sums that need it are taken in float64."""
    models, extra = _two(blocks)
    held, columns, rows = sum(len(block) for block in blocks), models.shape[1], len(products)
    outputs, closed = slots.shape
    if not outputs:
        return out
    weights = coefficients.new_empty(outputs, held)
    norms = coefficients.new_empty(held)
    wide = torch.empty(outputs, dtype=torch.int8, device=out.device)
    padded = triton.next_power_of_2(rows)
    launch(
        _spread_kernel, (outputs,),
        coefficients.contiguous(), slots.contiguous(), products,
        models if linear is None else linear.contiguous(), weights, norms, wide,
        len(models), len(models) + rows - held, rows, closed, products.stride(0), terms,
        PADDED=padded, SOME=min(triton.next_power_of_2(closed), max(1, 4096 // padded)),
        LINEAR=linear is not None,
    )  # fmt: skip
    if held > MOST_ROWS:
        _combine_chunked(weights, norms, blocks, out)
        return sum_wide_cuda(weights, blocks, None, wide, out)
    padded = max(16, triton.next_power_of_2(held))
    block, steps, stages, warps = COMBINE[32 if padded <= 32 else MOST_ROWS]
    for some, mixed in zip(weights.split(padded), out.split(padded), strict=True):
        launch(
            _combine_kernel, (triton.cdiv(columns, block * steps),),
            some, norms, models, extra, mixed, len(mixed), len(models), held, columns,
            held, models.stride(0), extra.stride(0), mixed.stride(0), steps,
            ROWS=padded, BLOCK=block, EXTRA=len(blocks) > 1, STAGES=stages, num_warps=warps,
        )  # fmt: skip
    return sum_wide_cuda(weights, blocks, None, wide, out)


def _combine_chunked(weights: Tensor, norms: Tensor, blocks: list[Tensor], out: Tensor) -> None:
    start = 0
    out.zero_()
    for block in blocks:
        rows = slice(start, start + len(block))
        fine, start = norms[rows, None] <= HUGE, rows.stop
        for part in column_chunks(len(block), block.shape[1], 4, 1 << 30):
            with full_precision():
                out[:, part] += weights[:, rows].float() @ torch.where(fine, block[:, part], 0.0)


def _two(blocks: list[Tensor]) -> tuple[Tensor, Tensor]:
    models = blocks[0] if blocks[0].stride(1) == 1 else blocks[0].contiguous()
    if len(blocks) == 1:
        return models, models  # never read
    return models, blocks[1] if blocks[1].stride(1) == 1 else blocks[1].contiguous()
