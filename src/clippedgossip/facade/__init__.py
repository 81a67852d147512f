"""The first functions that a user calls: train one run, or compare many."""

from clippedgossip.facade.comparison import Comparison, compare
from clippedgossip.facade.recorded_run import RecordedRun
from clippedgossip.facade.training_run import TrainingRun, train

__all__ = ["Comparison", "RecordedRun", "TrainingRun", "compare", "train"]
