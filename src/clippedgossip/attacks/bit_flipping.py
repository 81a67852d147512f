from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from clippedgossip.attacks.base import FreeAttack, View
from clippedgossip.attacks.honest import own_models


@dataclass(frozen=True)
class BitFlipping(FreeAttack):
    """−x, x being the attacker's own honest model."""

    trains: ClassVar[bool] = True

    def messages(self, view: View) -> Tensor:
        return -own_models(view, self)
