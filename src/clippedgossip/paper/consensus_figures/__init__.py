"""The consensus experiment (§ Byzantine-robust consensus)."""

from clippedgossip.paper.consensus_figures.experiment import EXPERIMENT
from clippedgossip.paper.consensus_figures.trials import SETTINGS, Outcome, simulate

__all__ = ["EXPERIMENT", "SETTINGS", "Outcome", "simulate"]
