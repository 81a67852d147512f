"""The rules on arrays of other libraries."""

import numpy as np
import pytest
import torch

from clippedgossip.adapters.arrays import mixed
from clippedgossip.rules import ClippedGossip, Median


def test_numpy_goes_in_and_comes_out() -> None:
    draw = np.random.default_rng(0)
    own, received, weights = draw.normal(size=(2, 5)), draw.normal(size=(2, 3, 5)), np.full((2, 3), 0.25)
    rule = ClippedGossip(0.5)
    found = mixed(rule, own, received, weights)
    assert isinstance(found, np.ndarray)
    expected = rule(torch.from_numpy(own), torch.from_numpy(received), torch.from_numpy(weights))
    assert np.array_equal(found, expected.numpy())
    own.flags.writeable = False  # NumPy does not hand out what is read-only
    assert np.array_equal(mixed(rule, own, received, weights), found)
    assert mixed(Median(), [0, 0], [[1, 1], [5, 5]], [0.3, 0.3]).tolist() == [1, 1]


def test_what_speaks_dlpack_comes_back_as_it_was() -> None:
    jax = pytest.importorskip("jax.numpy", reason="pip install jax")
    found = mixed(Median(), jax.zeros(3), jax.ones((2, 3)), jax.full(2, 0.3))
    assert type(found) is type(jax.zeros(3))
    assert found.tolist() == [1, 1, 1]
    tensor = mixed(Median(), torch.zeros(2), np.ones((2, 2)), np.full(2, 0.3))
    assert isinstance(tensor, torch.Tensor)
