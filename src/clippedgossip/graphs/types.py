"""The graph type: networkx's own, whose stubs are generic while the class is not."""

from typing import TYPE_CHECKING, Any

import networkx as nx

if TYPE_CHECKING:
    Graph = nx.Graph[Any]
else:
    Graph = nx.Graph

__all__ = ["Graph"]
