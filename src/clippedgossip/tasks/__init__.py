"""Tasks: data sets and where they come from, partitions, models, losses, and poisoned data."""

from clippedgossip.tasks.augment import crop_flip
from clippedgossip.tasks.datasets import DataSet, load
from clippedgossip.tasks.models import MODELS, ParameterLayout, build, flatten, unflatten
from clippedgossip.tasks.objective import LOSSES, METRICS, Loss, Metric, mean_metric, of_module
from clippedgossip.tasks.partitions import SCHEMES, partition
from clippedgossip.tasks.poison import FlipLabels, Poison, RotateLabels, Trigger
from clippedgossip.tasks.quadratic import Quadratic, quadratic
from clippedgossip.tasks.sources.cache import cache_dir
from clippedgossip.tasks.sources.fetch import Fetched, fetch
from clippedgossip.tasks.workers import Task, Workers, make_task

__all__ = [
    "LOSSES",
    "METRICS",
    "MODELS",
    "SCHEMES",
    "DataSet",
    "Fetched",
    "FlipLabels",
    "Loss",
    "Metric",
    "ParameterLayout",
    "Poison",
    "Quadratic",
    "RotateLabels",
    "Task",
    "Trigger",
    "Workers",
    "build",
    "cache_dir",
    "crop_flip",
    "fetch",
    "flatten",
    "load",
    "make_task",
    "mean_metric",
    "of_module",
    "partition",
    "quadratic",
    "unflatten",
]
