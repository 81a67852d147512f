"""Every rule as a loop over neighbours, from its definition, in numpy's long double: one node at a time."""

from itertools import combinations
from typing import Any

import numpy as np
import torch

from clippedgossip import rules
from clippedgossip.randomness import hash_bits
from clippedgossip.rules import Rule

Wide = Any  # NDArray[np.longdouble], whose operators the stubs cannot follow
TIE = 1e-5
"""Relative: choices whose measures are this close may go either way, and any of them is right."""


def norm(x: Wide) -> Any:
    return np.sqrt((x * x).sum())


def clip(x: Wide, radius: Any) -> Wide:
    size = norm(x)
    return x if size <= radius else x * (radius / size)


def mixed(rule: Rule, own: Wide, received: Wide, weights: Wide, node: int = 0) -> Wide | None:
    """The rule's result; None where its definition ties, or nearly: then several are right."""
    models = np.concatenate([own[None], received])
    n = len(models)
    distances = np.array([norm(x - own) for x in received])
    match rule:
        case rules.Bucketing(rule=inner, size=size):
            draws = hash_bits(0, "bucketing", 0, torch.tensor([[node]]), torch.arange(len(received))[None])[0]
            order = np.argsort(draws.numpy())
            buckets = [order[start : start + size] for start in range(0, len(order), size)]
            averages = np.array([received[bucket].mean(0) for bucket in buckets])
            return mixed(inner, own, averages, np.array([weights[bucket].sum() for bucket in buckets]), node)
        case rules.NNM(rule=inner, faulty=f):
            squares = np.array([[((a - b) ** 2).sum() for b in models] for a in models])
            if any(ties(np.delete(row, i)) for i, row in enumerate(squares)):
                return None
            nearest = [models[np.argsort(row)[: n - f]].mean(0) for row in squares]
            return mixed(inner, nearest[0], np.array(nearest[1:]), weights, node)
        case rules.Gossip():
            return (1 - weights.sum()) * own + weights @ received
        case rules.ClippedGossip(radius=rules.Fixed(value=radius)):
            return own + sum(w * clip(x - own, radius) for w, x in zip(weights, received, strict=True))
        case rules.ClippedGossip(radius=rules.Adaptive(delta_max=delta)):
            order = np.argsort(distances)
            if ties(distances):
                return None
            total, square = 1 - weights.sum(), np.longdouble(0)
            for j in order:
                total += weights[j]
                if total <= 1 - delta + 1e-9:
                    square += weights[j] * distances[j] ** 2
            radius = np.sqrt(square)
            return own + sum(w * clip(x - own, radius) for w, x in zip(weights, received, strict=True))
        case rules.CSPlus(byzantine_weight=b):
            if ties(distances):
                return None
            within: Any = np.longdouble(0)
            for j in range(len(weights)):
                if weights[distances > distances[j]].sum() >= 2 * b - 1e-9:
                    within = max(within, distances[j])
            return own + sum(w * clip(x - own, within) for w, x in zip(weights, received, strict=True))
        case rules.GTS(byzantine_weight=b):
            if ties(distances):
                return None
            left, result = np.longdouble(b), own.copy()
            for j in np.argsort(-distances):
                dropped = min(left, weights[j])
                left -= dropped
                result = result + (weights[j] - dropped) * (received[j] - own)
            return result
        case rules.NNA(faulty=f):
            if ties(distances):
                return None
            kept = np.argsort(distances)[: len(received) - f]
            return np.concatenate([own[None], received[kept]]).mean(0)
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
            squares = np.array([[((a - b) ** 2).sum() for b in models] for a in models])
            scores = np.array(
                [np.sort(np.delete(row, i))[: n - f - 2].sum() for i, row in enumerate(squares)]
            )
            if ties(np.append(scores, 0) if n - f - 2 == 1 else scores):
                return None
            count = 1 if type(rule) is rules.Krum else n - f
            return models[np.argsort(scores)[:count]].mean(0)
        case rules.MDA(faulty=f):
            squares = np.array([[((a - b) ** 2).sum() for b in models] for a in models])
            sets = list(combinations(range(n), n - f))
            widths = np.array([squares[np.ix_(s, s)].max() for s in sets])
            ordered = np.sort(widths)
            if len(ordered) > 1 and ordered[1] <= ordered[0] * (1 + TIE):
                return None
            return models[list(sets[int(widths.argmin())])].mean(0)
        case rules.IOS(faulty=f):
            trusted = np.concatenate([[1 - weights.sum()], weights])
            for _ in range(f):
                mean = trusted @ models / trusted.sum()
                far = np.array(
                    [norm(x - mean) if t > 0 else -1 for x, t in zip(models, trusted, strict=True)]
                )
                if ties(far[1:][trusted[1:] > 0]):
                    return None
                trusted[1 + int(far[1:].argmax())] = 0
            return trusted @ models / trusted.sum()
        case rules.Balance(gamma=gamma, self_weight=a):
            accepted = received[distances <= gamma * norm(own)]
            return own if not len(accepted) else a * own + (1 - a) * accepted.mean(0)
        case rules.Median():
            return np.median(models, axis=0)
        case rules.TrimmedMean(trim=int(trim)):
            return np.sort(models, axis=0)[trim : n - trim].mean(0)
        case rules.MeaMed(faulty=f):
            middle = np.median(models, axis=0)
            order = np.argsort(np.abs(models - middle), axis=0, kind="stable")[: n - f]
            return np.take_along_axis(models, order, 0).mean(0)
        case rules.WeightedTrimmedMean(trim=float(trim)):
            order = np.argsort(models, axis=0, kind="stable")
            values = np.take_along_axis(models, order, 0)
            share = np.concatenate([[1 - weights.sum()], weights])[order]
            above = share.cumsum(0)
            kept = np.maximum(np.minimum(above, 1 - trim) - np.maximum(above - share, trim), 0)
            return (kept * values).sum(0) / kept.sum(0)
    raise NotImplementedError(type(rule).__name__)


def ties(measures: Wide) -> bool:
    """Whether two of them are equal but for rounding."""
    ordered = np.sort(measures)
    return bool((np.diff(ordered) <= TIE * np.abs(ordered[1:])).any())
