"""A diagnosis of a network: verdict, weakest cut, worst placement of Byzantine nodes, edges to add."""

from clippedgossip.audit.cut import Cut, weakest_cut
from clippedgossip.audit.diagnosis import Audit, audit
from clippedgossip.audit.edges import Suggestion, suggest_edges
from clippedgossip.audit.worst_placement import Placement, worst_placement

__all__ = [
    "Audit",
    "Cut",
    "Placement",
    "Suggestion",
    "audit",
    "suggest_edges",
    "weakest_cut",
    "worst_placement",
]
