from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from clippedgossip.attacks.base import Attack, FreeAttack, View
from clippedgossip.errors import AttackError


def own_models(view: View, attack: Attack) -> Tensor:
    """(e, d) the own model of each edge's sender."""
    if view.byzantine_models is None:
        raise AttackError(
            f"{type(attack).__name__} sends the models of the Byzantine nodes, and the view has none\n"
            "give byzantine_models to View"
        )
    return view.byzantine_models[view.sender_rows]


@dataclass(frozen=True)
class NoAttack(FreeAttack):
    """No attack: Byzantine nodes follow the protocol and send their own models.

    Needs: nothing.
    Fails: always; it is what to compare the others with.
    Origin: the clean run of every comparison.
    """

    trains: ClassVar[bool] = True

    def messages(self, view: View) -> Tensor:
        return own_models(view, self)


@dataclass(frozen=True)
class LabelFlipping(NoAttack):
    """Byzantine nodes follow the protocol, on data with flipped labels, y → C−1−y.

    Needs: data of its own; nothing of the others.
    Fails: where the other nodes outweigh it: it is one node's gradient among many.
    Origin: as in He, Karimireddy and Jaggi, 2022, arXiv:2202.01545.
    """

    flips_labels: ClassVar[bool] = True
