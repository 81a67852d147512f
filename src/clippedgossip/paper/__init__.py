"""The paper's figures, one file each: run, check against what is published, draw."""

from clippedgossip.paper.base import (
    EXPERIMENTS,
    Experiment,
    Options,
    Progress,
    Reproduction,
    load,
    prepare,
    reproduce,
    resolve,
)
from clippedgossip.paper.overview import write_overview

__all__ = [
    "EXPERIMENTS",
    "Experiment",
    "Options",
    "Progress",
    "Reproduction",
    "load",
    "prepare",
    "reproduce",
    "resolve",
    "write_overview",
]
