"""One experiment from its runs to its page."""

from typing import Any

from clippedgossip.paper.base import Experiment, Options, Reproduction, prepare


def reproduce(experiment: str | Experiment[Any], options: Options) -> Reproduction:
    """Run it, judge its claims and write its page; nobody is told how far it is."""
    (prepared,) = prepare([experiment], options, _quiet)
    return prepared.judge(_quiet)


def _quiet(label: str, done: int, total: int) -> None:
    return
