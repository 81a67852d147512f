"""Every rule as a loop over neighbours, from its definition, in numpy's long double: one node at a time.

Where a definition ties, several results are right. Each function takes the result that was found, and
returns the right one nearest to it; None where more choices tie than are worth trying.
"""

from collections.abc import Iterable, Iterator
from itertools import combinations, pairwise, product
from math import comb, prod
from typing import Any

import numpy as np
import torch

from clippedgossip import rules
from clippedgossip.randomness import hash_bits
from clippedgossip.rules import Rule

Wide = Any  # NDArray[np.longdouble], whose operators the stubs cannot follow
TIE = 1e-5
"""Relative: choices whose measures are this close may go either way, and any of them is right."""
MOST = 200
"""Choices that are tried where they tie."""


def norm(x: Wide) -> Any:
    return np.sqrt((x * x).sum())


def clip(x: Wide, radius: Any) -> Wide:
    size = norm(x)
    return x if size <= radius else x * (radius / size)


def lowest(measures: Wide, count: int) -> list[tuple[int, ...]]:
    """Every set of `count` places whose measures are least, ties decided either way."""
    order = np.argsort(measures, kind="stable")
    if not 0 < count < len(order):
        return [tuple(order[:count])]
    last = measures[order[count - 1]]
    slack = TIE * last
    sure = [int(j) for j in order if measures[j] < last - slack]
    tied = [int(j) for j in order if abs(measures[j] - last) <= slack]
    if comb(len(tied), count - len(sure)) > MOST:
        return []
    return [(*sure, *some) for some in combinations(tied, count - len(sure))]


def nearest_to(found: Wide, candidates: Iterable[Wide | None]) -> Wide | None:
    known = [x for x in candidates if x is not None]
    return min(known, key=lambda x: norm(x - found)) if known else None


def orders(measures: Wide) -> Iterator[Wide]:
    """The order of the measures, and those in which two that tie have changed places."""
    order = np.argsort(measures, kind="stable")
    yield order
    for i, (a, b) in enumerate(pairwise(order)):
        if measures[b] - measures[a] <= TIE * measures[b]:
            swapped = order.copy()
            swapped[[i, i + 1]] = b, a
            yield swapped


