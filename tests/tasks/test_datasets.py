"""Data sets in memory."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from clippedgossip.errors import DataError
from clippedgossip.tasks import DataSet, load
from clippedgossip.tasks.datasets import _digits_table


def test_digits_need_no_network_and_are_normalised() -> None:
    data = load("digits")
    assert data.train_x.shape == (1442, 1, 8, 8)
    assert len(data.test_y) == 355
    assert data.classes == 10
    x = data.normalised()[0]
    assert abs(float(x.mean())) < 0.01
    assert abs(float(x.std()) - 1) < 0.01
    assert int(data.test_y.bincount().min()) >= 34
    assert torch.equal(load("digits").test_x, data.test_x)


@pytest.mark.parametrize("found", [True, False])
def test_digits_are_those_of_scikit_learn(found: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read from its file, or by its own function where a later version keeps the file elsewhere."""
    if not found:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    table, digits = _digits_table(), load_digits()
    assert np.array_equal(table, np.column_stack([digits.data, digits.target]))


def test_a_part_can_be_taken() -> None:
    data = load("digits")
    part = data.take(100, 50, seed=1)
    assert (len(part.train_y), len(part.test_y)) == (100, 50)
    assert torch.equal(part.train_x, data.take(100, 50, seed=1).train_x)
    assert not torch.equal(part.train_x, data.take(100, 50, seed=2).train_x)
    with pytest.raises(DataError, match="1442 train samples; 2000 cannot"):
        data.take(2000)


def test_labels_and_inputs_must_fit() -> None:
    x, y = torch.zeros(4, 2), torch.arange(4)
    with pytest.raises(DataError, match="4 train inputs for 3 labels"):
        DataSet.of(x, y[:3], x, y)
    with pytest.raises(DataError, match=r"train targets are torch\.float32, but test targets torch\.int64"):
        DataSet.of(x, y.float(), x, y)
    with pytest.raises(DataError, match="first in row 2\nleave those samples out"):
        DataSet.of(torch.tensor([0.0, 1.0, torch.nan, 3.0])[:, None], y, x[:, :1], y)
    with pytest.raises(DataError, match=r"go from -1 to 2; 4 classes.*\nnumber the classes from 0"):
        DataSet.of(x, y - 1, x, y)
    assert DataSet.of(x, y.to(torch.uint8), x, y.int()).train_y.dtype == torch.long
    assert DataSet.of(x, y, x, y, classes=9).classes == 9
    with pytest.raises(DataError, match="must agree"):
        DataSet.of(x, y, x[:, :1], y)


def test_a_data_set_says_what_it_is_in_one_line() -> None:
    assert repr(load("digits")) == (
        "DataSet('digits': 1,442 to train, 355 to test, inputs 1×8×8, 10 classes)"
    )
