"""`clippedgossip audit`: a diagnosis of a network before it is trusted."""

import json
from pathlib import Path
from typing import Annotated

import typer

from clippedgossip.cli import networks
from clippedgossip.errors import NetworkError

SETTINGS = {"cls": networks.help_with(networks.known), "context_settings": networks.FREE}


def audit(
    context: typer.Context,
    network: networks.Source,
    byzantine: networks.Nodes = None,
    random_byzantine: networks.RandomNodes = 0,
    pendants: networks.Pendants = None,
    random_pendants: networks.RandomPendants = 0,
    worst_byzantine: networks.WorstNodes = 0,
    weights: networks.Weights = None,
    max_degree: networks.MaxDegree = None,
    schedule: networks.Schedule = None,
    delay: networks.Delay = None,
    more_byzantine: Annotated[
        int,
        typer.Option(metavar="B", help="Find the worst place for this number of further Byzantine nodes."),
    ] = 1,
    suggestions: Annotated[int, typer.Option(metavar="K", help="Edges to suggest.")] = 3,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of a run, for a schedule.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of random networks, placements and schedules.")] = 0,
    draw: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the network to FILE (.svg, .png or .pdf).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Diagnose a network: whether consensus is guaranteed, where the network is weak, which edges would help.
    Exit code 1 if consensus is impossible: no path of regular nodes connects some of them.

    Examples: `clippedgossip audit dumbbell --clique 10` or `clippedgossip audit mynet.graphml --byzantine
    3,7`.
    """
    from clippedgossip.audit import audit as diagnose
    from clippedgossip.audit.text import render

    if draw is not None:
        from clippedgossip.report import network_drawing

        network_drawing.check_target(draw)
    from clippedgossip.report.terminal import progress

    with progress() as tell:
        tell("building the network", 0, 5)
        built = networks.network_asked_for(context)
        most = max(len(built.regular) - 1, 1)
        if more_byzantine > most:
            raise NetworkError(
                f"--more-byzantine is {more_byzantine}; "
                f"with {len(built.regular)} regular nodes it is at most {most}"
            )
        diagnosis = diagnose(
            built, more_byzantine=more_byzantine, suggestions=suggestions, rounds=rounds, seed=seed, tell=tell
        )
        if draw is not None:
            tell("drawing", 5, 5)
            network_drawing.draw_audit(diagnosis, draw, title=Path(network).stem)
    if as_json:
        print(json.dumps({"network": network, **diagnosis.to_json()}, allow_nan=False))
    else:
        print(render(diagnosis, Path(network).stem))
        print(f"\nDrawn to {draw}" if draw is not None else "\nTo draw the network, add --draw network.svg")
    if not diagnosis.possible:
        raise typer.Exit(1)
