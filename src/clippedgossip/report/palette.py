"""One look for each rule, the same in every figure. Dash and marker differ too, so that colour is not needed.

Every colour has a contrast of at least 3:1 on the light and on the dark page.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from zlib import crc32


@dataclass(frozen=True)
class Style:
    """Colour, dash pattern (on, off, … in points; empty is solid) and marker (matplotlib's letters). Bars
    have a hatch in place of dash and marker."""

    color: str
    dash: tuple[float, ...] = ()
    marker: str = "o"
    hatch: str | None = None


_BLUE, _GREY, _VERMILLION, _GREEN, _PINK = "#1f7fc4", "#7a7a7a", "#d55e00", "#009e73", "#b85fa0"
_GOLD, _INDIGO, _TEAL = "#a67c00", "#7a6ae0", "#2a8ca8"
_OLIVE, _BROWN, _CRIMSON = "#5b8c00", "#9a5b13", "#d6336c"
_DASHED, _DOTTED, _DASHDOT, _LONG = (5.0, 2.0), (1.5, 1.5), (6.0, 2.0, 1.5, 2.0), (9.0, 2.0)

RULE_STYLES: Mapping[str, Style] = MappingProxyType(
    {
        "clipped gossip": Style(_BLUE),
        "gossip": Style(_GREY, _DASHED, "s"),
        "geometric median": Style(_VERMILLION, _DASHDOT, "^"),
        "trimmed mean": Style(_GREEN, _LONG, "D"),
        "weighted trimmed mean": Style(_GREEN, _DOTTED, "d"),
        "mozi": Style(_PINK, _DASHED, "v"),
        "median": Style(_GOLD, _DASHDOT, "P"),
        "weighted median": Style(_GOLD, _DOTTED, "X"),
        "krum": Style(_CRIMSON, _LONG, "<"),
        "multi krum": Style(_CRIMSON, _DOTTED, ">"),
        "cs plus": Style(_INDIGO, (), "s"),
        "gts": Style(_INDIGO, _DASHED, "^"),
        "nna": Style(_TEAL, _DASHDOT, "D"),
        "ios": Style(_OLIVE, _LONG, "v"),
        "balance": Style(_BROWN, (), "P"),
        "meamed": Style(_OLIVE, _DOTTED, "X"),
        "centered clipping": Style(_TEAL, _DOTTED, "<"),
        "mda": Style(_BROWN, _DASHED, ">"),
        "nnm": Style(_TEAL, (), "^"),
        "bucketing": Style(_GREY, _DOTTED, "D"),
    }
)

_NAMES = {name.replace(" ", ""): name for name in RULE_STYLES} | {
    "cg": "clipped gossip",
    "gm": "geometric median",
    "rfa": "geometric median",
    "tm": "trimmed mean",
    "tm*": "weighted trimmed mean",
    "median*": "weighted median",
    "cs+": "cs plus",
    "ubar": "mozi",
}
"""Without spaces, and short ones."""

_COLORS = (_BLUE, _VERMILLION, _GREEN, _PINK, _GOLD, _GREY, _INDIGO, _TEAL, _CRIMSON, _OLIVE, _BROWN)
_DASHES = ((), _DASHED, _DOTTED, _DASHDOT, _LONG)
_MARKERS = "os^DvPX<>d"
_SPARE = tuple(
    Style(_COLORS[i % len(_COLORS)], _DASHES[i % len(_DASHES)], _MARKERS[i % len(_MARKERS)])
    for i in range(len(_COLORS) * len(_MARKERS))
)
"""The numbers of colours, dashes and markers have no common divisor. So neighbours differ in all three."""


VARIANTS = 3  # of one rule that keep its colour


def rule_of(name: str) -> str | None:
    """The rule that a label names: `ClippedGossip`, `clipped-gossip` and `ClippedGossip τ=1` are one."""
    words = name.lower().replace("-", " ").replace("_", " ").replace("(", " (").split()
    for count in range(len(words), 0, -1):
        if (key := "".join(words[:count]).rstrip(",:")) in _NAMES:
            return _NAMES[key]
    return None


def styles(names: Iterable[str]) -> dict[str, Style]:
    """A look for each name. A rule has its own; up to three variants share its colour. More variants, and
    unknown names, get spare looks."""
    names = list(dict.fromkeys(names))
    chosen: dict[str, Style] = {}
    rules = [rule_of(name) for name in names]
    for name, rule in zip(names, rules, strict=True):
        if rule is None:
            continue
        first, number = RULE_STYLES[rule], sum(rule_of(other) == rule for other in chosen)
        if number == 0:
            chosen[name] = first
        elif rules.count(rule) <= VARIANTS:
            dashes = [dash for dash in _DASHES if dash != first.dash]
            markers = [marker for marker in _MARKERS if marker != first.marker]
            look = Style(first.color, dashes[number % len(dashes)], markers[number])
            taken = {*RULE_STYLES.values(), *chosen.values()}
            while look in taken:
                look = Style(first.color, look.dash, markers[markers.index(look.marker) - 1])
            chosen[name] = look
    for name in names:
        if name not in chosen:
            colors = {style.color for style in chosen.values()}
            start = crc32(name.encode()) % len(_SPARE)  # the same name looks the same in other figures
            spare = [*_SPARE[start:], *_SPARE[:start]]
            free = [style for style in spare if style not in chosen.values()] or spare
            chosen[name] = next((style for style in free if style.color not in colors), free[0])
    return {name: chosen[name] for name in names}


_SHAPES = {
    "o": '<circle cx="16" cy="6" r="3"/>',
    "s": '<path d="M13 3h6v6h-6z"/>',
    "^": '<path d="M16 2l3.6 7h-7.2z"/>',
    "v": '<path d="M16 10l3.6-7h-7.2z"/>',
    "<": '<path d="M12 6l7-3.6v7.2z"/>',
    ">": '<path d="M20 6l-7-3.6v7.2z"/>',
    "D": '<path d="M16 2l4 4-4 4-4-4z"/>',
    "d": '<path d="M16 2l2.6 4-2.6 4-2.6-4z"/>',
    "P": '<path d="M14.7 2h2.6v2.7h2.7v2.6h-2.7v2.7h-2.6V7.3H12V4.7h2.7z"/>',
    "X": '<path d="M14 2l2 2 2-2 2 2-2 2 2 2-2 2-2-2-2 2-2-2 2-2-2-2z"/>',
}


HATCHES = ("", "//", "\\\\", "xx", "--", "||", "++", "/", "\\")
_STROKES = {"/": "M{0} 12l12-12", "\\": "M{0} 0l12 12", "-": "M0 {1}h24", "|": "M{0} 0v12"}


def _bar(look: Style, hatch: str) -> str:
    """A piece of a bar with its hatch."""
    signs = {"x": "/\\", "+": "-|"}.get(hatch[:1], hatch[:1])
    step = 6 if len(hatch) == 2 else 12
    places = list(zip(range(-6, 24, step), range(2, 17, 4), strict=False))
    strokes = "".join(_STROKES[sign].format(x, y) for sign in signs for x, y in places)
    return (
        '<svg width="32" height="12" viewBox="0 0 24 12" aria-hidden="true">'
        f'<path d="M0 0h24v12h-24z" fill="{look.color}" stroke="currentColor"/>'
        f'<path d="{strokes}" fill="none" stroke="currentColor" stroke-width="0.8"/></svg>'
    )


def swatch(look: Style) -> str:
    """A short piece of the line with its marker, or of the bar, to stand before its name in a legend."""
    if look.hatch is not None:
        return _bar(look, look.hatch)
    lengths = " ".join(f"{length * 1.33:g}" for length in look.dash)
    dash = f' stroke-dasharray="{lengths}"' if look.dash else ""
    shape = _SHAPES.get(look.marker, "")
    return (
        f'<svg width="32" height="12" viewBox="0 0 32 12" aria-hidden="true" fill="{look.color}">'
        f'<path d="M0 6h32" stroke="{look.color}" stroke-width="2.4"{dash}/>{shape}</svg>'
    )
