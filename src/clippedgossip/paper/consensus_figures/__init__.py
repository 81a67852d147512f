"""The consensus experiment (§ Byzantine-robust consensus)."""

from clippedgossip.paper.consensus_figures.chains import SETTINGS, ChainErrors, simulate
from clippedgossip.paper.consensus_figures.experiment import EXPERIMENT

__all__ = ["EXPERIMENT", "SETTINGS", "ChainErrors", "simulate"]
