"""Sweeps: many runs in one folder, by any number of processes and machines."""

from clippedgossip.sweep.grid import load_sweep, shard
from clippedgossip.sweep.launch import launch
from clippedgossip.sweep.missing import Outcome, run_missing
from clippedgossip.sweep.status import STATES, Standing, status, status_of_folder

__all__ = [
    "STATES",
    "Outcome",
    "Standing",
    "launch",
    "load_sweep",
    "run_missing",
    "shard",
    "status",
    "status_of_folder",
]
