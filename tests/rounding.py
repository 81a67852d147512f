"""Comparisons of floats. A tolerance is a number of roundings; who needs more than a few says why."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

FEW = 100
"""What sums and products of some dozen numbers round, in whatever order a CPU takes them."""


def sums(of: int) -> float:
    """How many roundings lie between sums of so many numbers in two orders.

    An addition is off by ε/√12 of its result, as a standard deviation, and the result grows: a sum of n is
    off by √(n/3)·ε/√12. Four standard deviations of the difference of two such sums are 0.94 √n ε."""
    return math.sqrt(max(1, of))


def trained(rounds: int, of: int) -> float:
    """How many roundings lie between models after so many rounds of training, on two devices: the sums of one
    round differ by `sums(of)`, `of` the terms of the longest, and each round takes over those before it."""
    return rounds * sums(of)


def near(value: Any, *, roundings: float = FEW, dtype: torch.dtype = torch.float64) -> Any:
    """Numbers that differ from these by so many roundings of their size, or of 1 if they are smaller."""
    within = roundings * torch.finfo(dtype).eps
    return pytest.approx(value, rel=within, abs=within)


def assert_near(
    found: Any,
    right: Any,
    *,
    roundings: float = FEW,
    dtype: torch.dtype | None = None,
    least: float = 0.0,
    told: str = "",
) -> None:
    """Arrays that differ by so many roundings of their largest number, or by no more than `least`. `dtype` is
    that of the computation."""
    found, right = _tensor(found), _tensor(right)
    right = right if right.dim() else right.to(found).expand_as(found)
    size = torch.cat([found.flatten(), right.flatten()]).nan_to_num(0, 0, 0).abs().amax()
    within = max(least, roundings * torch.finfo(dtype or found.dtype).eps * float(size))
    message = (lambda said: f"{told}: {said}") if told else None
    torch.testing.assert_close(found, right, rtol=0, atol=within, equal_nan=True, msg=message)


def _tensor(value: Any) -> Tensor:
    return value.detach() if isinstance(value, Tensor) else torch.tensor(np.asarray(value))
