"""The parts of the page of a training figure: curves, bars, tables, networks, and how it was run."""

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from clippedgossip.files import canonical
from clippedgossip.own import only_reading
from clippedgossip.paper.results import DISTANCE, Results
from clippedgossip.report.figures import Mark, bars, curve_panels
from clippedgossip.report.figures.canvas import MARK_LOOK
from clippedgossip.report.network_drawing import network_svg
from clippedgossip.report.page import Cell, Code, Details, PagePart, Panels, Table, Text
from clippedgossip.report.palette import HATCHES, styles
from clippedgossip.report.statistics import Series
from clippedgossip.runs.config import NetworkConfig

if TYPE_CHECKING:
    from clippedgossip.paper.training_figure import Scale, ScaleName

HALF = Mark(value=0.5, name="half of the classes")
BARS, LETTERS = 22, 52  # at most, in one plot and in one line below it
NAMED = 3  # settings of a network, before the others are counted
Measure = Callable[[str], str]
"""Setting -> the measure reported for it."""


def constant(measure: str) -> Measure:
    """The same for every setting."""
    return lambda setting: measure


def curves(
    result: Results,
    measure: Measure,
    *,
    caption: str,
    settings: Sequence[str] | None = None,
    marks: Sequence[Mark] = (),
    marked: Collection[str] | None = None,
    lowest: float = 0.0,
) -> Panels:
    """Accuracy against the round, one plot per setting, bands over seeds."""
    return curve_panels(
        _panels(result, measure, settings or result.settings),
        caption=_banded(result, caption),
        y_limits=(lowest, 1),
        marks=marks,
        marked=marked,
    )


def agreement(result: Results) -> Panels:
    """Ξ against the round."""
    caption = "How far apart the regular models are: Ξ, their mean squared distance to their mean."
    if any(run.diverged for line in result.lines for run in line.runs):
        caption += " A line ends where one of its runs diverged."
    return curve_panels(
        _panels(result, constant(DISTANCE), result.settings),
        caption=_banded(result, caption),
        y_label="consensus distance Ξ",
        y_scale="log",
    )


