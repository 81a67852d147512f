"""From records to figures to one self-contained HTML page."""

from clippedgossip.files import write
from clippedgossip.report.claims import Claim, Claims
from clippedgossip.report.page import Code, Details, Figure, Panels, Section, Table, Text, page
from clippedgossip.report.statistics import Estimate, Series, estimate, over_seeds

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
