"""A rule on each layer of a model alone. `mlp` on the digits has two, of 4,160 and 650 parameters:

    clippedgossip run examples/own/own.toml model=mlp \\
        rule='{name="per_layer:PerLayer", rule="clipped-gossip", sizes=[4160, 650]}'
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from clippedgossip.errors import RuleError
from clippedgossip.rules import Inbox, Rule


@dataclass(frozen=True)
class PerLayer(Rule):
    """The rule sees the distances of one layer at a time. `sizes` are the layers' numbers of parameters."""

    rule: Rule
    sizes: tuple[int, ...]

    def mix(self, inbox: Inbox) -> Tensor:
        if sum(self.sizes) != inbox.models.shape[1]:
            raise RuleError(
                f"the layers have {sum(self.sizes)} parameters and the models {inbox.models.shape[1]}\n"
                "give the sizes of all layers; one process must hold whole models"
            )
        inbox = inbox.explicit()
        models = inbox.models.split_with_sizes(self.sizes, 1)
        extras = [None] * len(models) if inbox.extra is None else inbox.extra.split_with_sizes(self.sizes, 1)
        layers = zip(models, extras, strict=True)
        return torch.cat([self.rule.mix(replace(inbox, models=m, extra=e)) for m, e in layers], 1)
