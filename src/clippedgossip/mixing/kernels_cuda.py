"""The two heavy passes on a GPU. Each reads every model once.

Inner products: a tile holds all rows for a few coordinates. The first row, the model of a regular node, is
subtracted from all of them: it is the centre. Each product is made of three TF32 products, which together are
as exact as float32. Sums over tiles are float64.

Two results would be wrong: distances between rows that are close to each other and far from the centre, which
are lost in rounding, and squares of rows longer than 1e19, which overflow. The products show where. Further
kernels compute these in float64. They always run, and end at once where there is nothing to do: a captured
round cannot read on the CPU whether they are needed.
"""

from collections.abc import Callable, Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from clippedgossip.mixing.kernels import HUGE, column_chunks, full_precision

MOST_ROWS = 128
FARTHEST_CENTRE = tl.constexpr(1e4)  # a diverging model as the centre would cost the others their digits
PROGRAMS = 528  # four for each of an H200's multiprocessors; three times as many where few rows are read
BLOCK = 32  # coordinates at a time
AGAIN = 16  # programs that share a row which is taken again
FARTHEST = tl.constexpr(HUGE)
UNDERFLOWN = tl.constexpr(2.0**-70)  # of a billion float32 squares some may be below 2⁻¹²⁶
SHORTER = tl.constexpr(2.0**-88)  # 3.4e38 becomes 1.1e12
UNIT = 2.0**-21  # error of a product of two rows, by their lengths; of the chunked ones 2⁻⁴⁶
CERTAIN = (
    16 * 2.0**-23
)  # a distance D may be off by this times ‖x_i‖ + D, as rounding the result to float32 is


@triton.jit
def _products(
    models,
    extra,
    scales,
    column,
    inside,
    n,
    rows,
    models_stride,
    extra_stride,
    ROWS: tl.constexpr,
    EXTRA: tl.constexpr,
    SCALED: tl.constexpr,
):
    """Inner products of all rows less the centre, and of the centre itself, on a few coordinates."""
    row = tl.arange(0, ROWS)
    centre = tl.load(models + column, mask=inside, other=0.0)
    centre = tl.where(tl.abs(centre) < FARTHEST_CENTRE, centre, 0.0)  # false for NaN as well
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
    alone = tl.where((row == rows)[:, None], centre[None, :], 0.0)
    if SCALED:
        scale = tl.load(scales + row, mask=row < rows, other=1.0)[:, None]
        tile = tl.where((row < rows)[:, None], tile * scale - centre[None, :] * scale, alone)
    else:
        tile = tl.where((row < rows)[:, None], tile - centre[None, :], alone)
    return tl.dot(tile, tl.trans(tile), input_precision="tf32x3").to(tl.float64)


@triton.jit
def _gram_kernel(
    models,
    extra,
    scales,
    output,
    n,
    rows,
    columns,
    models_stride,
    extra_stride,
    steps,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    EXTRA: tl.constexpr,
    SCALED: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, ROWS)
    if SCALED:  # noqa: SIM102 - known when compiled
        if tl.min(tl.load(scales + row, mask=row < rows, other=1.0)) == 1.0:  # no row is too long
            return
    whole = columns // BLOCK * BLOCK  # the compiler sees that it may read wide words up to here
    total = tl.zeros((ROWS, ROWS), dtype=tl.float64)
    for step in tl.range(0, steps, num_stages=3):
        column = (program * steps + step) * BLOCK + tl.arange(0, BLOCK)
        total += _products(
            models,
            extra,
            scales,
            column,
            column < whole,
            n,
            rows,
            models_stride,
            extra_stride,
            ROWS,
            EXTRA,
            SCALED,
        )
    if program == 0:
        column = whole.to(tl.int64) + tl.arange(0, BLOCK)
        total += _products(
            models,
            extra,
            scales,
            column,
            column < columns,
            n,
            rows,
            models_stride,
            extra_stride,
            ROWS,
            EXTRA,
            SCALED,
        )
    if SCALED:
        back = 1.0 / tl.load(scales + row, mask=row < rows, other=1.0).to(tl.float64)
        total = total * back[:, None] * back[None, :]
    tl.store(output + program * ROWS * ROWS + row[:, None] * ROWS + row[None, :], total)


