"""The command line: one file per command, heavy imports inside the functions that need them."""

from clippedgossip.cli.app import main

__all__ = ["main"]
