"""Runs on disk: the config, one record a line, a checkpoint, the environment."""

from clippedgossip.records.folder import RunDirectory, State, environment, run_name
from clippedgossip.records.lock import Lock
from clippedgossip.records.round import Round
from clippedgossip.records.text import canonical, to_line

__all__ = ["Lock", "Round", "RunDirectory", "State", "canonical", "environment", "run_name", "to_line"]
