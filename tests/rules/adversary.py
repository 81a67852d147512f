"""A search for messages that move a node further than its rule allows: hill climbing on the excess."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clippedgossip.mixing.inbox import Context
from clippedgossip.rules import Rule
from clippedgossip.rules.bound import Ball, Box, Seen, Unbounded

UNITS = 16
"""Units of rounding, of the longest model in the bound, that a result may be outside it: one for each of the
few operations on a coordinate (the difference, the product with a coefficient, a sum of seven)."""
K = 6
SPREADS, SIZES, COUNTS = (1.0, 1e-4, 0.0), (1.0, 0.0, 1e5), (1, 2, 3)

Numbers = Any  # NDArray of the dtype under attack
Mix = Callable[[Rule, Tensor, Tensor, Tensor, Context], Tensor]
"""rule, own (n, d), received (n, k, d), weights (n, k), context -> (n, d): an engine under attack."""


@dataclass(frozen=True)
class Worst:
    """The largest excess found, in units of what is allowed for rounding, and what brought it about."""

    excess: float = -np.inf
    received: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Scene:
    """A node, its regular neighbours, and the places of the Byzantine ones."""

    own: Tensor  # (d,)
    regular: Tensor  # (k, d); rows of Byzantine places are not used
    weights: Tensor  # (k,)
    byzantine: Tensor  # (k,)

    @property
    def count(self) -> int:
        return int(self.byzantine.sum())


def scenes(dtype: torch.dtype, d: int, seed: int) -> list[Scene]:
    """Nine: own and regular models of ordinary size, at 0 and long; far apart, near consensus and alike. One,
    two or three of six neighbours are Byzantine, another number for another seed. Weights are drawn, or 1/7
    each: then a rule that is told two sevenths is told the Byzantine weight itself."""
    generator = torch.Generator().manual_seed(1000 * seed + d)
    found = []
    for number in range(9):
        spread, size = SPREADS[number // 3], SIZES[number % 3]
        own = size * torch.randn(d, generator=generator, dtype=dtype)
        regular = own + spread * torch.randn(K, d, generator=generator, dtype=dtype)
        weights = 0.05 + 0.1 * torch.rand(K, generator=generator, dtype=torch.float64)
        if number % 2:
            weights.fill_(1 / (K + 1))  # in float64, or rounded to float32 first
            weights = weights.float().double() if number % 4 == 1 else weights
        places = torch.randperm(K, generator=generator)[: COUNTS[(number + number // 3 + seed) % 3]]
        found.append(Scene(own, regular, weights, torch.isin(torch.arange(K), places)))
    return found


class Attacker:
    """Who climbs in one scene: the worst messages so far, and how to change them."""

    def __init__(self, scene: Scene, random: np.random.Generator) -> None:
        self.random = random
        self.own: Numbers = scene.own.numpy()
        self.others: Numbers = scene.regular[~scene.byzantine].numpy()
        self.shape = (scene.count, len(self.own))
        info = np.finfo(self.own.dtype)
        self.most = float(info.max) / 4
        self.exponents = (float(np.log2(info.smallest_subnormal)), float(np.log2(self.most)))
        self.best, self.excess = self.first(), -np.inf

    def first(self) -> Numbers:
        """Of any size from the smallest to the largest number; half of them cancel, but for a rest of any
        size."""
        direction = self.normal(*self.shape)
        messages = direction / np.abs(direction).max() * 2.0 ** self.random.uniform(*self.exponents)
        return self.cancelling(messages) if self.random.random() < 0.5 else self.bounded(messages)

    @np.errstate(over="ignore")  # an infinite one is bounded afterwards
    def change(self) -> Numbers:
        """One step of the climb."""
        messages = self.best.copy()
        which = self.random.integers(len(messages))
        message = messages[which].astype(np.float64)
        size = float(np.abs(message).max())
        part = 2.0 ** -self.random.uniform(0, 60)  # of any size beside it
        noise = self.normal(self.shape[1])
        other = self.others[self.random.integers(len(self.others))].astype(np.float64)
        match self.random.integers(10):
            case 0:
                message = message * 2.0 ** self.random.integers(-40, 41)
            case 1:
                message = message + part * size * noise
            case 2:
                towards = np.where(noise > 0, self.most, -self.most).astype(self.own.dtype)
                messages[which] = np.nextafter(messages[which], towards)
                return messages
            case 3:
                return self.cancelling(messages.astype(np.float64))
            case 4:
                message = other + part * noise
            case 5:
                message = 2 * self.own.astype(np.float64) - other  # as far from the own model: a tie
            case 6:
                chosen = self.random.integers(self.shape[1])
                message[chosen] = self.random.choice([self.most, -self.most, 0.0, 2.0 ** self.exponents[0]])
            case 7:
                message = self.own.astype(np.float64) + part * size * noise
            case 8:
                towards = np.where(noise > 0, self.most, -self.most).astype(self.own.dtype)
                messages[which] = np.nextafter(self.own, towards)
                return messages
            case _:
                return self.first()
        messages[which] = self.bounded(message)
        return messages

    def cancelling(self, messages: Numbers) -> Numbers:
        """The last is the negative of the others together, seen from the own model, but for a rest of any
        size beside them; so is half of the others' sum, where that is the bucket."""
        own = self.own.astype(np.float64)
        others = messages[:-1] if len(messages) > 1 else self.others[:1].astype(np.float64)
        if self.random.random() < 0.5:
            others = others[-1:]
        apart = np.clip(others, -self.most, self.most) / 4 - own / 4
        rest = np.abs(apart).max() * 2.0 ** -self.random.uniform(0, 60) * self.normal(self.shape[1])
        messages[-1] = 4 * np.clip(own / 4 - apart.sum(0) + rest, -self.most / 4, self.most / 4)
        return self.bounded(messages)

    def normal(self, *shape: int) -> Numbers:
        return self.random.standard_normal(shape)

    def bounded(self, values: Numbers) -> Numbers:
        return np.clip(values, -self.most, self.most).astype(self.own.dtype)


