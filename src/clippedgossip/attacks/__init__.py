"""Attacks. Byzantine nodes see everything, act together, and may send a different message along every edge.

A new attack is one file and one line in `ATTACKS`; the contract tests then run on it.
"""

from collections.abc import Mapping
from typing import Any

from clippedgossip.attacks.a_little_is_enough import ALIE
from clippedgossip.attacks.base import Attack, FreeAttack, LinearAttack, LocalAttack, View
from clippedgossip.attacks.bit_flipping import BitFlipping
from clippedgossip.attacks.dissensus import Dissensus, ZeroSum
from clippedgossip.attacks.inner_product import IPM
from clippedgossip.attacks.mimic import Mimic
from clippedgossip.attacks.no_attack import LabelFlipping, NoAttack
from clippedgossip.attacks.noise import Gaussian, NonFinite, Silence
from clippedgossip.attacks.spectral import SpectralHeterogeneity
from clippedgossip.attacks.tuned import Tuned
from clippedgossip.decode import Kind, made
from clippedgossip.errors import AttackError

__all__ = [
    "ALIE",
    "ATTACKS",
    "IPM",
    "Attack",
    "BitFlipping",
    "Dissensus",
    "FreeAttack",
    "Gaussian",
    "LabelFlipping",
    "LinearAttack",
    "LocalAttack",
    "Mimic",
    "NoAttack",
    "NonFinite",
    "Silence",
    "SpectralHeterogeneity",
    "Tuned",
    "View",
    "ZeroSum",
    "make_attack",
]

ATTACKS: Mapping[str, type[Attack]] = {
    "none": NoAttack,
    "alie": ALIE,
    "ipm": IPM,
    "bit-flipping": BitFlipping,
    "label-flipping": LabelFlipping,
    "dissensus": Dissensus,
    "zero-sum": ZeroSum,
    "spectral": SpectralHeterogeneity,
    "mimic": Mimic,
    "gaussian": Gaussian,
    "non-finite": NonFinite,
    "silence": Silence,
    "tuned": Tuned,
}
"""Attacks by the names that configs and commands use."""
ATTACK = Kind(
    word="attack",
    names=ATTACKS,
    base=Attack,
    group="clippedgossip.attacks",
    fix="make it a subclass of clippedgossip.attacks.Attack, such as FreeAttack",
    error=AttackError,
)


def make_attack(name: str, **parameters: Any) -> Attack:
    """An attack from its name and parameters, as in a config. An unknown name or parameter is an error."""
    attack: Attack = made(ATTACK, name, parameters)
    return attack
