"""From records to figures to one self-contained HTML page."""

import os
import sys
from contextlib import suppress

from clippedgossip.files import write
from clippedgossip.report.claims import Claim, Claims
from clippedgossip.report.page import Code, Details, Figure, Panels, Section, Table, Text, page
from clippedgossip.report.statistics import Estimate, Series, estimate, over_seeds

if not os.environ.get("MPLBACKEND", "agg").lower().startswith(("agg", "module://")):
    with suppress(ImportError):
        try:
            import matplotlib  # noqa: F401
        except ValueError:  # no backend has this name; our figures are files and need none
            del os.environ["MPLBACKEND"]
            for name in [name for name in sys.modules if name.startswith("matplotlib.")]:
                del sys.modules[name]

__all__ = [
    "Claim",
    "Claims",
    "Code",
    "Details",
    "Estimate",
    "Figure",
    "Panels",
    "Section",
    "Series",
    "Table",
    "Text",
    "estimate",
    "over_seeds",
    "page",
    "write",
]