@triton.jit
def _scales_kernel(
    models,
    extra,
    partial,
    scales,
    programs,
    n,
    rows,
    columns,
    models_stride,
    extra_stride,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    EXTRA: tl.constexpr,
):
    """The factor of each row: SHORTER if its squares overflow although it is finite, else 1."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, 2048)
    square = tl.load(partial + at * ROWS * ROWS + row * ROWS + row, mask=at < programs, other=0.0)
    scale = 1.0
    total = tl.sum(square)
    if (total == float("inf")) | (total != total):
        largest = tl.zeros((BLOCK,), dtype=tl.float32)
        for start in range(0, columns, BLOCK):
            column = start + tl.arange(0, BLOCK)
            inside = column < columns
            value = tl.load(models + row * models_stride + column, mask=inside & (row < n), other=0.0)
            if EXTRA:
                value += tl.load(
                    extra + (row - n) * extra_stride + column, mask=inside & (row >= n), other=0.0
                )
            largest = tl.maximum(largest, tl.where(value == value, tl.abs(value), float("inf")))
        if tl.max(largest) < float("inf"):
            scale = SHORTER
    tl.store(scales + row, scale)


@triton.jit
def _values(
    models,
    extra,
    linear,
    source,
    column,
    inside,
    n,
    written,
    models_stride,
    extra_stride,
    EXTRA: tl.constexpr,
    LINEAR: tl.constexpr,
):
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
    products,
    sizes,
    slots,
    output,
    uncertain,
    k,
    rows,
    stride,
    unit,
    certain,
    PADDED: tl.constexpr,
    SIZES: tl.constexpr,
):
    """‖x_i − x_j‖² of one node's slots from the products, and which of them are lost in rounding."""
    node = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, PADDED)
    here = place < k
    own = tl.load(slots + node * (k + 1))
    other = tl.load(slots + node * (k + 1) + 1 + place, mask=here, other=0)
    other = tl.where(here, other, own)
    high, low = tl.maximum(own, other), tl.minimum(own, other)  # one half of the table: symmetric
    mine = tl.load(products + own * stride + own)
    theirs = tl.load(products + other * stride + other)
    squared = tl.maximum(mine + theirs - 2 * tl.load(products + high * stride + low), 0.0)
    corner = tl.load(products + rows * stride + rows)
    norm = tl.sqrt(tl.maximum(mine + 2 * tl.load(products + rows * stride + own) + corner, 0.0))
    size = theirs
    if SIZES:
        size = tl.load(sizes + other)
    distance = tl.sqrt(squared)
    unclear = unit * (mine + size) > certain * tl.maximum(distance, certain * norm) * (norm + distance)
    unclear = unclear | (mine + size < UNDERFLOWN)
    tl.store(output + node * k + place, squared, mask=here)
    tl.store(uncertain + node * k + place, (unclear & (other != own)).to(tl.int8), mask=here)


@triton.jit
def _again_kernel(
    models,
    extra,
    linear,
    slots,
    which,
    output,
    n,
    written,
    k,
    columns,
    models_stride,
    extra_stride,
    steps,
    BLOCK: tl.constexpr,
    EXTRA: tl.constexpr,
    LINEAR: tl.constexpr,
):
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
def _wide_kernel(
    coefficients,
    slots,
    norms,
    ok,
    wide,
    terms,
    huge,
    rows,
    coefficients_stride,
    slots_stride,
    PADDED: tl.constexpr,
):
    """Which outputs are to be summed in float64, as in `inbox._wide`."""
    output = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, PADDED)
    inside = row < rows
    share = tl.abs(tl.load(coefficients + output * coefficients_stride + row, mask=inside, other=0.0))
    read = tl.load(ok + row, mask=inside, other=0) != 0
    norm = tl.where(read, tl.load(norms + row, mask=inside, other=0.0), 0.0)
    own = tl.load(norms + tl.load(slots + output * slots_stride))
    far = tl.max(((norm > huge) & (share > 0)).to(tl.int32))
    tl.store(wide + output, ((far > 0) | (tl.sum(share * norm) > terms * own)).to(tl.int8))


