"""The paper's guarantees as functions of a network. A bound that guarantees nothing is called vacuous."""

from dataclasses import dataclass
from math import inf, sqrt
from numbers import Integral

import numpy as np
from numpy.typing import NDArray

from clippedgossip.errors import NetworkError
from clippedgossip.network import Network

C1 = 32  # Lemma (bound on e₂); the statement and the proof of both theorems have it
C2 = 5  # Lemma (bound on the consensus distance)


@dataclass(frozen=True, kw_only=True)
class ConsensusGuarantee:
    """One round of ClippedGossip with the oracle radius, whatever Byzantine nodes send (Theorem `consensus`).

    mean ‖x_i⁺ − x̄‖² ≤ factor² · mean ‖x_i − x̄‖², and progress is guaranteed iff δ_max < limit.
    """

    factor: float  # √(1−p) + √(32 δ_max)
    limit: float
    delta_max: float
    applies: bool  # False: γ is only an upper bound, or rounds differ, or messages come late

    @property
    def holds(self) -> bool:
        """Whether every round brings the regular nodes closer to their mean."""
        return self.applies and self.delta_max < self.limit


@dataclass(frozen=True, kw_only=True)
class TrainingGuarantee:
    """What Theorem 1′ (training) requires of the network: δ_max ≤ γ²/(64·c₁·c₂), c₁ = 32, c₂ = 5."""

    limit: float
    delta_max: float
    gamma: float
    applies: bool  # as for consensus

    @property
    def holds(self) -> bool:
        """Whether the network is what the theorem asks for."""
        return self.applies and self.gamma > 0 and self.delta_max <= self.limit

    def max_step(self, smoothness: float) -> float:
        """The largest step size that the theorem allows: η ≤ γ/(40L)."""
        return self.gamma / (40 * smoothness)


@dataclass(frozen=True, kw_only=True)
class TrainingBound:
    """Theorem 1′: (1/(T+1)) Σ_t ‖∇f(x̄ᵗ)‖² ≤ heterogeneity + noise + drift + variance + start.

    All constants are those of the theorem's statement. Its proof ends otherwise: the step size is tuned with
    3r₀/(η(T+1)), and the 3 is kept in the noise alone. By the proof, drift is larger by 3^(2/3), variance by
    3^(3/4) and start by 3; and the noise has 320c₁ where the statement has 320c₁c₂.
    """

    heterogeneity: float  # 200c₁c₂/γ² · δ_max ζ²: does not vanish with T
    noise: float  # falls as T^(-1/2)
    drift: float  # falls as T^(-2/3)
    variance: float  # falls as T^(-3/4)
    start: float  # falls as 1/T
    trivial: float  # 2L·r₀ bounds ‖∇f(x̄⁰)‖² before any training
    applies: bool

    @property
    def value(self) -> float:
        """The bound."""
        return self.heterogeneity + self.noise + self.drift + self.variance + self.start

    @property
    def vacuous(self) -> bool:
        """Whether the theorem does not apply, or guarantees less than smoothness alone does at the start."""
        return not self.applies or self.value >= self.trivial


def krum_caveat(faulty: int, models: int, rule: str = "Krum") -> str | None:
    """Why Krum's theorem, n > 2f + 2 (Blanchard et al.), does not apply to a node that sees so many models,
    its own included; None if it does."""
    needed = 2 * faulty + 3
    if models >= needed:
        return None
    return (
        f"{rule} with {faulty} faulty is proved for {needed} models or more, a node sees {models}; "
        f"add edges or lower faulty to at most {max(0, (models - 3) // 2)}"
    )


def _applies(network: Network) -> bool:
    """Both theorems take one W for all rounds, and every message in the round in which it was sent."""
    return not network.changes and (network.gap.exact or network.delta_max == 0)


def consensus_guarantee(network: Network) -> ConsensusGuarantee:
    """The consensus theorem on this network: δ_max < γ²/32."""
    return ConsensusGuarantee(
        factor=sqrt(1 - network.p) + sqrt(C1 * network.delta_max),
        limit=network.spectral_gap**2 / C1,
        delta_max=network.delta_max,
        applies=_applies(network),
    )


