"""The kernels of `convolution`: tiles of images are multiplied where they lie, without shifted copies."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from clippedgossip.mixing.launches import launch
from clippedgossip.tasks.convolution import BY_IMAGE, WEIGHTS, Shape, tile_of

SMALL, SMALL_TURN = (256, 64, 32, 8, 4), (128, 64, 32, 4, 4)
"""Pixels and the most filters of a tile, the most channels that are multiplied at a time, warps, stages."""
LARGE = (128, 128, 64, 8, 3)
"""The same where channels and filters are multiples of 64."""
TF32 = (128, 256, 32, 8, 3)
"""The same in TF32."""
Tiles = tuple[int, ...]


@triton.jit
def _places(
    p, UP: tl.constexpr, LEFT: tl.constexpr, OUT_HIGH: tl.constexpr, OUT_WIDE: tl.constexpr,
    STEP: tl.constexpr,
):  # fmt: skip
    """Of the output's pixels p: image, and row and column of the first pixel that the kernel covers."""
    row, column = p // OUT_WIDE % OUT_HIGH, p % OUT_WIDE
    return p // (OUT_HIGH * OUT_WIDE), row * STEP - UP, column * STEP - LEFT


@triton.jit
def _convolve_kernel(
    x, w, out, images, pixels, HIGH: tl.constexpr, WIDE: tl.constexpr, CHANNELS: tl.constexpr,
    FILTERS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, UP: tl.constexpr, LEFT: tl.constexpr,
    OUT_HIGH: tl.constexpr, OUT_WIDE: tl.constexpr, STEP: tl.constexpr, SPREAD: tl.constexpr,
    TURN: tl.constexpr, TILE_P: tl.constexpr, TILE_F: tl.constexpr, TILE_C: tl.constexpr,
):  # fmt: skip
    worker = tl.program_id(2).to(tl.int64)
    p = tl.program_id(0) * TILE_P + tl.arange(0, TILE_P)
    f = tl.program_id(1) * TILE_F + tl.arange(0, TILE_F)
    c = tl.arange(0, TILE_C)
    image, row, column = _places(p % pixels, UP, LEFT, OUT_HIGH, OUT_WIDE, STEP)
    x += worker * images * (HIGH * WIDE * CHANNELS)
    w += worker * (FILTERS * ROWS * COLUMNS * CHANNELS)
    first = ((image * HIGH + row) * WIDE + column) * CHANNELS
    sums = tl.zeros((TILE_P, TILE_F), tl.float32)
    for k in range(ROWS * COLUMNS * (CHANNELS // TILE_C)):
        tap, depth = k // (CHANNELS // TILE_C), k % (CHANNELS // TILE_C) * TILE_C + c
        i, j = tap // COLUMNS, tap % COLUMNS
        if SPREAD > 1:
            down, right = (row + i) // SPREAD, (column + j) // SPREAD
            inside = (row + i >= 0) & (down < HIGH) & ((row + i) % SPREAD == 0)
            inside &= (column + j >= 0) & (right < WIDE) & ((column + j) % SPREAD == 0)
            at = x + (((image * HIGH + down) * WIDE + right) * CHANNELS)[:, None] + depth[None, :]
            seen = tl.load(at, mask=inside[:, None], other=0.0)
        else:
            at = x + (first + (i * WIDE + j) * CHANNELS)[:, None] + depth[None, :]
            if UP + LEFT > 0:
                inside = (row + i >= 0) & (row + i < HIGH) & (column + j >= 0) & (column + j < WIDE)
                seen = tl.load(at, mask=inside[:, None], other=0.0)
            else:
                seen = tl.load(at)
        if TURN:  # (channels, rows, columns, filters), its taps backwards
            tap = ROWS * COLUMNS - 1 - tap
            kernel = tl.load(w + ((depth[:, None] * (ROWS * COLUMNS) + tap) * FILTERS + f[None, :]))
        else:
            kernel = tl.load(w + ((f[None, :] * (ROWS * COLUMNS) + tap) * CHANNELS + depth[:, None]))
        sums = tl.dot(seen, kernel, sums, input_precision="tf32")
    to = out + (worker * pixels + p)[:, None] * FILTERS + f[None, :]
    tl.store(to, sums.to(out.dtype.element_ty), mask=(p < pixels)[:, None])


@triton.jit
def _weights_kernel(
    x, y, out, images, pixels, length, HIGH: tl.constexpr, WIDE: tl.constexpr, CHANNELS: tl.constexpr,
    FILTERS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, UP: tl.constexpr, LEFT: tl.constexpr,
    OUT_HIGH: tl.constexpr, OUT_WIDE: tl.constexpr, STEP: tl.constexpr, SPREAD: tl.constexpr,
    EVEN: tl.constexpr, TILE_P: tl.constexpr, TILE_F: tl.constexpr, TILE_N: tl.constexpr,
):  # fmt: skip
    part, worker, workers = tl.program_id(1), tl.program_id(2).to(tl.int64), tl.num_programs(2)
    BLOCKS: tl.constexpr = FILTERS // TILE_F
    PAIRS: tl.constexpr = ROWS * COLUMNS * CHANNELS
    f = tl.program_id(0) % BLOCKS * TILE_F + tl.arange(0, TILE_F)
    n = tl.program_id(0) // BLOCKS * TILE_N + tl.arange(0, TILE_N)
    i, j = n // CHANNELS // COLUMNS, n // CHANNELS % COLUMNS
    shift = (i * WIDE + j) * CHANNELS + n % CHANNELS
    x += worker * images * (HIGH * WIDE * CHANNELS)
    y += worker * pixels * FILTERS
    sums = tl.zeros((TILE_F, TILE_N), tl.float32)
    for start in range(part * length, tl.minimum((part + 1) * length, pixels), TILE_P):
        p = start + tl.arange(0, TILE_P)
        image, row, column = _places(p, UP, LEFT, OUT_HIGH, OUT_WIDE, STEP)
        first = ((image * HIGH + row) * WIDE + column) * CHANNELS
        inside = (n < PAIRS)[None, :]
        if UP + LEFT > 0:
            down, right = row[:, None] + i[None, :], column[:, None] + j[None, :]
            inside &= (down >= 0) & (down < HIGH) & (right >= 0) & (right < WIDE)
        if EVEN:
            given = tl.load(y + p[:, None] * FILTERS + f[None, :])
        else:
            inside &= (p < pixels)[:, None]
            given = tl.load(y + p[:, None] * FILTERS + f[None, :], mask=(p < pixels)[:, None], other=0.0)
        seen = tl.load(x + first[:, None] + shift[None, :], mask=inside, other=0.0)
        sums = tl.dot(tl.trans(given), seen, sums, input_precision="tf32")
    to = out + ((part * workers + worker) * FILTERS + f)[:, None] * PAIRS + n[None, :]
    tl.store(to, sums.to(out.dtype.element_ty), mask=(n < PAIRS)[None, :])


@triton.jit
def _weights_by_image_kernel(
    x, y, out, parts, IMAGES: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr, CHANNELS: tl.constexpr,
    FILTERS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, UP: tl.constexpr, LEFT: tl.constexpr,
    OUT_HIGH: tl.constexpr, OUT_WIDE: tl.constexpr, STEP: tl.constexpr, SPREAD: tl.constexpr,
    TILE_F: tl.constexpr, TILE_C: tl.constexpr, TILE_I: tl.constexpr,
):  # fmt: skip
    """The gradient of one tap: sums over images and over the pixels that lie inside under this tap."""
    part, worker, workers = tl.program_id(1), tl.program_id(2).to(tl.int64), tl.num_programs(2)
    F_BLOCKS: tl.constexpr = FILTERS // TILE_F
    C_BLOCKS: tl.constexpr = CHANNELS // TILE_C
    I_BLOCKS: tl.constexpr = (IMAGES + TILE_I - 1) // TILE_I
    f = tl.program_id(0) % F_BLOCKS * TILE_F + tl.arange(0, TILE_F)
    c = tl.program_id(0) // F_BLOCKS % C_BLOCKS * TILE_C + tl.arange(0, TILE_C)
    tap = tl.program_id(0) // (F_BLOCKS * C_BLOCKS)
    down, right = tap // COLUMNS - UP, tap % COLUMNS - LEFT
    # Output pixels from the first whose place lies in the image to the last.
    top, first = tl.cdiv(tl.maximum(-down, 0), STEP), tl.cdiv(tl.maximum(-right, 0), STEP)
    high = tl.minimum(OUT_HIGH, tl.cdiv(tl.maximum(HIGH - down, 0), STEP)) - top
    wide = tl.minimum(OUT_WIDE, tl.cdiv(tl.maximum(WIDE - right, 0), STEP)) - first
    x += worker * (HIGH * WIDE * CHANNELS * IMAGES)
    y += worker * (OUT_HIGH * OUT_WIDE * FILTERS * IMAGES)
    steps = tl.maximum(high, 0) * tl.maximum(wide, 0) * I_BLOCKS
    length = tl.cdiv(steps, parts)
    sums = tl.zeros((TILE_F, TILE_C), tl.float32)
    for step in range(part * length, tl.minimum((part + 1) * length, steps)):
        row, column = top + step // I_BLOCKS // wide, first + step // I_BLOCKS % wide
        image = step % I_BLOCKS * TILE_I + tl.arange(0, TILE_I)
        to = y + ((row * OUT_WIDE + column) * FILTERS + f)[:, None] * IMAGES + image[None, :]
        place = (row * STEP + down) * WIDE + column * STEP + right
        at = x + (place * CHANNELS + c)[:, None] * IMAGES + image[None, :]
        if IMAGES % TILE_I == 0:
            given, seen = tl.load(to), tl.load(at)
        else:
            given = tl.load(to, mask=(image < IMAGES)[None, :], other=0.0)
            seen = tl.load(at, mask=(image < IMAGES)[None, :], other=0.0)
        sums = tl.dot(given, tl.trans(seen), sums, input_precision="tf32")
    place = ((part * workers + worker) * FILTERS + f)[:, None] * (ROWS * COLUMNS) + tap
    tl.store(out + place * CHANNELS + c[None, :], sums.to(out.dtype.element_ty))


@triton.jit
def _turn_kernel(
    w, out, stride, FILTERS: tl.constexpr, PAIRS: tl.constexpr, TAPS: tl.constexpr, TILE_F: tl.constexpr,
    TILE_N: tl.constexpr,
):  # fmt: skip
    """Of one worker, (filter, channel, tap) -> (channel, last tap first, filter)."""
    worker = tl.program_id(2).to(tl.int64)
    f = tl.program_id(1) * TILE_F + tl.arange(0, TILE_F)
    n = tl.program_id(0) * TILE_N + tl.arange(0, TILE_N)
    tile = tl.load(
        w + worker * stride + f[:, None] * PAIRS + n[None, :], mask=(n < PAIRS)[None, :], other=0.0
    )
    place = n // TAPS * TAPS + TAPS - 1 - n % TAPS
    to = out + worker * (PAIRS * FILTERS) + place[:, None] * FILTERS + f[None, :]
    tl.store(to, tl.trans(tile), mask=(n < PAIRS)[:, None])


def turn(w: Tensor, out: Tensor) -> None:
    """Write the kernels w (n, filters, channels, rows, columns) turned round into `out`."""
    n, filters, _, rows, columns = w.shape
    pairs, tile_f = w[0, 0].numel(), tile_of(filters, 64)
    launch(
        _turn_kernel, (triton.cdiv(pairs, 64), filters // tile_f, n), w, out, w.stride(0), FILTERS=filters,
        PAIRS=pairs, TAPS=rows * columns, TILE_F=tile_f, TILE_N=64,
    )  # fmt: skip


def convolve(
    x: Tensor, w: Tensor, out: Tensor, shape: Shape, *, turn: bool = False, tiles: Tiles | None = None
) -> None:
    """Write the convolution of x with w, or with the kernels w turned round, into `out`."""
    tile_p, most_f, most_c, warps, stages = tiles or _tiles(x.dtype, shape, turn)
    tile_f, pixels = tile_of(shape.FILTERS, most_f), out[0, ..., 0].numel()
    launch(
        _convolve_kernel, (triton.cdiv(pixels, tile_p), shape.FILTERS // tile_f, len(x)), x, w, out,
        x.shape[1], pixels, *shape, TURN=turn, TILE_P=tile_p, TILE_F=tile_f,
        TILE_C=tile_of(shape.CHANNELS, most_c), num_warps=warps, num_stages=stages,
    )  # fmt: skip


def _tiles(dtype: torch.dtype, shape: Shape, turn: bool) -> Tiles:
    if dtype == torch.float32:
        return TF32
    if shape.CHANNELS % 64 == shape.FILTERS % 64 == 0:
        return LARGE
    return SMALL_TURN if turn else SMALL


def weights(x: Tensor, y: Tensor, out: Tensor, shape: Shape, tiles: Tiles = WEIGHTS) -> None:
    """Write the gradient of the kernels, summed over each part of the pixels, into `out` (parts, …)."""
    tile_p, most_f, tile_n, warps, stages = tiles
    tile_f, pixels = tile_of(shape.FILTERS, most_f), y[0, ..., 0].numel()
    length = triton.cdiv(triton.cdiv(pixels, tile_p), len(out)) * tile_p
    blocks = shape.FILTERS // tile_f * triton.cdiv(out[0, 0, 0].numel(), tile_n)
    launch(
        _weights_kernel, (blocks, len(out), len(x)), x, y, out, x.shape[1], pixels, length, *shape,
        EVEN=pixels % tile_p == 0, TILE_P=tile_p, TILE_F=tile_f, TILE_N=tile_n, num_warps=warps,
        num_stages=stages,
    )  # fmt: skip


def weights_by_image(x: Tensor, y: Tensor, out: Tensor, shape: Shape, tiles: Tiles = BY_IMAGE) -> None:
    """The same, of images that lie (workers, rows, columns, channels, images)."""
    most_f, most_c, most_i, warps, stages = tiles
    tile_f, tile_c = tile_of(shape.FILTERS, most_f), tile_of(shape.CHANNELS, most_c)
    tile_i = max(16, min(most_i, triton.next_power_of_2(x.shape[-1])))
    blocks = shape.FILTERS // tile_f * (shape.CHANNELS // tile_c) * shape.ROWS * shape.COLUMNS
    launch(
        _weights_by_image_kernel, (blocks, len(out), len(x)), x, y, out, len(out), x.shape[-1], *shape,
        TILE_F=tile_f, TILE_C=tile_c, TILE_I=tile_i, num_warps=warps, num_stages=stages,
    )  # fmt: skip
