from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from clippedgossip.attacks.base import LocalAttack, View, with_self


@dataclass(frozen=True)
class Dissensus(LocalAttack):
    """x_i − ε Σ_{k∈N_i∩R} W_ik (x_k − x_i) / Σ_{j∈N_i∩B} W_ij, Definition (dissensus). With ε = 1,
    gossip changes nothing.

    Needs: the models and the weights of the receiver's regular neighbours.
    Fails: on a dense graph with little Byzantine weight: there its messages are long, and are clipped or
    dropped.
    Origin: He, Karimireddy and Jaggi, 2022, arXiv:2202.01545.
    """

    epsilon: float = 1.5
    strength: ClassVar[str | None] = "epsilon"

    def coefficients(self, view: View) -> Tensor:
        pull = self.epsilon * view.regular_weights / view.byzantine_weight
        return with_self(1 + pull.sum(1), -pull)


@dataclass(frozen=True)
class ZeroSum(LocalAttack):
    """−Σ_{k∈N_i∩R} x_k / |N_i∩B| (§ dissensus and other attacks).

    Needs: the models of the receiver's regular neighbours.
    Fails: against rules that drop what is far, such as GTS: the message is far from every regular model.
    Clipping bounds its effect, and does not end it.
    Origin: Peng, Li and Ling, 2021.
    """

    def coefficients(self, view: View) -> Tensor:
        return with_self(0.0, -view.neighbors / view.byzantine_count)
