"""A peer: one process per participant, owned by strangers, talking over the real network.

The names here are imported when they are used: the command line reads configs without loading torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clippedgossip.peer.learner import Learner, ModuleLearner
    from clippedgossip.peer.peer_config import Config, load
    from clippedgossip.peer.peer_mixing import Mixed
    from clippedgossip.peer.rejection import Missing
    from clippedgossip.peer.session import Gossip

_HOMES = {
    "Config": "peer_config",
    "Gossip": "session",
    "Learner": "learner",
    "Missing": "rejection",
    "Mixed": "peer_mixing",
    "ModuleLearner": "learner",
    "load": "peer_config",
}

__all__ = ["Config", "Gossip", "Learner", "Missing", "Mixed", "ModuleLearner", "load"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
