"""Data sets in memory."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
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
    x = data.normalise(data.train_x)
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


X = np.arange(8, dtype=np.float32).reshape(4, 2)
Y = np.arange(4) % 2
TABLE = pd.DataFrame(X, columns=["a", "b"])


@pytest.mark.parametrize("kind", ["uint16", "uint32", "uint64", ">i4", "bool"])
def test_whole_numbers_of_every_kind_are_classes_and_tokens(kind: str) -> None:
    array, data = (
        Y.astype(kind),
        DataSet.of(Y[:, None].astype(kind), Y.astype(kind), Y[:, None].astype(kind), Y),
    )
    assert (data.classes, data.train_y.dtype, data.train_y.tolist()) == (2, torch.long, array.tolist())
    assert data.train_x[:, 0].tolist() == array.tolist()
    assert data.train_x.dtype in (torch.long, torch.int32, torch.bool)


def test_numbers_of_other_kinds_are_the_same_inputs() -> None:
    tables = [TABLE.astype("Float64"), TABLE.assign(b=TABLE.b.astype(object)), TABLE.assign(b=TABLE.b > 2)]
    for x in (
        X.astype(">f8"),
        np.ma.masked_greater(X, 9),
        torch.from_numpy(X).to(torch.float8_e4m3fn),
        *tables[:1],
    ):
        assert torch.equal(DataSet.of(x, Y, X, Y).train_x, torch.from_numpy(X))
    assert DataSet.of(tables[2], Y, X, Y).train_x[:, 1].tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize(
    ("x", "y", "says"),
    [
        (np.ma.masked_equal(X, 5.0), Y, "some train inputs are masked, the first in row 2\nleave"),
        ({"a": np.ma.masked_equal(X, 5.0)}, Y, "some train inputs are masked"),
        (X, np.ma.masked_equal(Y, 1), "some train targets are masked, the first in row 1\nleave"),
        (torch.masked.masked_tensor(torch.ones(4, 2), torch.ones(4, 2) > 0), Y, "inputs are masked\n"),
        (torch.nested.nested_tensor([torch.ones(2)] * 4), Y, "train inputs are nested\n.*padded"),
        (X.astype(np.float64) * 1e300, Y, "infinite in float32, the first in row 0"),
        (X, Y + 1j, "train targets are complex numbers\ngive real"),
        (TABLE.assign(b="text"), Y, "column 'b' of train inputs is of type .*\n.*get_dummies"),
        (TABLE.astype("Float64").mask(TABLE > 6), Y, "NaN or infinite in float32, the first in row 3"),
        (X, pd.Series(list("abab")), "train targets of type .* cannot be made a tensor\n"),
    ],
)
def test_what_is_no_number_is_refused(x: Any, y: Any, says: str) -> None:
    with pytest.raises(DataError, match=says):
        DataSet.of(x, y, X, Y)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda x, y: (x.astype(int), y), "inputs have dtype torch.int64 but test inputs torch.float32"),
        (lambda x, y: (x, y[:, None]), r"targets have shape \(1,\) but test targets \(\)"),
        (lambda x, y: ({"a": x.astype(int)}, y), "inputs have dtype {'a': torch.int64}"),
    ],
)
def test_train_and_test_data_are_of_one_kind(change: Callable[..., Any], says: str) -> None:
    x = {"a": X} if "'a'" in says else X
    train_x, train_y = change(X, Y)
    with pytest.raises(DataError, match=says):
        DataSet.of(train_x, train_y, x, Y)
