"""Runs on disk: the config, one record a line, a checkpoint, the environment."""

from clippedgossip.records.folder import RunDirectory, State, environment, run_name
from clippedgossip.records.round import Round

__all__ = ["Round", "RunDirectory", "State", "environment", "run_name"]