def training_guarantee(network: Network) -> TrainingGuarantee:
    """What Theorem 1′ requires of this network."""
    return TrainingGuarantee(
        limit=network.spectral_gap**2 / (64 * C1 * C2),
        delta_max=network.delta_max,
        gamma=network.spectral_gap,
        applies=_applies(network),
    )


def byzantine_heard(
    network: Network, *, neighbours: int, more_than: int | NDArray[np.int64], rounds: int
) -> float:
    """The probability that some regular node hears more than so many Byzantine nodes in some round, if each
    node hears `neighbours` of its own, drawn anew in each round: 1 − Π_i P(H_i ≤ f_i)^T, H_i hypergeometric.
    f is one number, or one for each regular node."""
    for name, value, least in (("neighbours", neighbours, 1), ("rounds", rounds, 0)):
        if not isinstance(value, Integral) or value < least:
            raise NetworkError(f"{name} is {value!r}; it must be a whole number, at least {least}")
    from scipy.stats import hypergeom  # takes a second, and every process of a reproduction imports this file

    around = network.degrees[network.regular]
    drawn = np.minimum(neighbours, around)
    beyond = hypergeom.sf(more_than, np.maximum(around, 1), network.byzantine_neighbours, drawn)
    with np.errstate(divide="ignore"):
        return abs(float(np.expm1(rounds * np.log1p(-beyond).sum())))


def outvoted(network: Network, *, neighbours: int, rounds: int, share: float = 0.5) -> float:
    """The probability that in some round `share` or more of those that a node hears are Byzantine. A node
    with fewer neighbours hears all of them."""
    if not 0 < share <= 1:
        raise NetworkError(f"share is {share!r}; it must be above 0 and at most 1")
    heard = np.minimum(neighbours, network.degrees[network.regular])
    below = np.maximum(np.ceil(share * heard - 1e-9) - 1, 0).astype(int)  # the most below the share
    return byzantine_heard(network, neighbours=neighbours, more_than=below, rounds=rounds)


def fewest_neighbours(network: Network, *, rounds: int, risk: float = 0.01, share: float = 0.5) -> int | None:
    """The smallest s such that with s random neighbours the probability is at most `risk` that in some round
    `share` or more of those that a node hears are Byzantine; None if there is none."""
    if not 0 <= risk <= 1:
        raise NetworkError(f"risk is {risk!r}; a probability lies in 0..1")
    every = range(1, int(network.degrees.max(initial=0)) + 1)
    risks = ((s, outvoted(network, neighbours=s, rounds=rounds, share=share)) for s in every)
    return next((s for s, found in risks if found <= risk), None)


def training_bound(
    network: Network, *, smoothness: float, sigma2: float, zeta2: float, r0: float, rounds: int
) -> TrainingBound:
    """Theorem 1′ with 1/d₀ = γ/(40L), for T = `rounds`, L = `smoothness`, r₀ = f(x⁰) − f*."""
    for name, value in (("smoothness", smoothness), ("r0", r0), ("sigma2", sigma2), ("zeta2", zeta2)):
        if not 0 <= value < inf or (name == "smoothness" and value == 0):
            raise NetworkError(
                f"{name} is {value:g}; the bound needs a finite {name} of at least 0, smoothness above"
            )
    if rounds < 0:
        raise NetworkError(f"rounds is {rounds}; it must be at least 0")
    gamma, delta = network.spectral_gap, network.delta_max
    applies = training_guarantee(network).holds
    trivial = 2 * smoothness * r0
    if gamma == 0:
        return TrainingBound(
            heterogeneity=inf, noise=inf, drift=inf, variance=inf, start=inf, trivial=trivial, applies=False
        )
    steps = rounds + 1
    crowd = 9 / len(network.regular) + 320 * C1 * C2 * delta / gamma**2
    return TrainingBound(
        heterogeneity=200 * C1 * C2 * delta * zeta2 / gamma**2,
        noise=2 * sqrt(crowd) * sqrt(3 * smoothness * sigma2 * r0 / steps),
        drift=2 * (48 * C2 * zeta2 / gamma**2) ** (1 / 3) * (r0 * smoothness / steps) ** (2 / 3),
        variance=2 * (144 * C2 * sigma2 / gamma**2) ** (1 / 4) * (r0 * smoothness / steps) ** (3 / 4),
        start=40 * smoothness / gamma * r0 / steps,
        trivial=trivial,
        applies=applies,
    )
