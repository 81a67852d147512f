"""ByzFL's aggregators and attacks on our networks, which have edge weights that ByzFL does not know."""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module

import torch
from torch import Tensor

from clippedgossip.attacks import FreeAttack, View
from clippedgossip.errors import ConfigError, unknown_name
from clippedgossip.mixing.inbox import Inbox
from clippedgossip.rules import Rule

Vectors = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Aggregator(Rule):
    """One of ByzFL's aggregators, by its name there, over a node's own model and those it received. Weights
    are not used. `f` bounds the number of Byzantine neighbours, where the aggregator takes it.

        rule = {name = "clippedgossip.adapters.byzfl:Aggregator", aggregator = "SMEA", f = 1}
    """

    aggregator: str
    f: int | None = None
    function: Vectors | None = field(default=None, compare=False, repr=False)
    """Any function (n, d) -> (d) in place of the one that is named."""

    def __post_init__(self) -> None:
        if self.function is None:
            object.__setattr__(self, "function", _made("aggregators", self.aggregator, f=self.f))

    def mix(self, inbox: Inbox) -> Tensor:
        """One call for each node, in float64."""
        assert self.function is not None
        output = torch.empty_like(inbox.models)
        for near in inbox.explicit().neighborhoods():
            messages = near.messages()
            for place, node in enumerate(range(*near.group.indices(len(output)))):
                models = messages[place][near.closed_present[place]]
                found = self.function(models.double()) if len(models) > 1 else models[0]
                output[node] = torch.as_tensor(found).to(output)
        return output


@dataclass(frozen=True)
class Adversary(FreeAttack):
    """One of ByzFL's attacks, by its name there. It sees the receiver's model and its regular neighbours'.

    attack = {name = "clippedgossip.adapters.byzfl:Adversary", attack = "ALittleIsEnough", tau = 1.5}
    """

    attack: str
    tau: float | None = None
    function: Vectors | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.function is None:
            object.__setattr__(self, "function", _made("attacks", self.attack, tau=self.tau))

    def messages(self, view: View) -> Tensor:
        """One call for each edge to a regular node."""
        assert self.function is not None
        rows = []
        for places, among in zip(view.places, view.among, strict=True):
            seen = view.models[places[among > 0]]
            rows.append(torch.as_tensor(self.function(seen.double())).to(view.models))
        return torch.stack(rows)


def _made(module: str, name: str, **given: float | None) -> Vectors:
    options = {key: value for key, value in given.items() if value is not None}
    found = import_module(f"byzfl.{module}")
    known = [key for key in dir(found) if key[:1].isupper()]
    if name not in known:
        raise ConfigError(unknown_name(f"one of byzfl.{module}:", name, known))
    try:
        made: Vectors = getattr(found, name)(**options)
    except (TypeError, ValueError) as error:
        said = ", ".join(f"{key}={value}" for key, value in options.items())
        raise ConfigError(f"byzfl.{name}({said}): {error}\ngive what it takes") from error
    return made
