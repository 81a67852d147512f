"""The figures of a report one by one, in the paper's style, each with its data."""

import io
import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clippedgossip.errors import RunError, UserError, unknown_name
from clippedgossip.export.frame import Runs, data_frame, read
from clippedgossip.export.tables import write_csv
from clippedgossip.files import write_atomic, writing
from clippedgossip.own import only_reading
from clippedgossip.report.figures.canvas import standalone, to_svg
from clippedgossip.report.figures.plots import curves_drawn
from clippedgossip.report.grouping import Run
from clippedgossip.report.palette import styles
from clippedgossip.report.run_report import Curves, all_curves, grouped
from clippedgossip.report.statistics import Series

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

SUFFIXES = (".svg", ".pdf", ".png")


@dataclass(frozen=True, eq=False)
class Plot:
    """One plot of a measure against the round. A notebook shows it; `data` has its numbers."""

    title: str
    measure: str
    lines: Sequence[Series]
    curves: Curves

    def __repr__(self) -> str:
        return f"Plot({self.title!r}: {self.measure} of {', '.join(line.name for line in self.lines)})"

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The points: line, round, mean and 95 % interval."""
        return [row for line in self.lines for row in _points(line)]

    @property
    def data(self) -> "pandas.DataFrame":
        """The numbers of the plot."""
        return data_frame(self.rows)

    def drawn(self) -> AbstractContextManager["Figure"]:
        """The figure of matplotlib, to change before it is saved: `with plot.drawn() as figure: …`."""
        looks = styles([*self.curves.names, *(line.name for line in self.lines)])
        size = (4.6, 3.1 + 0.16 * math.ceil(len(self.lines) / 2))
        return curves_drawn(self.lines, title=self.title, looks=looks, size=size, **self.curves.look)

    def save(self, path: str | Path) -> Path:
        """Write an SVG, PDF or PNG file."""
        target = Path(path)
        if target.suffix.lower() not in SUFFIXES:
            raise RunError(f"cannot draw to {target}\ngive a file ending in {', '.join(SUFFIXES)}")
        with self.drawn() as figure:
            _save(figure, target, f"{self.title}: {self.measure} against the round")
        return target

    def _repr_html_(self) -> str:
        with self.drawn() as figure:
            svg = standalone(to_svg(figure, self.title))
        return svg.partition("\n")[2] + f"<p>{self.curves.caption}</p>"


def plot(runs: Runs = "runs", measure: str = "accuracy") -> list[Plot]:
    """A plot for each setting of the runs at or below these folders: accuracy, worst_accuracy,
    consensus_distance, loss, clipped or missing against the round, as in `clippedgossip report`.

    first, *others = cg.plot("runs/", "loss")
    first.save("loss.pdf")
    first.data
    """
    every = all_curves(grouped(read(runs)))
    known = {found.view.name: found for found in every}
    if measure not in known:
        raise RunError(unknown_name("measure", measure, known))
    return list(_plots(known[measure]))


def write_figures(runs: Runs, folder: Path) -> list[Path]:
    """Every figure of a report as SVG, PDF and PNG, with its numbers as CSV; and the networks."""
    found, written = read(runs), []
    with writing(folder, "give another folder"):
        folder.mkdir(parents=True, exist_ok=True)
        for curves in all_curves(grouped(found)):
            for number, one in enumerate(_plots(curves), 1):
                stem = folder / f"{curves.view.name.replace('_', '-')}-{number}"
                with one.drawn() as figure:
                    for suffix in SUFFIXES:
                        _save(figure, stem.with_suffix(suffix), f"{one.title}: {one.measure}")
                        written.append(stem.with_suffix(suffix))
                write_csv([{"title": one.title, **row} for row in one.rows], stem.with_suffix(".csv"))
                written.append(stem.with_suffix(".csv"))
        written += _networks(found, folder)
    return written


def _plots(curves: Curves) -> Iterator[Plot]:
    for title, lines in curves.panels.items():
        yield Plot(title, curves.view.name, lines, curves)


def _networks(runs: Sequence[Run], folder: Path) -> Iterator[Path]:
    """Each network once. One that its config cannot build again (of Python, of peers) is there as SVG."""
    from clippedgossip.report.network_drawing import draw_network
    from clippedgossip.runs.config import NetworkConfig

    seen: dict[bytes, None] = {}
    for run in runs:
        path = run.directory.drawing_path
        drawing = path.read_bytes() if path.is_file() else b""
        if not drawing or drawing in seen:
            continue
        seen[drawing] = None
        stem = folder / f"network-{len(seen)}"
        write_atomic(stem.with_suffix(".svg"), drawing)
        yield stem.with_suffix(".svg")
        try:
            with only_reading():
                network = NetworkConfig.from_value(run.config["network"]).build()
        except (UserError, KeyError):
            continue
        figure = draw_network(network)
        for suffix in (".pdf", ".png"):
            _save(figure, stem.with_suffix(suffix), "")
            yield stem.with_suffix(suffix)


def _points(line: Series) -> Iterator[dict[str, Any]]:
    nothing = [None] * len(line.x)
    for x, mean, low, high in zip(line.x, line.y, line.low or nothing, line.high or nothing, strict=True):
        if mean is not None:
            yield {"line": line.name, "round": x, "mean": mean, "low": low, "high": high}


def _save(figure: "Figure", path: Path, description: str) -> None:
    if path.suffix == ".svg":
        write_atomic(path, standalone(to_svg(figure, description)))
        return
    buffer = io.BytesIO()
    undated = {"CreationDate": None} if path.suffix == ".pdf" else None
    figure.savefig(buffer, format=path.suffix[1:], dpi=200, metadata=undated)
    write_atomic(path, buffer.getvalue())
