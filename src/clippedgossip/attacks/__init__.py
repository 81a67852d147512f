"""Attacks: omniscient, colluding, a different message along every edge."""

from clippedgossip.attacks.a_little_is_enough import ALIE
from clippedgossip.attacks.base import Attack, FreeAttack, LinearAttack, LocalAttack, View
from clippedgossip.attacks.bit_flipping import BitFlipping
from clippedgossip.attacks.dissensus import Dissensus, ZeroSum
from clippedgossip.attacks.honest import Honest, LabelFlipping
from clippedgossip.attacks.inner_product import IPM
from clippedgossip.attacks.mimic import Mimic
from clippedgossip.attacks.noise import Gaussian, NonFinite, Silence
from clippedgossip.attacks.registry import ATTACKS, make_attack
from clippedgossip.attacks.spectral import SpectralHeterogeneity
from clippedgossip.attacks.tuned import Tuned

__all__ = [
    "ALIE",
    "ATTACKS",
    "IPM",
    "Attack",
    "BitFlipping",
    "Dissensus",
    "FreeAttack",
    "Gaussian",
    "Honest",
    "LabelFlipping",
    "LinearAttack",
    "LocalAttack",
    "Mimic",
    "NonFinite",
    "Silence",
    "SpectralHeterogeneity",
    "Tuned",
    "View",
    "ZeroSum",
    "make_attack",
]
