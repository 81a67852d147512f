"""Byzantine-robust decentralized learning via ClippedGossip: `import clippedgossip as cg`.

Names are fetched when they are first used, so that importing the package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clippedgossip import attacks, audit, errors, graphs, rules, simulate, step, tasks, theory
    from clippedgossip.export import plot, results
    from clippedgossip.facade import compare, train
    from clippedgossip.network import Network
    from clippedgossip.peer import Peer
    from clippedgossip.simulate.consensus import consensus
    from clippedgossip.simulate.setup import Setup, Training

__version__ = "0.1.0"

__all__ = [
    "Network",
    "Peer",
    "Setup",
    "Training",
    "__version__",
    "attacks",
    "audit",
    "compare",
    "consensus",
    "errors",
    "graphs",
    "plot",
    "results",
    "rules",
    "simulate",
    "step",
    "tasks",
    "theory",
    "train",
]

_HOMES = {
    "Network": "clippedgossip.network",
    "Peer": "clippedgossip.peer",
    "Setup": "clippedgossip.simulate",
    "Training": "clippedgossip.simulate",
    "compare": "clippedgossip.facade",
    "consensus": "clippedgossip.simulate",
    "plot": "clippedgossip.export",
    "results": "clippedgossip.export",
    "train": "clippedgossip.facade",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name not in _HOMES:
        return import_module(f"{__name__}.{name}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