def end_bars(result: Results, measure: Measure, *, marks: Sequence[Mark] = ()) -> Panels:
    """Final accuracies, one group of bars per setting, a few settings to a plot."""
    settings = [s for s in result.settings if any(result.estimate(s, r, measure(s)) for r in result.rules)]
    looks = styles(result.rules)
    broken = {setting: _broken(setting) for setting in settings}
    longest = max((len(line) for name in broken.values() for line in name.split("\n")), default=0)
    most = max(1, min(BARS // max(1, len(result.rules)), LETTERS // (longest + 1)))
    step = math.ceil(len(settings) / max(1, math.ceil(len(settings) / most)))
    svgs = []
    for start in range(0, len(settings), max(1, step)):
        shown = settings[start : start + step]
        values = {
            rule: [result.estimate(setting, rule, measure(setting)) for setting in shown]
            for rule in result.rules
        }
        names = [broken[setting] for setting in shown]
        svgs.append(bars(names, values, looks=looks, marks=marks, legend=False, size=(4.2, 2.8)))
    ran = {
        line.rule: replace(looks[line.rule], hatch=HATCHES[result.rules.index(line.rule) % len(HATCHES)])
        for line in result.lines
        if line.runs
    }
    return Panels(svgs, ends(result), ran | {mark.name: MARK_LOOK for mark in marks})


def page_table(result: Results) -> Table:
    """All accuracies and Ξ, for the page."""
    measures = dict.fromkeys(name for line in result.lines for run in line.runs for name in run.final)
    groups = [name for name in measures if name != DISTANCE]
    rows: list[list[Cell]] = []
    for line in result.lines:
        estimates = [result.estimate(line.setting, line.rule, name) for name in groups]
        shown = [None if found is None else found.text(scale=100) for found in estimates]
        distance = result.estimate(line.setting, line.rule, DISTANCE)
        apart = "–" if distance is None or distance.diverged else f"{distance.mean:.3g}"
        rows.append([line.setting, line.rule, *shown, apart, len(line.runs)])
    caption = (
        "Mean over the last rounds of the test accuracy of the model averaged over a group. Ξ is the mean "
        "squared distance of the regular models to their mean."
    )
    return Table(["setting", "rule", *(f"{name}, %" for name in groups), "Ξ", "runs"], rows, caption)


def tuning(result: Results, measure: Measure) -> Table:
    """The values that were tried for each parameter, with their accuracies. Those of the lines that were run
    have a mark; tries that are not here are said."""
    titles = {  # a setting is a network and an attack, or an attack alone
        line.tuned[0]: line.setting.rpartition(", ")[0] or json.loads(line.tuned[0])["name"]
        for line in result.tuning
    }
    values_of = {canonical(line.config): line.value for line in result.tuning}
    ran = {line.tuned: values_of.get(canonical(line.config)) for line in result.lines if line.runs}
    rows: list[list[Cell]] = []
    for (network, rule), values in result.tried(measure).items():
        lines = [line for line in (*result.lines, *result.tuning) if line.tuned == (network, rule)]
        attacks, means = len({line.setting for line in lines}), []
        for value, mean in values.items():
            tries = sum(bool(line.runs) for line in lines if line.value == value)
            mark = " ✓" if ran.get((network, rule)) == value else ""
            lost = f" ({tries} of {attacks} runs)" if tries < attacks else ""
            means.append(f"{value}: {100 * mean:.1f}{mark}{lost}")
        if ran.get((network, rule), "") is None:
            means.append("no try of the value used above is here")
        rows.append([titles[network], rule, "; ".join(means)])
    caption = (
        "Mean accuracy in % over the attacks on the network, on a seed that is not reported. The value with "
        "✓ is the best and is used above."
    )
    return Table(["network", "rule", "values and accuracies"], rows, caption)


def short_table(result: Results, measure: Measure, title: str) -> Table:
    """The reported accuracies, for a terminal. Settings or rules go across, whichever are fewer."""
    turned = len(result.settings) < len(result.rules)
    down, across = (result.rules, result.settings) if turned else (result.settings, result.rules)
    rows: list[list[Cell]] = []
    for name in down:
        pairs = [(other, name) if turned else (name, other) for other in across]
        texts = [result.accuracy(setting, rule, measure(setting)) for setting, rule in pairs]
        rows.append([name, *(text and text.replace(" (", "\n(", 1) for text in texts)])
    return Table(["", *across], rows, title)


def networks(result: Results) -> Panels:
    """Each network once, with its γ and δ_max."""
    settings: dict[str, dict[str, None]] = {}
    rules: dict[str, dict[str, None]] = {}
    for line in result.lines:
        network = json.dumps(line.config["network"], sort_keys=True)
        settings.setdefault(network, {})[line.setting] = None
        rules.setdefault(network, {})[line.rule] = None
    alike = len({tuple(names) for names in settings.values()}) == 1  # then the lines differ
    names = [list(found) for found in (rules if alike else settings).values()]
    titles = [_common(mine, [other for other in names if other is not mine]) for mine in names]
    with only_reading():
        built = [NetworkConfig.from_value(json.loads(text)).build() for text in settings]
    svgs = [network_svg(network, title) for network, title in zip(built, titles, strict=True)]
    caption = (
        "Circles are regular nodes, red squares are Byzantine nodes. γ is the spectral gap of the weights "
        "among regular nodes. A larger γ means a better connected network. δ_max is the largest Byzantine "
        "weight at a regular node."
    )
    return Panels(svgs, caption, titles=titles if len(titles) > 1 else ())


def how(result: Results, scales: "Mapping[ScaleName, Scale]", remarks: str, command: str) -> list[PagePart]:
    """The scale, our choices, the command, the machine, the configs."""
    about = next(scale.about for name, scale in scales.items() if name == result.scale)
    shorter = f"Only {result.length:.0%} of the rounds were run." if result.length < 1 else ""
    words = "\n\n".join(part for part in (about, shorter, remarks) if part)
    parts: list[PagePart] = [Text(words), Code(command)]
    if result.troubles:
        parts.append(Text("Not all results are here: " + "; ".join(result.troubles)))
    if result.environments:
        names = list(dict.fromkeys(name for entry in result.environments for name in entry))
        rows = [[str(entry.get(name)) for name in names] for entry in result.environments]
        parts.append(Table(names, rows))
    configs = []
    for line in result.lines:
        text = json.dumps(dict(line.config), indent=1, ensure_ascii=False, sort_keys=True)
        configs.append(Details(f"{line.setting} – {line.rule}", [Code(text)]))
    return [*parts, Details(f"The {len(configs)} configs", configs)]


def _panels(result: Results, measure: Measure, settings: Sequence[str]) -> Mapping[str, Sequence[Series]]:
    panels = {
        setting: [line for rule in result.rules if (line := result.series(setting, rule, measure(setting)))]
        for setting in settings
    }
    return {setting: lines for setting, lines in panels.items() if lines}


def _seeds(result: Results) -> str:
    """`5 seeds` or `1 to 5 seeds`: those that were run. Empty if no line has more than one."""
    counts = sorted({len(line.runs) for line in result.lines if line.runs} or {0})
    if counts[-1] < 2:
        return ""
    return f"{counts[0]} to {counts[-1]} seeds" if len(counts) > 1 else f"{counts[0]} seeds"


def _banded(result: Results, caption: str) -> str:
    seeds = _seeds(result)
    if not seeds:
        return f"{caption} One seed."
    return f"{caption} Lines are means over {seeds}, bands their 95 % confidence intervals."


def ends(result: Results, what: str = "") -> str:
    """The caption of final accuracies: over which rounds and seeds they are means."""
    counts = {line.config["training"]["evaluate_last"] for line in result.lines}
    one = counts.pop() if len(counts) == 1 else None
    last = "round" if one == 1 else f"{one} rounds" if one else "rounds"
    seeds, what = _seeds(result), what or f"Means over the last {last}"
    joint = " and " if what.startswith("Means") else ", means over "
    over = f"{joint}{seeds}, with 95 % confidence intervals." if seeds else "; one seed."
    return f"{what}{over}{diverged(result).removeprefix('.')}"


def diverged(result: Results) -> str:
    """What it means that a run diverged, where one did."""
    some = any(run.diverged for line in result.lines for run in line.runs)
    return ". A run that diverged (a loss or a model was no longer a finite number) counts as 0." * some


def _common(names: Sequence[str], others: Sequence[Sequence[str]]) -> str:
    """`torus` for `torus, ALIE` and `torus, IPM`, if no other network has `torus` in its names."""
    first = names[0].partition(",")[0]
    elsewhere = {name.partition(",")[0] for other in others for name in other}
    if all(name.partition(",")[0] == first for name in names) and first not in elsewhere and len(names) > 1:
        return first
    more = len(names) - NAMED
    return "; ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _broken(name: str) -> str:
    """On two or three lines if it is long."""
    lines = [""]
    for word in name.split(" "):
        if lines[-1] and len(lines[-1]) + len(word) > 11:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)
