"""Which node holds which samples: one index tensor for each node; together they hold every sample once."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from clippedgossip.decode import Kind
from clippedgossip.errors import DataError, UserError, counted, kind_of, unknown_name
from clippedgossip.own import raised
from clippedgossip.randomness import drawn_from, generator, key
from clippedgossip.tasks.datasets import Data, wide

Groups = Sequence[Sequence[int]]  # positions 0 … nodes-1, group by group: the cliques of a dumbbell

Scheme = Callable[..., Sequence[Any]]  # one of the user's own

BY_CLASS = ("clique", "dirichlet", "classes")
LARGEST = 1e9  # Dirichlet's alpha, beyond which its draws overflow


@dataclass(frozen=True, kw_only=True)
class _Request:
    labels: Tensor
    nodes: int
    classes: int
    seed: int
    groups: Groups | None
    alpha: float


def partition(
    labels: Data,
    nodes: int,
    how: str | Scheme = "iid",
    *,
    seed: int,
    groups: Groups | None = None,
    alpha: float = 0.5,
    classes: int | None = None,
) -> list[Tensor]:
    """Divide the samples among `nodes` nodes (all that train, Byzantine ones included).

    `iid`: equal random shares. `sorted`: sorted by label, cut into equal shards. `clique`: the classes are
    cut into one range per group of `groups`, each range divided at random inside its group. `dirichlet`:
    each class divided by proportions drawn from Dirichlet(alpha). `classes`: one node per class group.
    A function of the user's own, (labels, nodes, …) -> one list of rows per node, may do anything; it gets
    `seed`, `classes` and `groups` if it takes them.
    """
    labels = wide(torch.as_tensor(labels))
    if labels.numel() == len(labels):
        labels = labels.flatten()
    if isinstance(how, str) and how not in SCHEMES:
        raise DataError(unknown_name("partition", how, SCHEMES))
    if nodes < 1 or nodes > len(labels):
        raise DataError(
            f"{counted(nodes, 'worker')} cannot share {counted(len(labels), 'sample')}; "
            f"use between 1 and {len(labels)} workers"
        )
    if isinstance(how, str) and how != "iid" and labels.ndim > 1:
        raise DataError(
            f"partition {how!r} divides by targets that are one number for each sample; these are not\n"
            "take iid, or a function (labels, nodes) of your own"
        )
    whole = labels.ndim == 1 and not labels.is_floating_point()
    if how in BY_CLASS and classes is None and not whole:
        raise DataError(f"partition {how!r} divides by classes; with real-valued targets take iid or sorted")
    classes = int(labels.max()) + 1 if classes is None and whole else classes
    if not isinstance(how, str):
        lists = None if groups is None else [list(group) for group in groups]  # a peer's file has tuples
        offered = {"seed": seed, "classes": classes, "groups": lists}
        with drawn_from(key(seed, "partition")):
            found = _called(how, labels.cpu(), nodes, **offered)
        if not isinstance(found, Sequence):
            raise DataError(f"the partition returned {kind_of(found)}\nreturn a list of each worker's rows")
        return checked_shares(found, range(nodes), len(labels))
    if how in BY_CLASS and not 0 <= int(labels.min()) <= int(labels.max()) < (classes or 0):
        raise DataError(
            f"partition {how!r} needs a class from 0 to {(classes or 0) - 1} for each sample; labels go from "
            f"{labels.min()} to {labels.max()}\ntake iid or sorted, or leave out samples without a class"
        )
    request = _Request(
        labels=labels.cpu(), nodes=nodes, classes=classes or 0, seed=seed, groups=groups, alpha=alpha
    )
    return SCHEMES[how](request)


def _called(how: Scheme, labels: Tensor, nodes: int, **offered: Any) -> object:
    """What a user's own function gives, of what it takes of `offered`."""
    takes = inspect.signature(how).parameters.values()
    names = offered if any(t.kind is t.VAR_KEYWORD for t in takes) else {t.name for t in takes}
    try:
        return how(labels, nodes, **{key: said for key, said in offered.items() if key in names})
    except UserError:
        raise
    except Exception as error:  # a user's own function may raise anything
        raise DataError(f"the partition {raised(error)}") from error


def checked_shares(shares: Sequence[Any], nodes: Sequence[int], samples: int) -> list[Tensor]:
    """The shares as tensors of row numbers: one for each worker, none empty, all within the data."""
    workers = len(set(nodes))
    if not len(nodes) == len(shares) == workers:
        raise DataError(f"{len(shares)} shares for {workers} different workers; give one share to each")
    try:
        rows = [torch.as_tensor(share).cpu() for share in shares]
    except (TypeError, ValueError, RuntimeError) as error:  # text, None, slices, lists of several lengths
        raise DataError(f"the shares are no rows: {error}\nlist the numbers of each worker's rows") from None
    for node, row in zip(nodes, rows, strict=True):
        if row.ndim == 1 and not len(row):
            raise DataError(f"worker {node} holds no samples; use fewer workers or another partition")
        if row.ndim != 1 or row.dtype == torch.bool or row.is_floating_point():
            raise DataError(
                f"worker {node}'s share has shape {tuple(row.shape)} and dtype {row.dtype}\n"
                "list the numbers of its rows (of a mask: mask.nonzero().flatten())"
            )
        low, high = (int(bound) for bound in wide(row).aminmax())
        if low < 0 or high >= samples:
            wrong = low if low < 0 else high
            raise DataError(f"worker {node} holds row {wrong}; rows go from 0 to {samples - 1}")
    return [row.long() for row in rows]


