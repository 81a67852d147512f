from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from clippedgossip.attacks.base import FreeAttack, View
from clippedgossip.attacks.no_attack import own_models


@dataclass(frozen=True)
class BitFlipping(FreeAttack):
    """−x, where x is the sender's own model, from following the protocol."""

    trains: ClassVar[bool] = True

    def messages(self, view: View) -> Tensor:
        return -own_models(view, self)
