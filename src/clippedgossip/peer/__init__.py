"""A peer: one process per participant, over the real network, among owners who do not trust each other.

The names here are imported when they are used: the command line reads configs without loading torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clippedgossip.peer.learner import Learner, ModuleLearner
    from clippedgossip.peer.peer_config import Config, load
    from clippedgossip.peer.peer_mixing import Mixed
    from clippedgossip.peer.rejection import Rejection
    from clippedgossip.peer.session import Peer

_HOMES = {
    "Config": "peer_config",
    "Learner": "learner",
    "Mixed": "peer_mixing",
    "ModuleLearner": "learner",
    "Peer": "session",
    "Rejection": "rejection",
    "load": "peer_config",
}
_FORMER = {"Gossip": "Peer", "Missing": "Rejection"}
"""Names of version 0.1, kept for one version."""

__all__ = ["Config", "Learner", "Mixed", "ModuleLearner", "Peer", "Rejection", "load"]


def __getattr__(name: str) -> object:
    name = _FORMER.get(name, name)
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
