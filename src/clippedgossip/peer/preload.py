"""Imported once by the process from which `peer up` forks its peers. No gRPC: it must not be forked."""

import torch

from clippedgossip import inbox, rules, tasks

__all__ = ["inbox", "rules", "tasks", "torch"]
