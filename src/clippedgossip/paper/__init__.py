"""The paper's figures, one file each: run, check against what is published, draw."""

from clippedgossip.paper.base import (
    EXPERIMENTS,
    Experiment,
    Needs,
    Options,
    Prepared,
    Progress,
    Reproduction,
    load,
    prepare,
    reproduce,
    resolve,
)

__all__ = [
    "EXPERIMENTS",
    "Experiment",
    "Needs",
    "Options",
    "Prepared",
    "Progress",
    "Reproduction",
    "load",
    "prepare",
    "reproduce",
    "resolve",
]
