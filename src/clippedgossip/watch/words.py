"""Values of files in the words of the page. Files may be damaged: what is no number has a dash."""

from collections.abc import Mapping

from clippedgossip.watch.records_tail import is_number

_LONGEST = 200


def text(value: object) -> str:
    """Of bounded length, on one line."""
    said = " ".join(str(value).split())
    return said if len(said) <= _LONGEST else said[: _LONGEST - 1] + "…"


def number(value: object, digits: int = 3) -> str:
    return f"{value:.{digits}g}" if is_number(value) else "–"


def metric_title(metric: str) -> str:
    return text(metric[:1].upper() + metric[1:])


def age(seconds: object) -> str:
    """How long ago, in words."""
    if not is_number(seconds):
        return "never"
    for unit, name in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name} ago"
    return f"{max(seconds, 0):.0f} s ago"


def counts(table: object) -> str:
    """{"late": 3} -> "late 3", the most frequent first."""
    if not isinstance(table, Mapping):
        return ""
    found = sorted(((k, v) for k, v in table.items() if is_number(v) and v), key=lambda pair: -pair[1])
    return ", ".join(f"{text(name)} {count}" for name, count in found[:12])
