"""The paper's figures, one file each: run, check against what is published, draw."""

from clippedgossip.experiments.base import (
    EXPERIMENTS,
    Experiment,
    Options,
    Progress,
    Reproduction,
    load,
    reproduce,
    resolve,
)

__all__ = ["EXPERIMENTS", "Experiment", "Options", "Progress", "Reproduction", "load", "reproduce", "resolve"]
