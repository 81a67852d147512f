"""Mixing inside the loops that people already have. One module for each foreign library, imported only by
those who use it."""

from numbers import Integral

from clippedgossip.errors import ConfigError


def steps_between(name: str, count: int) -> int:
    """After how many steps to mix: refused before the first step, not in it."""
    if not isinstance(count, Integral) or count < 1:
        raise ConfigError(f"{name} is {count!r}; it must be a whole number, at least 1")
    return count
