"""What runs on the cores of a CPU: each thread on its own, and inner products to float64's last digits."""

from collections.abc import Iterator

import pytest
import torch

from clippedgossip import devices
from clippedgossip.mixing import kernels
from tests.rounding import assert_near, sums


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_each_thread_computes_alone(two_threads: None) -> None:
    assert set(devices.each(lambda _: torch.get_num_threads(), range(8))) == {1}
    assert list(devices.each(lambda _: torch.get_num_threads(), [0])) == [2], "a single item has them all"
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(("rows", "more"), [(1, 0), (9, 3), (64, 0), (60, 9)])
@pytest.mark.parametrize("columns", [0, 1, 3000])
def test_inner_products(rows: int, more: int, columns: int) -> None:
    check_products(rows, more, columns)


def test_inner_products_with_two_threads(two_threads: None) -> None:
    check_products(9, 3, 3000)


def check_products(rows: int, more: int, columns: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    held = torch.randn(rows + more, columns, generator=generator)
    found = kernels.gram([held[:rows], held[rows:]] if more else [held])
    assert_near(found, held.double() @ held.double().T, roundings=sums(columns))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_distances_are_equal_however_the_coordinates_are_divided(dtype: torch.dtype) -> None:
    """As ranks divide them. Squares of whole numbers are exact, and so are their sums; roots are not."""
    rows = torch.tensor([[0, 0, 0, 0], [1, 1, 1, 1], [2, 0, 0, 0], [0, 0, 0, -2]], dtype=dtype)
    slots = torch.tensor([[0, 1, 2, 3]])
    for cut in range(1, 4):
        halves = [rows[:, :cut].contiguous(), rows[:, cut:].contiguous()]
        assert sum(kernels.squared_along_edges([half], slots) for half in halves).tolist() == [[4.0] * 3]  # type: ignore[union-attr]  # two tensors, not 0
