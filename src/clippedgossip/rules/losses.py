"""Rules that compare losses, and giving them some."""

from dataclasses import replace

from clippedgossip.rules.base import Rule
from clippedgossip.rules.mozi import Loss, Mozi
from clippedgossip.rules.premix import Premix


def needs_losses(rule: Rule) -> bool:
    """Whether the rule, or the one it wraps, still lacks a loss."""
    judge = rule.innermost if isinstance(rule, Premix) else rule
    return isinstance(judge, Mozi) and judge.loss is None and judge.loss_of is None


def with_losses(rule: Rule, loss_of: Loss) -> Rule:
    """The rule with the losses it lacks: `loss_of` gives (b, k+1), own model first."""
    judge = rule.innermost if isinstance(rule, Premix) else rule
    assert isinstance(judge, Mozi)
    judge = replace(judge, loss_of=loss_of)
    return rule.around(judge) if isinstance(rule, Premix) else judge
