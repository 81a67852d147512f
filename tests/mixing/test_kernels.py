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
