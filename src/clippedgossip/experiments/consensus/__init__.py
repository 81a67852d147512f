"""The consensus experiment (§ Byzantine-robust consensus)."""

from clippedgossip.experiments.consensus.experiment import EXPERIMENT
from clippedgossip.experiments.consensus.run import SETTINGS, Outcome, simulate

__all__ = ["EXPERIMENT", "SETTINGS", "Outcome", "simulate"]