def allowed(bound: Ball | Box, dtype: torch.dtype, d: int) -> float:
    """What rounding may add to a bound. Squares of float64 numbers below 1e-154 are 0."""
    info = torch.finfo(dtype)
    smallest = info.smallest_normal if dtype != torch.float64 else info.smallest_normal**0.5
    return UNITS * float(info.eps * bound.size + smallest * d**0.5)


def seen_in(scene: Scene, context: Context) -> Seen:
    """What a bound is told. What the Byzantine neighbours send has no part in it."""
    return Seen(
        own=scene.own.double(),
        received=scene.regular.double(),
        weights=scene.weights,
        byzantine=scene.byzantine,
        context=context,
    )


def climb(rule: Rule, mix: Mix, chosen: Sequence[Scene], *, steps: int, seed: int = 7) -> Worst:
    """The worst of `steps` steps in each of the scenes, which are one batch of nodes."""
    random = np.random.default_rng(seed)
    attackers = [Attacker(scene, random) for scene in chosen]
    own = torch.stack([scene.own for scene in chosen])
    weights = torch.stack([scene.weights for scene in chosen])
    regular = torch.stack([scene.regular for scene in chosen])
    told = Context(
        round=steps, rounds=2 * steps, nodes=torch.zeros(1, dtype=torch.int64), senders=torch.arange(K)[None]
    )
    bounds = [rule.bound(seen_in(scene, told)) for scene in chosen]
    context = replace(
        told,
        byzantine=torch.stack([scene.byzantine for scene in chosen]),
        nodes=torch.zeros(len(chosen), dtype=torch.int64),
    )
    worst = Worst()
    for step in range(steps):
        tried = [attacker.change() if step else attacker.best for attacker in attackers]
        received = regular.clone()
        for place, (scene, messages) in enumerate(zip(chosen, tried, strict=True)):
            received[place, scene.byzantine] = torch.from_numpy(messages)
        mixed = mix(rule, own, received, weights, context).cpu()
        if not bool(torch.isfinite(mixed).all()):
            return Worst(np.inf, received[int((~torch.isfinite(mixed)).any(1).int().argmax())])
        for place, (bound, attacker) in enumerate(zip(bounds, attackers, strict=True)):
            if isinstance(bound, Unbounded):
                continue
            excess = float(bound.excess(mixed[place])) / allowed(bound, own.dtype, own.shape[1])
            if excess >= attacker.excess:  # equal ones too: there are plains to cross
                attacker.best, attacker.excess = tried[place], excess
            if excess > worst.excess:
                worst = Worst(excess, received[place])
    return worst
