"""Choosing the smallest entries of each row."""

import torch
from torch import Tensor


def nearest(keys: Tensor, count: Tensor) -> Tensor:
    """Mask of the `count` (b,) smallest entries of each row of keys (b, k); ties go to the earlier one."""
    rank = keys.argsort(dim=-1, stable=True).argsort(-1)
    return rank < count.reshape(*count.shape, *([1] * (keys.dim() - count.dim())))


def uniform_over(chosen: Tensor) -> Tensor:
    """Equal coefficients on the chosen entries of each row."""
    share = chosen.to(torch.float64)
    return share / share.sum(-1, keepdim=True)
