"""A consensus run on a terminal, as JSON, as a page."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from clippedgossip.errors import counted

if TYPE_CHECKING:
    from clippedgossip.report import Table

Facts = dict[str, Any]


class Step(NamedTuple):
    """A round without its models."""

    round: int
    error: float
    consensus_distance: float


History = list[Step]

AGREED = 1e-3  # of the initial error
MEANING = (
    "The error is the mean squared distance of the regular nodes' vectors to their\n"
    "average at the start; the spread is that to their average now."
)


def summary(facts: Facts) -> str:
    """Network, rule and attack in two lines; schedule and delay, if there are any, in a third."""
    against = f" against {facts['attack']}" if facts["attack"] else ", no attack"
    changes = "".join(f"\n{facts[key]}" for key in ("schedule", "delay") if key in facts)
    return (
        f"{facts['network']}: {facts['nodes']} nodes, {facts['edges']} edges, "
        f"{len(facts['byzantine'])} Byzantine; γ = {facts['gamma']:.4g}, δ_max = {facts['delta_max']:.4g}\n"
        f"{facts['rule']}{against}{changes}"
    )


def table(history: History) -> "Table":
    """Rounds 0, 1, 2, 5, 10, 20, 50, … and the last."""
    from clippedgossip.report import Table

    rounds = {0, len(history) - 1} | {lead * 10**power for power in range(9) for lead in (1, 2, 5)}
    return Table(["round", "error", "spread"], [step for step in history if step.round in rounds])


def verdict(history: History) -> str:
    """The result in words."""
    first, last = history[0], history[-1]
    scale = first.error or 1.0
    share = f"{last.error / scale:.3g} times the initial error"
    if not last.error < float("inf"):
        return "The attack made the models grow without bound."
    if last.error <= AGREED * scale:
        return f"The regular nodes agree on their average; the error is {share}."
    if last.consensus_distance <= AGREED * scale:
        return f"They agree, but not on their average; the error is {share}."
    if last.error > scale:
        return f"They are further from their average than before; the error is {share}."
    return f"They do not agree after {counted(last.round, 'round')}; the error is {share}."


def print_json(facts: Facts, history: History) -> None:
    """One object. A number that is not finite is null."""
    from clippedgossip.files import to_line

    last = {"error": history[-1].error, "consensus_distance": history[-1].consensus_distance}
    rows = [step._asdict() for step in history]
    print(json.dumps(json.loads(to_line({**facts, **last, "history": rows})), indent=1))


def write_page(path: Path, facts: Facts, history: History) -> None:
    """The curves, the numbers and the setting."""
    from clippedgossip.report import Figure, Section, Series, Table, Text, page, write
    from clippedgossip.report.figures import curves

    rounds = [step.round for step in history]
    series = [
        Series(name="error", x=rounds, y=[step.error or None for step in history]),
        Series(name="spread", x=rounds, y=[step.consensus_distance or None for step in history]),
    ]
    svg = curves(series, y_label="mean squared distance", y_scale="log", size=(6.4, 3.8))
    named = [[key, "–" if value is None else str(value)] for key, value in facts.items()]
    sections = [
        Section("Error over the rounds", [Figure(svg, MEANING), Text(verdict(history))]),
        Section("Numbers", [table(history)]),
        Section("Setting", [Table(["what", "value"], named)]),
    ]
    write(path, page(f"Consensus on {facts['network']}", summary(facts).replace("\n", ". "), sections))
