"""The little sample of line that stands before a name in a legend."""

from clippedgossip.report.palette import Style

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


def swatch(look: Style) -> str:
    """A piece of line with its marker, in the look of the plots."""
    dash = (
        f' stroke-dasharray="{" ".join(f"{length * 1.33:g}" for length in look.dash)}"' if look.dash else ""
    )
    shape = _SHAPES.get(look.marker, "")
    return (
        f'<svg width="32" height="12" viewBox="0 0 32 12" aria-hidden="true" fill="{look.color}">'
        f'<path d="M0 6h32" stroke="{look.color}" stroke-width="2.4"{dash}/>{shape}</svg>'
    )
