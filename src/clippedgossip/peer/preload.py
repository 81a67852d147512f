"""Imported once by the process from which `peer up` forks its peers. No gRPC: it must not be forked."""

import prometheus_client
import sklearn.datasets
import torch

from clippedgossip import tasks
from clippedgossip.peer import loop as run

__all__ = ["prometheus_client", "run", "sklearn", "tasks", "torch"]
