"""Simulation: all nodes of a network, in one process or over many."""

from clippedgossip.simulate.consensus import ConsensusRound, consensus
from clippedgossip.simulate.engine import train, train_together
from clippedgossip.simulate.setup import Setup, Training
from clippedgossip.simulate.state import Moment, State

__all__ = ["ConsensusRound", "Moment", "Setup", "State", "Training", "consensus", "train", "train_together"]