@triton.jit
def _sum_wide_kernel(
    coefficients,
    slots,
    which,
    models,
    extra,
    output,
    n,
    terms,
    columns,
    coefficients_stride,
    models_stride,
    extra_stride,
    output_stride,
    steps,
    BLOCK: tl.constexpr,
    EXTRA: tl.constexpr,
    SLOTS: tl.constexpr,
):
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
    models,
    extra,
    linear,
    slots,
    which,
    output,
    n,
    written,
    k,
    columns,
    models_stride,
    extra_stride,
    steps,
    BLOCK: tl.constexpr,
    EXTRA: tl.constexpr,
    LINEAR: tl.constexpr,
    SOME: tl.constexpr,
):
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
    weights,
    read,
    models,
    extra,
    output,
    column,
    inside,
    outputs,
    n,
    rows,
    models_stride,
    extra_stride,
    output_stride,
    ROWS: tl.constexpr,
    EXTRA: tl.constexpr,
):
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
    # TF32 rounds 3.4e38 to infinity, and 0 times infinity is NaN. Sums with such a row are taken again.
    tile = tl.where(tl.abs(tile) < FARTHEST, tile, 0.0)
    mixed = tl.dot(weights, tile, input_precision="tf32x3")
    tl.store(
        output + row[:, None].to(tl.int64) * output_stride + column[None, :],
        mixed,
        mask=(row < outputs)[:, None] & inside[None, :],
    )


@triton.jit
def _combine_kernel(
    coefficients,
    ok,
    models,
    extra,
    output,
    outputs,
    n,
    rows,
    columns,
    coefficients_stride,
    models_stride,
    extra_stride,
    output_stride,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    EXTRA: tl.constexpr,
):
    column = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row = tl.arange(0, ROWS)
    weights = tl.load(
        coefficients + row[:, None] * coefficients_stride + row[None, :],
        mask=(row < outputs)[:, None] & (row < rows)[None, :],
        other=0.0,
    ).to(tl.float32)
    read = tl.load(ok + row, mask=row < rows, other=0) != 0  # 0·NaN is NaN, so such a row is not read
    whole = columns // BLOCK * BLOCK  # the compiler sees that it may use wide words up to here
    if tl.program_id(0) * BLOCK < whole:
        _mix(
            weights, read, models, extra, output, column, column < whole,
            outputs, n, rows, models_stride, extra_stride, output_stride, ROWS, EXTRA,
        )  # fmt: skip
    else:
        _mix(
            weights, read, models, extra, output, column, column < columns,
            outputs, n, rows, models_stride, extra_stride, output_stride, ROWS, EXTRA,
        )  # fmt: skip


@triton.jit
def _weiszfeld_kernel(
    products, reach, present, output, k, iterations, smoothing, slack, PADDED: tl.constexpr
):
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
    share = here / tl.sum(here)
    for _ in range(iterations):
        across = tl.sum(table * share[None, :], axis=1)
        squared = tl.maximum(norms - 2 * across + tl.sum(across * share), 0.0)
        terms = tl.sum(share * size) + size
        squared += slack * terms * terms
        pull = here / tl.sqrt(tl.maximum(squared, smoothing * smoothing))
        share = pull / tl.sum(pull)
    tl.store(output + node * k + a, share, mask=a < k)


def weiszfeld_cuda(
    products: Tensor, reach: Tensor, present: Tensor, iterations: int, smoothing: float, slack: float
) -> Tensor:
    """As the iteration of `GeometricMedian`, all of it in one launch."""
    nodes, k = present.shape
    output = torch.empty(nodes, k, dtype=torch.float64, device=products.device)
    _weiszfeld_kernel[(nodes,)](
        products.contiguous(),
        reach.contiguous(),
        present.contiguous(),
        output,
        k,
        iterations,
        smoothing,
        slack,
        PADDED=triton.next_power_of_2(k),
    )
    return output


