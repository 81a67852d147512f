"""Partitions share out every sample once, and keep what each scheme promises."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from clippedgossip.errors import DataError
from clippedgossip.tasks import SCHEMES, DataSet, partition

DIGITS = torch.arange(10).repeat_interleave(30)[
    torch.randperm(300, generator=torch.Generator().manual_seed(0))
]


def halves(nodes: int) -> list[list[int]]:
    return [list(range(nodes // 2)), list(range(nodes // 2, nodes))]


def held(labels: Tensor, share: Tensor) -> set[int]:
    return set(labels[share].tolist())


@given(
    st.sampled_from(sorted(SCHEMES)),
    st.integers(2, 10),
    st.integers(0, 2**40),
    st.floats(0.01, 100),
)
def test_every_sample_goes_to_exactly_one_node(how: str, nodes: int, seed: int, alpha: float) -> None:
    shares = partition(DIGITS, nodes, how, seed=seed, groups=halves(nodes), alpha=alpha)
    assert len(shares) == nodes
    assert all(len(share) for share in shares)
    assert torch.cat(shares).sort().values.tolist() == list(range(300))


@given(st.sampled_from(sorted(SCHEMES)), st.integers(0, 2**40))
def test_the_seed_decides(how: str, seed: int) -> None:
    first, again, other = (
        partition(DIGITS, 4, how, seed=each, groups=halves(4)) for each in (seed, seed, seed + 1)
    )
    assert all(torch.equal(one, two) for one, two in zip(first, again, strict=True))
    if how != "classes":  # whole classes leave nothing to chance
        assert not all(torch.equal(one, two) for one, two in zip(first, other, strict=False))


@given(st.integers(1, 300))
def test_iid_and_sorted_shares_differ_by_one_at_most(nodes: int) -> None:
    for how in ("iid", "sorted"):
        sizes = {len(share) for share in partition(DIGITS, nodes, how, seed=1)}
        assert max(sizes) - min(sizes) <= 1


def test_sorted_gives_ten_nodes_one_class_each() -> None:
    shares = partition(DIGITS, 10, "sorted", seed=0)
    assert [held(DIGITS, share) for share in shares] == [{label} for label in range(10)]


def test_clique_gives_a_the_first_half_of_the_classes_and_b_the_rest() -> None:
    groups = [[0, 2, 4], [1, 3, 5, 6]]
    shares = partition(DIGITS, 7, "clique", seed=0, groups=groups)
    for group, classes in zip(groups, (set(range(5)), set(range(5, 10))), strict=True):
        assert all(held(DIGITS, shares[node]) == classes for node in group)
        assert sum(len(shares[node]) for node in group) == 150


def test_dirichlet_is_near_iid_for_large_alpha_and_one_sided_for_small() -> None:
    labels = torch.arange(10).repeat_interleave(200)

    def largest_class(alpha: float) -> float:
        shares = partition(labels, 5, "dirichlet", seed=3, alpha=alpha)
        return sum(float(labels[s].bincount().max()) / len(s) for s in shares) / 5

    assert largest_class(1000.0) < 0.13
    assert largest_class(0.05) > 0.3


def test_classes_gives_every_node_a_range_of_its_own() -> None:
    shares = partition(DIGITS, 3, "classes", seed=0)
    assert [held(DIGITS, share) for share in shares] == [{0, 1, 2, 3}, {4, 5, 6}, {7, 8, 9}]


@pytest.mark.parametrize(
    ("how", "nodes", "options", "says"),
    [
        ("iid", 301, {}, "301 workers cannot share 300 samples"),
        ("iid", 0, {}, "between 1 and 300"),
        ("clik", 2, {}, "did you mean 'clique'"),
        ("clique", 4, {}, "needs the groups"),
        ("clique", 4, {"groups": [[0, 1], [1, 2]]}, "exactly once"),
        ("clique", 11, {"groups": [[node] for node in range(11)]}, "10 classes cannot be split into 11"),
        ("clique", 4, {"groups": halves(4), "classes": 12}, "class 10 has no sample, but group 1"),
        ("clique", 200, {"groups": [list(range(160)), list(range(160, 200))]}, "group 0 has 160 workers"),
        ("classes", 11, {}, "at most 10"),
        ("classes", 3, {"classes": 11}, "class 10 has no sample, but worker 2"),
        ("dirichlet", 3, {"alpha": 0.0}, "must be positive"),
        ("dirichlet", 3, {"alpha": float("nan")}, "must be positive"),
        ("dirichlet", 3, {"alpha": float("inf")}, r"at most 1e\+09"),
    ],
)
def test_what_cannot_be_shared_out_is_said(
    how: str, nodes: int, options: dict[str, object], says: str
) -> None:
    with pytest.raises(DataError, match=says):
        partition(DIGITS, nodes, how, seed=0, **options)  # type: ignore[arg-type] # parametrised options


@pytest.mark.parametrize("how", sorted(set(SCHEMES) - {"iid"}))
@pytest.mark.parametrize(
    "targets", [DIGITS[:, None].expand(-1, 2), DIGITS[:, None].expand(-1, 2) / 2, "dict"]
)
def test_only_iid_divides_targets_that_are_no_single_numbers(how: str, targets: Any) -> None:
    targets = {"a": DIGITS, "b": DIGITS} if isinstance(targets, str) else targets
    labels = DataSet.of(DIGITS[:, None], targets, DIGITS[:, None], targets).labels
    assert sum(map(len, partition(labels, 4, seed=0))) == 300
    with pytest.raises(DataError, match=f"{how!r} divides by targets that are one number.*\ntake iid"):
        partition(labels, 4, how, seed=0, groups=halves(4))


@pytest.mark.parametrize("how", sorted(SCHEMES))
def test_a_column_of_targets_is_divided_as_its_numbers(how: str) -> None:
    column = DataSet.of(DIGITS[:, None], DIGITS[:, None], DIGITS[:, None], DIGITS[:, None])
    shares = [
        partition(y, 4, how, seed=0, groups=halves(4)) for y in (DIGITS, column.labels, DIGITS[:, None])
    ]
    assert all(all(map(torch.equal, shares[0], other)) for other in shares)


def test_sorted_divides_a_column_of_real_numbers_by_its_numbers() -> None:
    y = torch.randn(60, 1)
    shares = partition(DataSet.of(y, y, y, y).labels, 3, "sorted", seed=0)
    assert all(float(y[a].max()) <= float(y[b].min()) for a, b in pairwise(shares))


@pytest.mark.parametrize("how", ["clique", "dirichlet", "classes"])
def test_a_sample_without_a_class_is_not_divided_by_class(how: str) -> None:
    labels = torch.where(torch.arange(300) == 7, -100, DIGITS)
    with pytest.raises(DataError, match=r"needs a class from 0 to 9 .* from -100 to 9\ntake iid"):
        partition(labels, 4, how, seed=0, groups=halves(4), classes=10)


def test_a_partition_of_ones_own_gets_what_it_takes() -> None:
    def cut(labels: Tensor, nodes: int) -> list[Tensor]:
        assert torch.equal(labels, DIGITS)
        return list(torch.arange(300).tensor_split(nodes))

    def seeded(labels: Tensor, nodes: int, *, seed: int, **more: Any) -> list[Tensor]:
        assert (seed, more) == (3, {"classes": 10, "groups": halves(4)})
        return cut(labels, nodes)

    one, other = (partition(DIGITS, 4, own, seed=3, groups=halves(4)) for own in (cut, seeded))
    assert all(map(torch.equal, one, other))
    real = partition(
        DIGITS / 2, 4, lambda labels, nodes, classes: [[0] if classes is None else []] * 4, seed=0
    )
    assert [share.tolist() for share in real] == [[0]] * 4


@pytest.mark.parametrize(
    ("own", "says"),
    [
        (lambda labels, nodes: [labels == node for node in range(nodes)], "dtype torch.bool\n.*nonzero"),
        (lambda labels, nodes: [[0.5]] * nodes, "dtype torch.float32\n"),
        (lambda labels, nodes: [[[0], [1]]] * nodes, r"shape \(2, 1\)"),
        (lambda labels, nodes: [1 // 0], "raised ZeroDivisionError: .*\nsee .*test_partitions.py, line"),
        (list, "raised TypeError"),
    ],
)
def test_what_a_partition_of_ones_own_must_not_give_is_told(own: Any, says: str) -> None:
    with pytest.raises(DataError, match=says) as told:
        partition(DIGITS, 4, own, seed=0)
    assert len(str(told.value).splitlines()) == 2