def _iid(request: _Request) -> list[Tensor]:
    return _deal(torch.arange(len(request.labels)), request.nodes, request.seed, 0)


def _sorted(request: _Request) -> list[Tensor]:
    # Shuffled first, so that which samples of a class end at a border depends on the seed.
    order = _shuffle(torch.arange(len(request.labels)), request.seed, 0)
    return _cut(order[torch.sort(request.labels[order], stable=True).indices], request.nodes)


def _clique(request: _Request) -> list[Tensor]:
    groups = _check_groups(request)
    shares: dict[int, Tensor] = {}
    for place, (group, owned) in enumerate(zip(groups, _class_ranges(request, len(groups)), strict=True)):
        samples = _samples_of(request, owned, f"group {place}")
        if len(samples) < len(group):
            raise DataError(
                f"group {place} has {counted(len(group), 'worker')} but its classes "
                f"have {counted(len(samples), 'sample')}; "
                "use smaller groups or more data"
            )
        shares |= dict(zip(group, _deal(samples, len(group), request.seed, place), strict=True))
    return [shares[node] for node in range(request.nodes)]


def _dirichlet(request: _Request) -> list[Tensor]:
    if not 0 < request.alpha <= LARGEST:
        raise DataError(
            f"alpha is {request.alpha}; Dirichlet's alpha must be positive, such as 0.1 or 1, and at most "
            f"{LARGEST:g}, where shares are almost equal"
        )
    import numpy as np

    draw = np.random.default_rng(key(request.seed, "partition", 1))
    owner = torch.empty(len(request.labels), dtype=torch.long)
    for label in range(request.classes):
        rows = _shuffle((request.labels == label).nonzero().flatten(), request.seed, 2, label)
        shares = draw.dirichlet(np.full(request.nodes, request.alpha))
        borders = torch.from_numpy(np.rint(shares.cumsum() * len(rows)).astype(np.int64)[:-1])
        owner[rows] = torch.bucketize(torch.arange(len(rows)), borders, right=True)
    return _feed_the_empty([(owner == node).nonzero().flatten() for node in range(request.nodes)])


def _classes(request: _Request) -> list[Tensor]:
    ranges = _class_ranges(request, request.nodes)
    return [_samples_of(request, owned, f"worker {node}") for node, owned in enumerate(ranges)]


SCHEMES: dict[str, Callable[[_Request], list[Tensor]]] = {
    "iid": _iid,
    "sorted": _sorted,
    "clique": _clique,
    "dirichlet": _dirichlet,
    "classes": _classes,
}
"""Partitions by name: which node holds which samples."""
PARTITION = Kind(
    word="partition",
    names=SCHEMES,
    base=object,
    group="clippedgossip.partitions",
    fix="make it a function (labels, nodes, seed=…) -> one list of rows per node",
    given=2,
    offered=("seed", "classes", "groups"),
    error=DataError,
)


def _shuffle(rows: Tensor, seed: int, *counters: int) -> Tensor:
    return rows[torch.randperm(len(rows), generator=generator(seed, "partition", *counters))]


def _cut(rows: Tensor, parts: int) -> list[Tensor]:
    """Consecutive parts whose sizes differ by one at most; sorted, so that a share is a set."""
    return [part.sort().values for part in torch.tensor_split(rows, parts)]


def _deal(rows: Tensor, parts: int, seed: int, *counters: int) -> list[Tensor]:
    return _cut(_shuffle(rows, seed, *counters), parts)


def _class_ranges(request: _Request, parts: int) -> list[list[int]]:
    if parts > request.classes:
        raise DataError(
            f"{request.classes} classes cannot be split into {parts} groups; use at most {request.classes}"
        )
    return [part.tolist() for part in torch.tensor_split(torch.arange(request.classes), parts)]


def _samples_of(request: _Request, owned: list[int], owner: str) -> Tensor:
    counts = torch.bincount(request.labels, minlength=request.classes)
    absent = [label for label in owned if counts[label] == 0]
    if absent:
        raise DataError(
            f"class {absent[0]} has no sample, but {owner} needs classes {owned[0]} to {owned[-1]}; "
            "take a larger part of the data"
        )
    return torch.isin(request.labels, torch.tensor(owned)).nonzero().flatten()


def _check_groups(request: _Request) -> Groups:
    if not request.groups:
        raise DataError("partition 'clique' needs the groups; give them, such as groups=[[0, 1], [2, 3]]")
    if sorted(node for group in request.groups for node in group) != list(range(request.nodes)):
        raise DataError(
            f"the groups must hold each of the workers 0 to {request.nodes - 1} exactly once; "
            f"they hold {sum(map(len, request.groups))} entries"
        )
    return request.groups


def _feed_the_empty(shares: list[Tensor]) -> list[Tensor]:
    """A worker without samples gets one from the worker that has most: every worker must be able to train."""
    for node in range(len(shares)):
        if not len(shares[node]):
            richest = max(range(len(shares)), key=lambda other: len(shares[other]))
            shares[node], shares[richest] = shares[richest][:1], shares[richest][1:]
    return shares
