from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from clippedgossip.attacks.base import Attack, FreeAttack, View
from clippedgossip.errors import AttackError


def own_models(view: View, attack: Attack) -> Tensor:
    """(e, d) the model of each edge's attacker."""
    if view.byzantine_models is None:
        raise AttackError(f"{type(attack).__name__} builds on the attackers' own models and was given none")
    return view.byzantine_models[view.attacker_rows]


@dataclass(frozen=True)
class Honest(FreeAttack):
    """No attack: Byzantine nodes do what they promised."""

    trains: ClassVar[bool] = True

    def messages(self, view: View) -> Tensor:
        return own_models(view, self)


@dataclass(frozen=True)
class LabelFlipping(Honest):
    """Byzantine nodes follow the protocol on data whose labels are turned around, y → C−1−y."""

    flips_labels: ClassVar[bool] = True