@triton.jit
def _half_step_kernel(
    models,
    momentum,
    half,
    gradient,
    keep,
    gain,
    lr,
    start,
    size,
    models_stride,
    momentum_stride,
    half_stride,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = column < size
    place = start + column
    held = tl.load(momentum + row * momentum_stride + place, mask=inside, other=0.0)
    found = tl.load(gradient + row * size + column, mask=inside, other=0.0).to(tl.float32)
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
        size = piece[0].numel()
        _half_step_kernel[(triton.cdiv(size, 2048), len(models))](
            models,
            momentum,
            half,
            piece.contiguous(),
            gain[0],
            gain[1],
            lr,
            start,
            size,
            models.stride(0),
            momentum.stride(0),
            half.stride(0),
            BLOCK=2048,
        )
        start += size


def gram_cuda(blocks: list[Tensor]) -> Tensor:
    """As `kernels.gram`, for float32 on a GPU. Use one half of it: the two halves may round differently."""
    models, extra = _two(blocks)
    n, columns = models.shape
    rows = sum(len(block) for block in blocks)
    if rows + 1 > MOST_ROWS:
        return _gram_chunked(blocks)
    padded = max(16, triton.next_power_of_2(rows + 1))
    programs = 3 * PROGRAMS if padded <= 32 else PROGRAMS
    steps = triton.cdiv(columns, BLOCK * programs)
    partial = models.new_empty(programs, padded, padded, dtype=torch.float64)
    scales = models.new_empty(padded)
    strides, two = (models.stride(0), extra.stride(0)), len(blocks) > 1
    warps = 2 if padded <= 32 else 4
    for scaled in (False, True):
        _gram_kernel[(programs,)](
            models, extra, scales, partial, n, rows, columns, *strides, steps,
            ROWS=padded, BLOCK=BLOCK, EXTRA=two, SCALED=scaled, num_warps=warps,
        )  # fmt: skip
        if not scaled:
            _scales_kernel[(rows,)](
                models, extra, partial, scales, programs, n, rows, columns, *strides,
                ROWS=padded, BLOCK=4096, EXTRA=two,
            )  # fmt: skip
    return partial.sum(0)[: rows + 1, : rows + 1]


def row_squares_cuda(block: Tensor) -> Tensor:
    """As `kernels.row_squares`, for float32 on a GPU: every row is read once, nothing is copied."""
    (block, _), size, steps = _two([block]), 1024, 8
    rows, columns = block.shape
    parts = max(1, triton.cdiv(columns, size * steps))
    partial = block.new_empty(rows, parts, dtype=torch.float64)
    if rows:
        _row_squares_kernel[(rows, parts)](block, partial, columns, block.stride(0), steps, BLOCK=size)
    return partial.sum(1)


def squared_from_products(
    products: Tensor,
    sizes: Tensor | None,
    blocks: list[Tensor],
    linear: Tensor | None,
    slots: Tensor,
    reduce: Callable[[Tensor], Tensor],
) -> tuple[Tensor, Tensor]:
    """(b, k) ‖x_i − x_j‖² for slots (b, k+1), own rows first, and (b, k) which of them were lost in rounding:
    these are computed again. In the products the centre comes last. Where some rows are linear, `sizes` are
    the squares of the rows that they are sums of."""
    nodes, closed = slots.shape
    k, rows = closed - 1, len(products) - 1
    found = torch.empty(nodes, k, dtype=torch.float64, device=slots.device)
    uncertain = torch.empty(nodes, k, dtype=torch.int8, device=slots.device)
    if not found.numel():
        return found, uncertain
    chunked = sum(len(block) for block in blocks) + 1 > MOST_ROWS
    slots = slots.contiguous()
    _squared_kernel[(nodes,)](
        products,
        products if sizes is None else sizes,
        slots,
        found,
        uncertain,
        k,
        rows,
        products.stride(0),
        2.0**-46 if chunked else UNIT,
        CERTAIN,
        PADDED=triton.next_power_of_2(k),
        SIZES=sizes is not None,
    )
    if chunked and linear is None:
        return found, uncertain
    again = squared_along_edges_cuda(blocks, slots, uncertain, linear)
    return torch.where(uncertain != 0, reduce(again), found), uncertain


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
        _edges_kernel[(nodes, parts)](
            models,
            extra,
            models if linear is None else linear.contiguous(),
            slots.contiguous(),
            slots if which is None else which,
            partial,
            len(models),
            len(models) + (0 if linear is None else len(linear)),
            closed - 1,
            columns,
            models.stride(0),
            extra.stride(0),
            steps,
            BLOCK=block,
            EXTRA=len(blocks) > 1,
            LINEAR=linear is not None,
            SOME=which is not None,
        )
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
        _again_kernel[(nodes, closed, parts)](
            models,
            extra,
            models if linear is None else linear.contiguous(),
            slots.contiguous(),
            which,
            partial,
            len(models),
            len(models) + (0 if linear is None else len(linear)),
            closed - 1,
            columns,
            models.stride(0),
            extra.stride(0),
            steps,
            BLOCK=block,
            EXTRA=len(blocks) > 1,
            LINEAR=linear is not None,
        )
    return partial.sum(3)


def wide_cuda(
    coefficients: Tensor, norms: Tensor, ok: Tensor, own: Tensor, terms: float, huge: float
) -> Tensor:
    """As `inbox._wide`: (outputs,) which sums of rows need float64; `own` (outputs, 1) names own rows."""
    wide = torch.empty(len(coefficients), dtype=torch.int8, device=norms.device)
    if not len(coefficients):
        return wide
    _wide_kernel[(len(coefficients),)](
        coefficients,
        own,
        norms,
        ok,
        wide,
        terms,
        huge,
        coefficients.shape[1],
        coefficients.stride(0),
        own.stride(0),
        PADDED=triton.next_power_of_2(coefficients.shape[1]),
    )
    return wide


def sum_wide_cuda(
    coefficients: Tensor, blocks: list[Tensor], slots: Tensor | None, which: Tensor, out: Tensor
) -> Tensor:
    """out[i] ← Σ_j coefficients[i, j]·x_j in float64 for those i of `which`: over all rows, or the slots."""
    models, extra = _two(blocks)
    columns, block = out.shape[1], 1024
    steps = max(1, triton.cdiv(columns, block * AGAIN))
    parts = triton.cdiv(columns, block * steps)
    if parts and len(out):
        _sum_wide_kernel[(len(out), parts)](
            coefficients,
            models if slots is None else slots.contiguous(),
            which,
            models,
            extra,
            out,
            len(models),
            coefficients.shape[1],
            columns,
            coefficients.stride(0),
            models.stride(0),
            extra.stride(0),
            out.stride(0),
            steps,
            BLOCK=block,
            EXTRA=len(blocks) > 1,
            SLOTS=slots is not None,
        )
    return out


def _gram_chunked(blocks: list[Tensor]) -> Tensor:
    rows, columns = sum(len(block) for block in blocks), blocks[0].shape[1]
    total = blocks[0].new_zeros(rows + 1, rows + 1, dtype=torch.float64)
    for part in column_chunks(rows, columns, 8, 1 << 30):
        chunk = torch.cat([block[:, part].double() for block in blocks])
        total[:rows, :rows].addmm_(chunk, chunk.T)
    return total


def combine_cuda(
    coefficients: list[Tensor], blocks: list[Tensor], ok: Tensor, wide: Tensor, out: Tensor
) -> Tensor:
    """As `kernels.combine`, for float32 on a GPU."""
    models, extra = _two(blocks)
    rows, columns = sum(len(block) for block in blocks), models.shape[1]
    weights = torch.cat(coefficients, 1) if len(coefficients) > 1 else coefficients[0].contiguous()
    if rows > MOST_ROWS:
        _combine_chunked(coefficients, blocks, ok, out)
        return sum_wide_cuda(weights, blocks, None, wide, out)
    padded = max(16, triton.next_power_of_2(rows))
    block = 256 if padded <= 32 else 64
    for some, mixed in zip(weights.split(padded), out.split(padded), strict=True):
        _combine_kernel[(triton.cdiv(columns, block),)](
            some,
            ok.contiguous(),
            models,
            extra,
            mixed,
            len(mixed),
            len(models),
            rows,
            columns,
            some.stride(0),
            models.stride(0),
            extra.stride(0),
            mixed.stride(0),
            ROWS=padded,
            BLOCK=block,
            EXTRA=len(blocks) > 1,
        )
    return sum_wide_cuda(weights, blocks, None, wide, out)


def _combine_chunked(coefficients: list[Tensor], blocks: list[Tensor], ok: Tensor, out: Tensor) -> Tensor:
    start = 0
    out.zero_()
    for weights, block in zip(coefficients, blocks, strict=True):
        fine = ok[start : start + len(block), None]
        start += len(block)
        for part in column_chunks(len(block), block.shape[1], 4, 1 << 30):
            with full_precision():
                out[:, part] += weights.float() @ torch.where(fine, block[:, part], 0.0)
    return out


def _two(blocks: list[Tensor]) -> tuple[Tensor, Tensor]:
    models = blocks[0] if blocks[0].stride(1) == 1 else blocks[0].contiguous()
    if len(blocks) == 1:
        return models, models  # never read
    return models, blocks[1] if blocks[1].stride(1) == 1 else blocks[1].contiguous()
