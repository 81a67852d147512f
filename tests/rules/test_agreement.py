"""All rules agree with loops from their definitions, in a wider arithmetic, over 100,000 node-mixes."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from clippedgossip.mixing.inbox import Context
from clippedgossip.rules import (
    GTS,
    IOS,
    MDA,
    NNA,
    NNM,
    Adaptive,
    Balance,
    Bucketing,
    CenteredClipping,
    ClippedGossip,
    CSPlus,
    GeometricMedian,
    Gossip,
    Krum,
    Local,
    MeaMed,
    Median,
    Mozi,
    MultiKrum,
    Oracle,
    Quantile,
    Rule,
    TrimmedMean,
    WeightedMedian,
    WeightedTrimmedMean,
)
from tests.rules import by_definition

C = 8
"""The error allowed, in units of rounding of own model and step: a difference, a product and a sum of seven
terms for each coordinate."""

RULES: dict[str, Rule] = {
    "gossip": Gossip(),
    "clipped gossip": ClippedGossip(1.0),
    "clipped gossip, adaptive": ClippedGossip(Adaptive(0.2)),
    "clipped gossip, local": ClippedGossip(Local(1)),
    "clipped gossip, quantile": ClippedGossip(Quantile(0.5)),
    "clipped gossip, oracle": ClippedGossip(Oracle()),
    "cs+": CSPlus(0.12),
    "gts": GTS(0.12),
    "nna": NNA(1),
    "mozi": Mozi(loss=lambda models: models[..., 0], keep=0.7),  # an exact loss
    "centered clipping": CenteredClipping(1.0, 3),
    "geometric median": GeometricMedian(8),
    "krum": Krum(1),
    "multi-krum": MultiKrum(1),
    "mda": MDA(1),
    "ios": IOS(1),
    "balance": Balance(kappa=0.0),
    "median": Median(),
    "weighted median": WeightedMedian(),
    "trimmed mean": TrimmedMean(1),
    "meamed": MeaMed(1),
    "weighted trimmed mean": WeightedTrimmedMean(0.15),
    "bucketing of clipped gossip": Bucketing(ClippedGossip(1.0)),
    "bucketing of median": Bucketing(Median(), size=3),
    "nnm of clipped gossip": NNM(rule=ClippedGossip(1.0), faulty=1),
    "nnm of krum": NNM(rule=Krum(1), faulty=1),
    "nnm of trimmed mean": NNM(rule=TrimmedMean(1), faulty=1),
}
K = 6
LOSES_WHAT_CANCELS = {
    "gossip": "its sum has both messages in it",
    "clipped gossip, local": "its sum has both messages in it, clipped",
    "clipped gossip, oracle": "its radius does not count the second message as Byzantine",
    "gts": "its sum has a part of one message in it",
    "geometric median": "it starts from the mean, in which they cancel",
    "bucketing of clipped gossip": "an average looks further away than it is, never nearer",
    "bucketing of median": "the average is rounded to the size of its terms",
}
"""Where two long messages cancel, the rest of them is rounded to a share of their size. The bounds hold."""


def draw(
    nodes: int, d: int, dtype: torch.dtype, attack: str, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Nodes near consensus and far from it; under attack, one message of any length, or two that cancel."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    spread = 10 ** (-6 * torch.rand(nodes, 1, generator=generator, dtype=torch.float64))
    own = normal(nodes, d)
    received = own[:, None] + spread[:, None] * normal(nodes, K, d)
    if attack:
        size = 10 ** (24 * torch.rand(nodes, 1, generator=generator, dtype=torch.float64) - 4)
        far = size * normal(nodes, d)
        received[:, 2] = own + far
        if attack == "cancel":
            received[:, 3] = own - far + normal(nodes, d)
    weights = 0.02 + 0.1 * torch.rand(nodes, K, generator=generator, dtype=torch.float64)
    return own.to(dtype), received.to(dtype), weights


def check(rule: Rule, dtype: torch.dtype, attack: str, nodes: int, device: str = "cpu") -> int:
    generator = torch.Generator().manual_seed(nodes)
    compared, byzantine = 0, torch.arange(K) == 2
    for start in range(0, nodes, 9):  # few enough for one product of all rows with all rows
        d = (1, 3, 20)[start // 9 % 3]
        own, received, weights = draw(9, d, dtype, attack, generator)
        context = Context(byzantine=byzantine.to(device))
        mixed = rule(own.to(device), received.to(device), weights.to(device), context)
        found = mixed.double().cpu().numpy()
        wide = [np.asarray(x.double().numpy(), dtype=np.longdouble) for x in (own, received, weights)]
        for i in range(9):
            x, messages, shares = (values[i] for values in wide)
            right = by_definition.mixed(rule, x, messages, shares, found[i], i, byzantine.numpy())
            if right is None:
                continue
            error = float(by_definition.norm(found[i] - right))
            scale = float(by_definition.norm(x) + by_definition.norm(right - x))
            units = error / (torch.finfo(dtype).eps * scale)
            assert units <= C, (rule, i, units, d)
            compared += 1
    return compared


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("attack", ["", "one"], ids=["alone", "attacked"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_rule_does_what_its_definition_says(
    rule: Rule, dtype: torch.dtype, attack: str, device: str
) -> None:
    assert check(rule, dtype, attack, 54, device) > 50


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", [name for name in RULES if name not in LOSES_WHAT_CANCELS])
def test_it_does_so_where_two_messages_cancel(name: str, dtype: torch.dtype, device: str) -> None:
    assert check(RULES[name], dtype, "cancel", 54, device) > 50


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_message_that_is_nearly_trimmed_keeps_the_digits_of_its_share(count: int) -> None:
    """In exact fractions. The share of one message, weight − trim, is exact to a unit of rounding. Where
    weights are summed first, it is as exact as with weights off by a unit: times weight/share."""
    random = np.random.default_rng(count)
    for _ in range(60):
        weights = 0.02 + 0.1 * random.random(K)
        values = random.standard_normal(K + 1)
        values[1 : count + 1] = random.choice([-1, 1]) * 10 ** (20 * random.random(count))
        far = weights[:count].sum()
        trim = far * (1 - 10 ** (-7 * random.random()))
        own, *received = torch.from_numpy(values)[:, None]
        mixed = WeightedTrimmedMean(trim)(own, torch.stack(received), torch.from_numpy(weights))
        right = _trimmed_exactly(values, weights, trim)
        units = abs(Fraction(float(mixed)) - right) / abs(right) / Fraction(2**-52)
        assert units <= C * (1 if count == 1 else far / (far - trim)), (units, weights, trim)


def _trimmed_exactly(values: Any, weights: Any, trim: float) -> Fraction:
    shares = [Fraction(w) for w in weights]
    shares, cut = [1 - sum(shares, Fraction(0)), *shares], Fraction(trim)
    below = total = kept = Fraction(0)
    for value, share in sorted(zip(map(Fraction, values), shares, strict=True)):
        here = max(Fraction(0), min(below + share, 1 - cut) - max(below, cut))
        below, kept, total = below + share, kept + here, total + here * value
    return total / kept


@pytest.mark.parametrize("rule", [Gossip(), ClippedGossip(1.0), CSPlus(0.12), GTS(0.12)], ids=repr)
def test_where_terms_cancel_float64_is_right_to_units_of_the_terms(rule: Rule) -> None:
    """Near 0, steps may cancel to less than their rounding. float32 is summed in float64 there."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(60):
        own, received, weights = draw(1, 1, torch.float64, "", generator)
        own, received = 1e-6 * own, received - own
        found = rule(own, received, weights)[0].numpy()
        x, y, w = (np.asarray(x[0].numpy(), dtype=np.longdouble) for x in (own, received, weights))
        right = by_definition.mixed(rule, x, y, w, found)
        terms = float(abs(own) + (weights * received[..., 0].abs()).sum())
        assert abs(found - right) <= C * torch.finfo(torch.float64).eps * terms


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("attack", ["", "one"], ids=["alone", "attacked"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_over_a_hundred_thousand_mixes(rule: Rule, dtype: torch.dtype, attack: str) -> None:
    assert check(rule, dtype, attack, 2250) > 2200  # of 2,250, where no more tie than can be tried
