"""Random crop and flip of a batch of images, drawn from counters, on the device of the images."""

import torch
from torch import Tensor

from clippedgossip.randomness import Word, hash_bits


def crop_flip(x: Tensor, seed: Word, node_ids: Tensor, round: Word, padding: int = 4) -> Tensor:
    """Shift each image by up to `padding` pixels with black borders and mirror every second one.

    `x` is (n, batch, channels, height, width) and raw, so that 0 is black; the shifts depend on (seed, node,
    round, place in the batch) alone.
    """
    *lead, channels, height, width = x.shape
    places = torch.arange(lead[-1], device=x.device)
    round = round[..., None] if isinstance(round, Tensor) else round
    bits = hash_bits(seed, "augment", node_ids[..., None], round, places)
    span = 2 * padding + 1
    rows = torch.arange(height, device=x.device) + ((bits & 0xFFFF) % span - padding)[..., None]
    columns = torch.arange(width, device=x.device) + (((bits >> 16) & 0xFFFF) % span - padding)[..., None]
    columns = torch.where(((bits >> 32) & 1 == 1)[..., None], width - 1 - columns, columns)
    in_rows, in_columns = (rows >= 0) & (rows < height), (columns >= 0) & (columns < width)
    inside = in_rows[..., :, None] & in_columns[..., None, :]
    flat = rows.clamp(0, height - 1)[..., :, None] * width + columns.clamp(0, width - 1)[..., None, :]
    index = flat.reshape(*lead, 1, height * width).expand(*lead, channels, height * width)
    moved = x.reshape(*lead, channels, height * width).gather(-1, index).reshape(x.shape)
    return moved * inside[..., None, :, :]
