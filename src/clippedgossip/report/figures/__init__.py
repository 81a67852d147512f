"""The plots of a report. Each returns one `<svg>` element."""

from clippedgossip.report.figures.bars import bars
from clippedgossip.report.figures.canvas import Mark, Scale
from clippedgossip.report.figures.curves import curve_panels, curves
from clippedgossip.report.figures.scatter import Points, scatter
from clippedgossip.report.figures.small_multiples import Panel, small_multiples

__all__ = ["Mark", "Panel", "Points", "Scale", "bars", "curve_panels", "curves", "scatter", "small_multiples"]
