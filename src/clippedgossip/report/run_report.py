"""The page of some runs, of the simulator or of peers: a summary, curves, configs, machines."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clippedgossip.errors import counted, some
from clippedgossip.files import canonical
from clippedgossip.records import ACCURACY, RunDirectory
from clippedgossip.report.figures import Scale, curve_panels
from clippedgossip.report.figures.canvas import Axis, as_image, fitting
from clippedgossip.report.grouping import Group, Run, differences, find, group, seed_of
from clippedgossip.report.page import Code, Details, Figure, PagePart, Panels, Section, Table, Text, page
from clippedgossip.report.statistics import ANY, POSITIVE, SHARE, Series, over_seeds
from clippedgossip.report.summary import (
    Measure,
    Row,
    by_round,
    clipped_edges,
    number,
    row,
    score_of,
    to_table,
)

NAMED = 3  # runs that are named; the others are counted
_DRAWN = (
    "Circles are regular nodes, red squares are Byzantine nodes. γ is the spectral gap of the weights "
    "between regular nodes. A larger γ means a better connected network. δ_max is the largest Byzantine "
    "weight at a regular node. Circles of several colours are the components that the run saw at its end."
)


@dataclass(frozen=True)
class Report:
    """A page and the rows of its summary."""

    html: str
    rows: Sequence[Row]
    troubles: Sequence[str] = ()
    """Sentences on runs that were left out, failed or diverged."""


@dataclass(frozen=True, kw_only=True)
class CurveView:
    """Some measures against the round, in one plot for each setting and measure."""

    name: str
    section: str
    measures: Mapping[str, Measure]
    caption: str
    y_label: str
    y_scale: Scale = "linear"
    y_limits: tuple[float, float | None] | None = None
    any_sign: bool = False
    """Whether values may be negative."""
    quiet: bool = False
    """Leave it out if it is zero in every round."""
    whole: bool = False
    """Show all values: lines differ by much even if none diverges."""


@dataclass(frozen=True, kw_only=True)
class Curves:
    """The lines of a view, by the title of their plot, with axes that fit them."""

    view: CurveView
    panels: Mapping[str, Sequence[Series]]
    axis: Axis
    x_limits: tuple[float, float] | None
    names: Sequence[str]
    """The lines of all views, so that each looks the same everywhere."""

    @property
    def caption(self) -> str:
        return self.view.caption + (" A line that leaves the plot diverges." if self.axis.cut else "")

    @property
    def look(self) -> dict[str, Any]:
        """What `curves_drawn` takes for each plot."""
        limits = {"x_limits": self.x_limits, "y_limits": self.axis.limits}
        return {"y_label": self.view.y_label, "y_scale": self.axis.scale, **limits}

    def to_panels(self) -> Panels:
        return curve_panels(self.panels, caption=self.caption, names=self.names, **self.look)


def report(paths: Sequence[Path]) -> Report:
    """Read every run at or below `paths` and draw them."""
    runs, empty = find(paths)
    peers = [run for run in runs if run.peer is not None]
    groups = grouped(runs)
    simulated = [entry for entry in groups if entry.runs[0].peer is None]
    rows = [row(entry) for entry in groups]
    troubles = _troubles(runs, empty)
    count = counted(len(runs), "run")
    settings = counted(len({entry.setting for entry in groups}), "setting")
    title = f"Report on {count}"
    lead = f"{count} in {settings}. " + (
        "A line is the mean of runs that differ only in their seed; the band around it is a 95 % confidence "
        "interval."
        if len(runs) > len(groups)
        else "A line is one run."
    )
    if len(peers) == len(runs):
        names = ", ".join(dict.fromkeys(entry.setting for entry in groups))
        title = "A network of peers"
        lead = f"{counted(len(peers), 'peer')} on a real network ({names}), one line each."
    sections = [
        Section("Summary", [to_table(rows), *map(Text, troubles)]),
        *_curves(groups),
        *_drawings(groups),
        Section("Configurations", [*_differences(simulated), *map(_config, groups)]),
        Section("Where it ran", [_environments(runs)]),
    ]
    return Report(page(title, lead, sections), rows, troubles)


def _views(groups: Sequence[Group]) -> Iterator[CurveView]:
    rounds = [r for entry in groups for run in entry.runs for r in run.rounds]
    for metric in dict.fromkeys(r.metric for r in rounds):
        names = dict.fromkeys(name for r in rounds if r.metric == metric for name in r.score)
        percent, title = metric == ACCURACY, metric[:1].upper() + metric[1:]
        look: dict[str, Any] = {"section": title, "y_label": metric, "any_sign": not percent}
        look |= {"y_scale": "percent", "y_limits": (0, 1)} if percent else {}
        yield CurveView(
            name=metric,
            measures={"" if list(names) == ["all"] else name: _of(metric, score_of(name)) for name in names},
            caption=f"Test {metric} of the model averaged over a group of regular nodes; "
            "for a peer, of its own.",
            **look,
        )
        yield CurveView(
            name=f"worst_{metric}",
            measures={"worst node": _of(metric, number("worst_score"))},
            caption=f"Test {metric} of the worst regular node, each with its own model.",
            **look,
        )
    apart = (
        "How far apart the regular models are: mean squared distance to their mean (for a peer: to the "
        "models it received). Lower is closer."
    )
    yield _of_records("consensus_distance", "Agreement", apart, y_scale="log")
    yield CurveView(
        name="components",
        section="Agreement",
        measures={"within": number("within_components"), "between": number("between_components")},
        caption="The consensus distance within the components that the run saw, and between them. Models "
        "are clustered by distance (single linkage, at the largest gap).",
        y_label="consensus distance",
        y_scale="log",
        quiet=True,
        whole=True,
    )
    yield _of_records("loss", "Loss", "Training loss.")
    clipped = "Share of the received messages that were clipped."
    yield _of_records("clipped", "Messages", clipped, y_scale="percent", y_limits=(0, 1))
    missing = "Neighbours whose message was late, absent or rejected, in each round."
    yield _of_records("missing", "Messages", missing, y_limits=(0, None), quiet=True)


def _of_records(name: str, section: str, caption: str, **look: Any) -> CurveView:
    """The number of the records that has this name."""
    look |= {"measures": {"": number(name)}, "y_label": name.replace("_", " ")}
    return CurveView(name=name, section=section, caption=caption, **look)


def _of(metric: str, measure: Measure) -> Measure:
    """The measure of rounds that were tested by this metric."""
    return lambda r: measure(r) if r.metric == metric else None


def _curves(groups: Sequence[Group]) -> list[Section]:
    sections: dict[str, list[PagePart]] = {}
    for drawn in all_curves(groups):
        sections.setdefault(drawn.view.section, []).append(drawn.to_panels())
    edges = clipped_edges(groups)
    if edges:
        sections.setdefault("Messages", []).append(edges)
    return [Section(title, parts) for title, parts in sections.items()]


def all_curves(groups: Sequence[Group]) -> list[Curves]:
    """Every view in which something was measured."""
    found = (_lines(groups, view) for view in _views(groups))
    return [curves for curves in found if curves is not None]


def grouped(runs: Sequence[Run]) -> list[Group]:
    """The lines of some runs: settings over their seeds, and peers one by one."""
    peers = [run for run in runs if run.peer is not None]
    simulated = group([run for run in runs if run.peer is None])
    return [*simulated, *map(_peer, sorted(peers, key=_natural))]


def _lines(groups: Sequence[Group], view: CurveView) -> Curves | None:
    panels: dict[str, list[Series]] = {}
    for entry in groups:
        for name, measure in view.measures.items():
            seeds = [seed for seed in (by_round(run, measure) for run in entry.runs) if seed]
            if seeds:
                title = ": ".join(part for part in (entry.setting, name) if part)
                within = SHARE if view.y_scale == "percent" else ANY if view.any_sign else POSITIVE
                panels.setdefault(title, []).append(over_seeds(entry.rule, seeds, within))
    every = [line for lines in panels.values() for line in lines]
    if not every or (view.quiet and not any(value for line in every for value in line.y)):
        return None
    last = max(run.rounds[-1].round for entry in groups for run in entry.runs)
    given = view.y_limits or view.whole
    return Curves(
        view=view,
        panels=panels,
        axis=Axis(view.y_scale, view.y_limits) if given else fitting(every, view.y_scale),
        x_limits=(-last / 50, last * 1.02) if last else None,
        names=[entry.rule for entry in groups],
    )


def _troubles(runs: Sequence[Run], empty: Sequence[Path]) -> list[str]:
    failures: dict[str, list[str]] = {}
    for run in runs:
        if run.directory.state == "failed":
            failures.setdefault(str(run.directory.failure), []).append(run.directory.path.name)
    waiting = []
    for path in empty:
        why = RunDirectory(path).failure
        failures.setdefault(why, []).append(path.name) if why else waiting.append(path.name)
    lines = [f"Failed: {some(names, NAMED)}. {why}" for why, names in failures.items()]
    if gone := [run.directory.path.name for run in runs if run.diverged]:
        lines.append(f"Diverged; the last record stands for the end: {some(gone, NAMED)}.")
    if unfinished := [
        f"{run.directory.path.name} ({run.directory.state} after round {run.rounds[-1].round})"
        for run in runs
        if run.peer is None and run.directory.state in ("running", "stopped")
    ]:
        lines.append(f"Not finished; the last records stand for the end: {some(unfinished, NAMED)}.")
    if waiting:
        lines.append(f"No records yet: {some(waiting, NAMED)}.")
    return lines


def _drawings(groups: Sequence[Group]) -> list[Section]:
    """The networks of runs that have a drawing. Equal drawings are shown once."""
    drawings: dict[bytes, dict[str, None]] = {}
    for entry in groups:
        for run in entry.runs:
            path = run.directory.drawing_path
            if path.is_file():
                drawings.setdefault(path.read_bytes(), {})[entry.network] = None
    if not drawings:
        return []
    figures = [Figure(as_image(svg, "the network"), "; ".join(names)) for svg, names in drawings.items()]
    return [Section("Networks", [Text(_DRAWN), *figures])]


def _differences(groups: Sequence[Group]) -> list[Table]:
    """What differs between the settings and is not in their titles."""
    found = differences(groups)
    fields = list(dict.fromkeys(field for values in found.values() for field in values))
    rows = [[setting, *values.values()] for setting, values in found.items()]
    caption = "What else differs between the settings."
    return [Table(["setting", *fields], rows, caption)] if fields else []


def _config(entry: Group) -> Details:
    seeds = ", ".join(seed_of(run.config) for run in entry.runs)
    folders = ", ".join(run.directory.path.name for run in entry.runs)
    text = f"Seed{'s' if len(entry.runs) > 1 else ''}: {seeds}. In {folders}."
    config = Code(canonical(entry.runs[0].config).rstrip())
    return Details(f"{entry.setting} – {entry.rule}", [Text(text), config])


def _environments(runs: Sequence[Run]) -> Table:
    counts = Counter(
        tuple((name, str(value)) for name, value in run.directory.environment.items()) for run in runs
    )
    names = list(dict.fromkeys(name for entries in counts for name, _ in entries))
    rows = [[*(dict(key).get(name) for name in names), str(count)] for key, count in counts.items()]
    return Table([*names, "runs"], rows)


def _peer(run: Run) -> Group:
    """Peers of one network have the same run name."""
    attack = run.config.get("misbehave")
    name = f"peer {run.peer}" if str(run.peer).isdigit() else str(run.peer)
    name = f"{name} (Byzantine: {attack})" if attack else name
    return Group(str(run.config.get("run", "peers")), name, [run])


def _natural(run: Run) -> list[tuple[int, str]]:
    """Sorts peer-2 before peer-10."""
    return [(int(part) if part.isdigit() else -1, part) for part in re.split(r"(\d+)", run.peer or "")]
