"""A search for messages that move a node further than its rule allows: hill climbing on the excess."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from clippedgossip.mixing.inbox import Context
from clippedgossip.rules import Rule
from clippedgossip.rules.bound import Ball, Box, Seen, Unbounded

UNITS = 16
"""Units of rounding, of the longest model in the bound, that a result may be outside it: one for each of the
few operations on a coordinate (the difference, the product with a coefficient, a sum of seven)."""

Mix = Callable[[Rule, Tensor, Tensor, Tensor, Context], Tensor]
"""rule, own (n, d), received (n, k, d), weights (n, k), context -> (n, d): an engine under attack."""


@dataclass
class Worst:
    """The largest excess found, in units of what is allowed for rounding, and what brought it about."""

    excess: float
    received: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Scene:
    """A node, its regular neighbours, and the places of the Byzantine ones."""

    own: Tensor  # (d,)
    regular: Tensor  # (k, d); rows of Byzantine places are not used
    weights: Tensor  # (k,)
    byzantine: Tensor  # (k,)

    def received(self, messages: Tensor) -> Tensor:
        received = self.regular.clone()
        received[self.byzantine] = messages
        return received


def scenes(dtype: torch.dtype, generator: torch.Generator, coordinates: tuple[int, ...]) -> list[Scene]:
    """Own and regular models of ordinary size, near consensus, far apart, at 0 and alike; two of six
    neighbours are Byzantine, or one."""
    found = []
    for d in coordinates:
        for spread in (1.0, 1e-4, 0.0):
            for size in (1.0, 0.0, 1e5):
                own = size * torch.randn(d, generator=generator, dtype=dtype)
                regular = own + spread * torch.randn(6, d, generator=generator, dtype=dtype)
                weights = 0.05 + 0.1 * torch.rand(6, generator=generator, dtype=torch.float64)
                places = torch.randperm(6, generator=generator)
                found += [
                    Scene(own, regular, weights, torch.isin(torch.arange(6), places[:count]))
                    for count in (1, 2)
                ]
    return found


def first_messages(scene: Scene, generator: torch.Generator) -> Tensor:
    """Of any size from the smallest to the largest number, nearly cancelling, a copy but for a unit."""
    count, d = int(scene.byzantine.sum()), len(scene.own)
    dtype = scene.own.dtype
    direction = torch.randn(count, d, generator=generator, dtype=torch.float64)
    info = torch.finfo(dtype)
    low, high = torch.tensor([info.smallest_normal * info.eps, info.max], dtype=torch.float64).log2()
    exponent = low + (high - 3 - low) * float(torch.rand((), generator=generator, dtype=torch.float64))
    messages = _bounded(direction / direction.abs().max() * torch.exp2(exponent), dtype)
    kind = int(torch.randint(6, (), generator=generator))
    if kind == 0 and count > 1:
        messages[1] = -messages[0]
    if kind == 1 and count > 1:
        messages[1] = torch.nextafter(-messages[0], torch.zeros((), dtype=dtype)) + scene.own
    if kind == 2:
        messages = torch.nextafter(scene.own, scene.own + 1).expand(count, d).clone()
    if kind == 3:
        messages = -scene.regular[~scene.byzantine][0].expand(count, d).clone()
    if kind == 4:
        messages = scene.regular[~scene.byzantine][:1].expand(count, d).clone()
    return messages


def change(messages: Tensor, scene: Scene, generator: torch.Generator) -> Tensor:
    """One step of the climb."""
    messages = messages.clone()
    dtype = messages.dtype
    which = int(torch.randint(len(messages), (), generator=generator))
    kind = int(torch.randint(8, (), generator=generator))
    noise = torch.randn(messages.shape[1], generator=generator, dtype=dtype)
    size = float(messages[which].double().abs().max())
    if kind == 0:
        factor = 2.0 ** float(torch.randint(-40, 41, (), generator=generator))
        messages[which] = _bounded(messages[which].double() * factor, dtype)
    elif kind == 1:
        messages[which] = _bounded(messages[which].double() + 0.1 * size * noise.double(), dtype)
    elif kind == 2:
        messages[which] = torch.nextafter(messages[which], noise.sign() * torch.finfo(dtype).max)
    elif kind == 3 and len(messages) > 1:
        messages[1 - which] = -messages[which]
    elif kind == 4 and len(messages) > 1:
        messages[1 - which] = _bounded(
            2 * scene.own.double() - messages[which].double() + noise.double(), dtype
        )
    elif kind == 5:
        regular = scene.regular[~scene.byzantine]
        messages[which] = regular[int(torch.randint(len(regular), (), generator=generator))] + 1e-3 * noise
    elif kind == 6:
        place = int(torch.randint(len(noise), (), generator=generator))
        messages[which, place] = torch.finfo(dtype).max * float(noise[place].sign())
    else:
        messages[which] = _bounded(scene.own.double() + size * noise.double(), dtype)
    return messages


def _bounded(values: Tensor, dtype: torch.dtype) -> Tensor:
    most = torch.finfo(dtype).max / 4
    return values.clamp(-most, most).to(dtype)


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


def climb(rule: Rule, mix: Mix, scene: Scene, generator: torch.Generator, *, steps: int, wide: int) -> Worst:
    """The worst of `steps` steps with `wide` candidates each."""
    dtype, k = scene.own.dtype, len(scene.weights)
    best, worst = first_messages(scene, generator), Worst(-torch.inf)
    own = scene.own.expand(wide, -1).contiguous()
    weights = scene.weights.expand(wide, -1).contiguous()
    told = Context(
        round=steps, rounds=2 * steps, nodes=torch.zeros(1, dtype=torch.int64), senders=torch.arange(k)[None]
    )
    bound = rule.bound(seen_in(scene, told))
    context = replace(told, byzantine=scene.byzantine, nodes=torch.zeros(wide, dtype=torch.int64))
    for step in range(steps):
        tried = [
            first_messages(scene, generator) if i and step % 4 == 0 else change(best, scene, generator)
            for i in range(wide)
        ]
        received = torch.stack([scene.received(messages) for messages in tried])
        mixed = mix(rule, own, received, weights, context).cpu()
        if not bool(torch.isfinite(mixed).all()):
            return Worst(torch.inf, received[int((~torch.isfinite(mixed)).any(1).int().argmax())])
        if isinstance(bound, Unbounded):
            continue
        excess = bound.excess(mixed) / allowed(bound, dtype, len(scene.own))
        if float(excess.max()) > worst.excess:
            place = int(excess.argmax())
            worst, best = Worst(float(excess[place]), received[place]), tried[place]
    return worst
