"""Simulation: all nodes of a network in one process."""

from clippedgossip.simulate.consensus import ConsensusRound, consensus, trajectory

__all__ = ["ConsensusRound", "consensus", "trajectory"]
