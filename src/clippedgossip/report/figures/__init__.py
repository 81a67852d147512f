"""The plots of a report. Each returns one `<svg>` element."""

from clippedgossip.report.figures.canvas import Mark, Scale
from clippedgossip.report.figures.plots import (
    Panel,
    Points,
    bars,
    curve_panels,
    curves,
    scatter,
    small_multiples,
)

__all__ = ["Mark", "Panel", "Points", "Scale", "bars", "curve_panels", "curves", "scatter", "small_multiples"]
