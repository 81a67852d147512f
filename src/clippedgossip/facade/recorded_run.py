"""The records of a run as a data frame, as curves, as a page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from clippedgossip.errors import RunError, kind_of, warn_user
from clippedgossip.files import write_atomic, writing
from clippedgossip.network.network import DRAWN, Network
from clippedgossip.records import ACCURACY, Round, RunDirectory
from clippedgossip.report.figures import Scale
from clippedgossip.report.figures.canvas import draw_line, finish
from clippedgossip.report.palette import styles
from clippedgossip.report.statistics import Series
from clippedgossip.runs.execute import divergence, drawing
from clippedgossip.simulate.setup import Setup
from clippedgossip.simulate.state import Moment

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(kw_only=True, eq=False)
class RecordedRun:
    """The records of one run. `description` is the run as plain data, such as a config holds."""

    setup: Setup = field(repr=False)
    description: Mapping[str, Any] = field(repr=False)
    rule: str
    attack: str
    seed: int
    records: list[Round] = field(default_factory=list, repr=False)
    diverged: str | None = None  # why the run ended before its last round, if it did

    @property
    def accuracy(self) -> float | None:
        """The last record's: test accuracy of the average of the regular nodes' models."""
        return self.score if self.metric == ACCURACY else None

    @property
    def metric(self) -> str:
        """What the task is tested by."""
        return self.setup.task.metric.name

    @property
    def score(self) -> float | None:
        """The last record's metric of the average of the regular nodes' models."""
        return self.records[-1].score.get("all") if self.records else None

    @property
    def round(self) -> int:
        """The round of the last record."""
        return self.records[-1].round if self.records else 0

    @property
    def finished(self) -> bool:
        """Whether the run has reached its last round."""
        return self.diverged is not None or self.round == self.setup.training.rounds

    @property
    def curve(self) -> dict[int, float | None]:
        """{round: metric}."""
        return {record.round: record.score.get("all") for record in self.records}

    def add(self, moment: Moment) -> None:
        """Keep the record of a round that was evaluated; note if the run has diverged."""
        if moment.record is not None:
            self.records.append(moment.record)
            self.diverged = divergence(moment, self.setup)

    def warn(self) -> None:
        """Say that the run diverged, if it did."""
        if self.diverged is not None:
            name = f"{self.rule} under attack {self.attack}, seed {self.seed}"
            warn_user(f"{name}: {self.diverged}")

    def forget(self) -> None:
        """Back to the start."""
        self.records, self.diverged = [], None


def draw_scores(
    axes: "Axes", lines: Sequence[Series], metric: str, *, title: str = "", legend: bool = True
) -> "Axes":
    """The metric against the round, each rule in its colour of the reports."""
    looks = styles(line.name for line in lines)
    scale: Scale = "percent" if metric == ACCURACY else "linear"
    for order, line in enumerate(lines):
        draw_line(axes, line, looks[line.name], points=400, markers=8, order=order, y_scale=scale)
    finish(axes, title=title, x_label="round", y_label=metric, y_scale=scale)
    if metric == ACCURACY:
        axes.set_ylim(0, 1)
    if legend:
        axes.legend(frameon=False)
    return axes


def write_report(runs: Sequence[RecordedRun], path: str | Path, *, device: str) -> Path:
    """One HTML page. Reports read runs from disk, so they are put into a temporary folder first."""
    from clippedgossip.report.run_report import report

    if not isinstance(path, str | PathLike):
        raise RunError(f'path is {kind_of(path)}; give the name of a file, such as "page.html"')
    target = Path(path)
    if not any(run.records for run in runs):
        raise RunError("there is nothing to report yet: no run has a record\ncall finish() first")
    drawings: dict[Network, str] = {}
    with TemporaryDirectory() as folder:
        for number, run in enumerate(runs):
            twins = sum(other.description == run.description for other in runs[:number])
            copy = {"copy": twins + 1} if twins else {}  # a report counts no run twice
            told = {**run.description, **copy}
            place = RunDirectory.open(Path(folder) / str(number), told, "run", device=device)
            place.append(*run.records)
            network = run.setup.network
            if network.n <= DRAWN:
                place.write_drawing(drawings.get(network) or drawings.setdefault(network, drawing(network)))
            if run.finished:
                place.write_summary({} if run.diverged is None else {"diverged": run.diverged})
        html = report([Path(folder)]).html
    with writing(target, "give another path"):
        write_atomic(target, html)
    return target
