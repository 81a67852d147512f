"""The two heavy passes on a GPU: each reads every model once.

Inner products: a tile holds all rows for a few coordinates, so centring on a regular node's model, the first,
is free; products are made of three TF32 ones each, as good as float32, and summed in float64 over tiles.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from clippedgossip.mixing.kernels import column_chunks, full_precision

MOST_ROWS = 128
FARTHEST_CENTRE = tl.constexpr(1e4)  # a diverging model would take the others' digits with it
PROGRAMS = 528  # four for each of an H200's multiprocessors
BLOCK = 32  # coordinates at a time


@triton.jit
def _products(
    models,
    extra,
    column,
    inside,
    n,
    rows,
    models_stride,
    extra_stride,
    ROWS: tl.constexpr,
    EXTRA: tl.constexpr,
):
    """Of all rows less the first, on a few coordinates, and of what was taken off."""
    row = tl.arange(0, ROWS)
    centre = tl.load(models + column, mask=inside, other=0.0)
    centre = tl.where(tl.abs(centre) < FARTHEST_CENTRE, centre, 0.0)  # false for NaN as well
    tile = tl.load(
        models + row[:, None].to(tl.int64) * models_stride + column[None, :],
        mask=(row < n)[:, None] & inside[None, :],
        other=0.0,
    )
    if EXTRA:
        lies = tl.load(
            extra + (row[:, None] - n).to(tl.int64) * extra_stride + column[None, :],
            mask=((row >= n) & (row < rows))[:, None] & inside[None, :],
            other=0.0,
        )
        tile = tl.where((row < n)[:, None], tile, lies)
    alone = tl.where((row == rows)[:, None], centre[None, :], 0.0)
    tile = tl.where((row < rows)[:, None], tile - centre[None, :], alone)
    return tl.dot(tile, tl.trans(tile), input_precision="tf32x3").to(tl.float64)


@triton.jit
def _gram_kernel(
    models,
    extra,
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
):
    program = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, ROWS)
    whole = columns // BLOCK * BLOCK  # the compiler sees that it may read wide words up to here
    total = tl.zeros((ROWS, ROWS), dtype=tl.float64)
    for step in tl.range(0, steps, num_stages=3):
        column = (program * steps + step) * BLOCK + tl.arange(0, BLOCK)
        total += _products(
            models, extra, column, column < whole, n, rows, models_stride, extra_stride, ROWS, EXTRA
        )
    if program == 0:
        column = whole.to(tl.int64) + tl.arange(0, BLOCK)
        total += _products(
            models, extra, column, column < columns, n, rows, models_stride, extra_stride, ROWS, EXTRA
        )
    tl.store(output + program * ROWS * ROWS + row[:, None] * ROWS + row[None, :], total)


@triton.jit
def _edges_kernel(
    models,
    extra,
    slots,
    output,
    n,
    k,
    columns,
    models_stride,
    extra_stride,
    steps,
    BLOCK: tl.constexpr,
    EXTRA: tl.constexpr,
):
    node = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1).to(tl.int64)
    own = tl.load(slots + node * (k + 1))
    for place in range(k):
        source = tl.load(slots + node * (k + 1) + place + 1)
        total = tl.zeros((BLOCK,), dtype=tl.float32)
        for step in range(steps):
            column = (part * steps + step) * BLOCK + tl.arange(0, BLOCK)
            inside = column < columns
            here = tl.load(models + own * models_stride + column, mask=inside, other=0.0)
            there = tl.load(models + source * models_stride + column, mask=inside & (source < n), other=0.0)
            if EXTRA:
                there += tl.load(
                    extra + (source - n) * extra_stride + column, mask=inside & (source >= n), other=0.0
                )
            total += (there - here) * (there - here)
        squared = tl.sum(total.to(tl.float64))
        tl.store(output + (node * k + place) * tl.num_programs(1) + part, squared)


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
        lies = tl.load(
            extra + (row[:, None] - n).to(tl.int64) * extra_stride + column[None, :],
            mask=(read & (row >= n) & (row < rows))[:, None] & inside[None, :],
            other=0.0,
        )
        tile = tl.where((row < n)[:, None], tile, lies)
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
def _weiszfeld_kernel(pairs, present, output, k, iterations, smoothing, PADDED: tl.constexpr):
    node = tl.program_id(0)
    a = tl.arange(0, PADDED)
    here = (tl.load(present + node * k + a, mask=a < k, other=0) != 0).to(tl.float64)
    squares = tl.load(
        pairs + node * k * k + a[:, None] * k + a[None, :],
        mask=(a < k)[:, None] & (a < k)[None, :],
        other=0.0,
    )
    share = here / tl.sum(here)
    for _ in range(iterations):
        to_each = tl.sum(squares * share[None, :], axis=1)  # symmetric: (c D)_j either way
        to_each -= tl.sum(to_each * share) / 2
        pull = here / tl.sqrt(tl.maximum(to_each, smoothing * smoothing))
        share = pull / tl.sum(pull)
    tl.store(output + node * k + a, share, mask=a < k)


def weiszfeld_cuda(pairs: Tensor, present: Tensor, iterations: int, smoothing: float) -> Tensor:
    """As `geometric_median.weiszfeld`, all iterations in one launch."""
    nodes, k = present.shape
    output = torch.empty(nodes, k, dtype=torch.float64, device=pairs.device)
    _weiszfeld_kernel[(nodes,)](
        pairs.contiguous(),
        present.contiguous(),
        output,
        k,
        iterations,
        smoothing,
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
    """As `step.half_step`: five passes over the models, the fewest there are."""
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
    """As `kernels.gram`, for float32 on a GPU."""
    models, extra = _two(blocks)
    n, columns = models.shape
    rows = sum(len(block) for block in blocks)
    if rows + 1 > MOST_ROWS:
        return _gram_chunked(blocks)
    padded = max(16, triton.next_power_of_2(rows + 1))
    steps = triton.cdiv(columns, BLOCK * PROGRAMS)
    partial = models.new_empty(PROGRAMS, padded, padded, dtype=torch.float64)
    _gram_kernel[(PROGRAMS,)](
        models,
        extra,
        partial,
        n,
        rows,
        columns,
        models.stride(0),
        extra.stride(0),
        steps,
        ROWS=padded,
        BLOCK=BLOCK,
        EXTRA=len(blocks) > 1,
        num_warps=2 if padded <= 32 else 4,
    )
    return partial.sum(0)[: rows + 1, : rows + 1]


def squared_along_edges_cuda(blocks: list[Tensor], slots: Tensor) -> Tensor:
    """(b, k) ‖x_i − x_j‖² for slots (b, k+1), own rows first; every message is read where it stands."""
    models, extra = _two(blocks)
    nodes, closed = slots.shape
    columns, block, steps = models.shape[1], 1024, 16
    parts = triton.cdiv(columns, block * steps)
    partial = models.new_empty(nodes, closed - 1, parts, dtype=torch.float64)
    if partial.numel():
        _edges_kernel[(nodes, parts)](
            models,
            extra,
            slots.contiguous(),
            partial,
            len(models),
            closed - 1,
            columns,
            models.stride(0),
            extra.stride(0),
            steps,
            BLOCK=block,
            EXTRA=len(blocks) > 1,
        )
    return partial.sum(2)


def _gram_chunked(blocks: list[Tensor]) -> Tensor:
    rows, columns = sum(len(block) for block in blocks), blocks[0].shape[1]
    total = blocks[0].new_zeros(rows + 1, rows + 1, dtype=torch.float64)
    for part in column_chunks(rows, columns, 8, 1 << 30):
        chunk = torch.cat([block[:, part].double() for block in blocks])
        total[:rows, :rows].addmm_(chunk, chunk.T)
    return total


def combine_cuda(coefficients: list[Tensor], blocks: list[Tensor], ok: Tensor, out: Tensor) -> Tensor:
    """As `kernels.combine`, for float32 on a GPU."""
    models, extra = _two(blocks)
    rows, columns = sum(len(block) for block in blocks), models.shape[1]
    if rows > MOST_ROWS:
        return _combine_chunked(coefficients, blocks, ok, out)
    weights = torch.cat(coefficients, 1) if len(coefficients) > 1 else coefficients[0].contiguous()
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
    return out


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
