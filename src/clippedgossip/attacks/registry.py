"""Every attack by name. A new attack is one file and one line here; the contract tests then run on it."""

from typing import Any

from clippedgossip.attacks.a_little_is_enough import ALIE
from clippedgossip.attacks.base import Attack
from clippedgossip.attacks.bit_flipping import BitFlipping
from clippedgossip.attacks.dissensus import Dissensus, ZeroSum
from clippedgossip.attacks.honest import Honest, LabelFlipping
from clippedgossip.attacks.inner_product import IPM
from clippedgossip.attacks.mimic import Mimic
from clippedgossip.attacks.noise import Gaussian, NonFinite, Silence
from clippedgossip.attacks.spectral import SpectralHeterogeneity
from clippedgossip.attacks.tuned import Tuned
from clippedgossip.errors import AttackError
from clippedgossip.named import make

ATTACKS: dict[str, type[Attack]] = {
    "none": Honest,
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


def make_attack(name: str, **parameters: Any) -> Attack:
    """An attack from its name and parameters; nothing mistyped is let through."""
    return make("attack", ATTACKS, name, parameters, AttackError)
