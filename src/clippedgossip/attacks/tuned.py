from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from clippedgossip.attacks.base import Attack, View
from clippedgossip.errors import AttackError
from clippedgossip.mixing import kernels
from clippedgossip.mixing.inbox import Inbox


@dataclass(frozen=True)
class Tuned(Attack):
    """An attack with a strength, which a line search chooses each round against the rule in use: the strength
    that leaves the regular nodes furthest from their mean. It also tries negative strengths and the strength
    given, so it never does less harm than the attack as it is.

    Needs: all regular models, the rule and its parameters.
    Fails: where the attack in it points in a harmless direction; the search looks one round ahead only.
    Origin: the line search that Allouah et al., 2023, arXiv:2302.01772 use for ALIE and IPM, here for any
    attack.
    """

    attack: Attack
    low: float = 1e-2
    high: float = 1e2
    steps: int = 9
    refinements: int = 4
    trains: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high:
            raise AttackError(f"the search runs from {self.low} to {self.high}; 0 < low < high is needed")
        if self.steps < 2:
            raise AttackError(f"the search takes {self.steps} steps; at least 2 are needed")
        self.attack.with_strength(self.low)  # refused, if it has none

    @property
    def capturable(self) -> bool:
        return super().capturable and self.attack.capturable

    def inbox(self, view: View) -> Inbox:
        return self.attack.with_strength(self.best(view)).inbox(view)

    def best(self, view: View) -> Tensor:
        """The most harmful strength: the best of a geometric grid of both signs, refined. It stays on the
        device of the models."""
        ratio = (self.high / self.low) ** (1 / (self.steps - 1))
        grid = [self.low * ratio**k for k in range(self.steps)]
        given = getattr(self.attack, str(self.attack.strength))
        first = [*([] if given is None else [given]), *grid, *(-size for size in grid)]
        tried = [view.models.new_full((1,), value, dtype=torch.float64) for value in first]
        harm = [self.harm(view, value) for value in first]
        for _ in range(self.refinements):
            best = _most_harmful(tried, harm)
            ratio **= 0.5
            for value in (best * ratio, best / ratio):
                tried.append(value)
                harm.append(self.harm(view, value[0]))
        return _most_harmful(tried, harm)[0]

    def harm(self, view: View, strength: float | Tensor) -> Tensor:
        """Mean squared distance of the mixed models to the mean before mixing."""
        if view.rule is None:
            raise AttackError(
                "a tuned attack is tuned against a rule, and the view has none\ngive rule=… to View"
            )
        mixed = view.rule.mix(self.attack.with_strength(strength).inbox(view))
        apart = kernels.squared_distances(mixed, kernels.mean_model(view.models))
        return view.context.reduce(apart).mean().nan_to_num(nan=torch.inf, posinf=torch.inf)


def _most_harmful(tried: list[Tensor], harm: list[Tensor]) -> Tensor:
    """(1,) the first of those that do most harm."""
    return torch.cat(tried).index_select(0, torch.stack(harm).argmax().view(1))
