"""Results to take away: runs on disk as a data frame, as files for other tools, as figures."""

from clippedgossip.export.figure_files import Plot, plot, write_figures
from clippedgossip.export.frame import data_frame, results
from clippedgossip.export.tables import FORMATS, write_tables

__all__ = ["FORMATS", "Plot", "data_frame", "plot", "results", "write_figures", "write_tables"]
