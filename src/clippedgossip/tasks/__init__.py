"""Tasks: data sets and where they come from, partitions, models, losses, and poisoned data."""

from clippedgossip.tasks.augment import crop_flip
from clippedgossip.tasks.datasets import DataSet, load
from clippedgossip.tasks.models import MODELS, build
from clippedgossip.tasks.partitions import SCHEMES, partition
from clippedgossip.tasks.poison import FlipLabels, Poison, RotateLabels, Trigger
from clippedgossip.tasks.quadratic import Quadratic, quadratic
from clippedgossip.tasks.sources.cache import cache_dir
from clippedgossip.tasks.sources.fetch import Fetched, fetch
from clippedgossip.tasks.task import LOSSES, ParameterLayout, Task, flatten, make_task, unflatten
from clippedgossip.tasks.workers import Workers

__all__ = [
    "LOSSES",
    "MODELS",
    "SCHEMES",
    "DataSet",
    "Fetched",
    "FlipLabels",
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
    "partition",
    "quadratic",
    "unflatten",
]