def mixed(
    rule: Rule,
    own: Wide,
    received: Wide,
    weights: Wide,
    found: Wide,
    node: int = 0,
    byzantine: Wide | None = None,
) -> Wide | None:
    """The rule's result."""
    models = np.concatenate([own[None], received])
    n = len(models)
    distances = np.array([norm(x - own) for x in received])

    def pairs() -> Wide:
        return ((models[:, None] - models) ** 2).sum(2)

    def towards(radius: Any) -> Wide:
        return own + sum(w * clip(x - own, radius) for w, x in zip(weights, received, strict=True))

    match rule:
        case rules.Bucketing(rule=inner, size=size):
            draws = hash_bits(0, "bucketing", 0, torch.tensor([[node]]), torch.arange(len(received))[None])[0]
            order = np.argsort(draws.numpy())
            buckets = [order[start : start + size] for start in range(0, len(order), size)]
            averages = np.array([received[bucket].mean(0) for bucket in buckets])
            shares = np.array([weights[bucket].sum() for bucket in buckets])
            return mixed(inner, own, averages, shares, found, node)
        case rules.NNM(rule=inner, faulty=f):
            # A model is the nearest to itself, and n − f − 1 others.
            squares, others = pairs(), [np.delete(np.arange(n), i) for i in range(n)]
            sets = [
                [(i, *others[i][list(some)]) for some in lowest(squares[i][others[i]], n - f - 1)]
                for i in range(n)
            ]
            if not all(sets) or prod(map(len, sets)) > MOST:
                return None
            return nearest_to(
                found,
                (
                    mixed(inner, near[0], np.array(near[1:]), weights, found, node)
                    for choice in product(*sets)
                    for near in [[models[list(some)].mean(0) for some in choice]]
                ),
            )
        case rules.Gossip():
            return (1 - weights.sum()) * own + weights @ received
        case rules.ClippedGossip(radius=rules.Fixed(value=radius)):
            return towards(radius)
        case rules.ClippedGossip(radius=rules.Oracle()):
            assert byzantine is not None
            delta = weights[byzantine].sum()
            spread = (weights * distances**2)[~byzantine].sum()
            return towards(np.sqrt(spread / delta) if delta > 0 else np.inf)
        case rules.ClippedGossip(radius=rules.Quantile(q=q)):
            return towards(sorted(distances)[int(np.ceil(q * len(distances))) - 1])
        case rules.ClippedGossip(radius=rules.Adaptive() | rules.Local() as radius):
            if isinstance(radius, rules.Local):
                delta = sum(sorted(weights, reverse=True)[: radius.faulty])
            else:
                delta = radius.delta_max

            def adaptive(order: Wide) -> Any:
                total, square = 1 - weights.sum(), np.longdouble(0)
                for j in order:
                    total += weights[j]
                    if total <= 1 - delta + 1e-9:
                        square += weights[j] * distances[j] ** 2
                return np.sqrt(square)

            return nearest_to(found, (towards(adaptive(order)) for order in orders(distances)))
        case rules.CSPlus(byzantine_weight=b):

            def beyond(order: Wide) -> Any:
                left = [j for i, j in enumerate(order) if weights[order[i + 1 :]].sum() >= 2 * b - 1e-9]
                return distances[left].max(initial=0)

            return nearest_to(found, (towards(beyond(order)) for order in orders(distances)))
        case rules.GTS(byzantine_weight=b):

            def trimmed(order: Wide) -> Wide:
                left, result = np.longdouble(b), own.copy()
                for j in order[::-1]:
                    dropped = min(left, weights[j])
                    left -= dropped
                    result = result + (weights[j] - dropped) * (received[j] - own)
                return result

            return nearest_to(found, (trimmed(order) for order in orders(distances)))
        case rules.NNA(faulty=f):
            return nearest_to(
                found,
                (
                    np.concatenate([own[None], received[list(kept)]]).mean(0)
                    for kept in lowest(distances, len(received) - f)
                ),
            )
        case rules.Mozi(loss=loss, keep=keep, self_weight=a):
            assert loss is not None
            values = np.array([float(loss(torch.from_numpy(x.astype(np.float64)))) for x in models])

            def better(kept: tuple[int, ...]) -> Wide:
                good = [j for j in kept if values[j + 1] <= values[0]]
                good = good or [min(kept, key=lambda j: values[j + 1])]
                return a * own + (1 - a) * received[good].mean(0)

            return nearest_to(found, map(better, lowest(distances, max(1, int(len(received) * keep + 1e-9)))))
        case rules.CenteredClipping(radius=radius, iterations=times):
            z = own
            for _ in range(times):
                z = z + sum(clip(x - z, radius) for x in models) / n
            return z
        case rules.GeometricMedian(iterations=times, smoothing=nu):
            z = models.mean(0)
            for _ in range(times):
                pull = 1 / np.maximum([norm(x - z) for x in models], np.longdouble(nu))
                z = (pull[:, None] * models).sum(0) / pull.sum()
            return z
        case rules.Krum(faulty=f):
            scores = np.array(
                [np.sort(np.delete(row, i))[: n - f - 2].sum() for i, row in enumerate(pairs())]
            )
            count = 1 if type(rule) is rules.Krum else n - f
            return nearest_to(found, (models[list(some)].mean(0) for some in lowest(scores, count)))
        case rules.MDA(faulty=f):
            squares, subsets = pairs(), [list(s) for s in combinations(range(n), n - f)]
            widths = np.array([squares[s][:, s].max() for s in subsets])
            close = np.flatnonzero(widths <= widths.min() * (1 + TIE))
            return nearest_to(found, (models[subsets[j]].mean(0) for j in close))
        case rules.IOS(faulty=f):
            return nearest_to(found, _scissored(models, np.append(1 - weights.sum(), weights), f))
        case rules.Balance(gamma=gamma, self_weight=a):
            accepted = received[distances <= gamma * norm(own)]
            return own if not len(accepted) else a * own + (1 - a) * accepted.mean(0)
        case rules.Median():
            return np.median(models, axis=0)
        case rules.TrimmedMean(trim=int(trim)):
            return np.sort(models, axis=0)[trim : n - trim].mean(0)
        case rules.MeaMed(faulty=f):
            columns = zip(models.T, np.median(models, axis=0), found, strict=True)
            return np.array(
                [
                    nearest_to(
                        np.array([value]),
                        [column[list(s)].mean(keepdims=True) for s in lowest(np.abs(column - m), n - f)],
                    )[0]  # type: ignore[index]  # None is no result here
                    for column, m, value in columns
                ]
            )
        case rules.WeightedMedian():
            result = own.copy()
            for c in range(len(own)):
                order = np.argsort(models[:, c], kind="stable")
                values, below = models[order, c], np.append(1 - weights.sum(), weights)[order].cumsum()
                low = values[np.flatnonzero(below >= 0.5 - 1e-6)[0]]
                high = values[np.flatnonzero(below > 0.5 + 1e-6)[0]]
                result[c] = (low + high) / 2
            return result
        case rules.WeightedTrimmedMean(trim=float(trim)):
            order = np.argsort(models, axis=0, kind="stable")
            values = np.take_along_axis(models, order, 0)
            share = np.append(1 - weights.sum(), weights)[order]
            above = share.cumsum(0)
            kept = np.maximum(np.minimum(above, 1 - trim) - np.maximum(above - share, trim), 0)
            return (kept * values).sum(0) / kept.sum(0)
    raise NotImplementedError(type(rule).__name__)


def _scissored(models: Wide, trusted: Wide, times: int) -> Iterator[Wide]:
    """IOS: drop the furthest from the mean, whichever it is where several are."""
    mean = trusted @ models / trusted.sum()
    if not times:
        yield mean
        return
    doubtful = [j for j in range(1, len(models)) if trusted[j] > 0]
    far = np.array([norm(models[j] - mean) for j in doubtful])
    for j, distance in zip(doubtful, far, strict=True):
        if distance >= far.max() * (1 - TIE):
            yield from _scissored(models, np.where(np.arange(len(models)) == j, 0, trusted), times - 1)
