from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from clippedgossip.attacks.base import FreeAttack, View
from clippedgossip.attacks.no_attack import own_models


@dataclass(frozen=True)
class BitFlipping(FreeAttack):
    """−x, where x is the sender's own model, from following the protocol.

    Needs: the sender's own model.
    Fails: against rules that drop or clip what is far: −x is 2‖x‖ away from x.
    Origin: as in He, Karimireddy and Jaggi, 2022, arXiv:2202.01545.
    """

    trains: ClassVar[bool] = True

    def messages(self, view: View) -> Tensor:
        return -own_models(view, self)
