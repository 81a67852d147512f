"""The exception tree. Every error a user can cause says the value, the bound and the fix."""

import sys
import warnings
from collections.abc import Iterable
from difflib import get_close_matches
from unicodedata import category


class ClippedGossipError(Exception):
    """Base of every error this package raises on purpose."""


class UserError(ClippedGossipError):
    """An error that the user can correct; the command line prints it and exits with code 2."""

    missing: tuple[str, ...] = ()
    """Parameters that were not given, such as `rule.faulty=1`. The command line turns them into options."""


class NetworkError(UserError):
    """A graph, Byzantine set or weight matrix that cannot be used."""


class RuleError(UserError):
    """A rule whose parameters do not fit its neighbourhood."""


class AttackError(UserError):
    """An attack that does not fit the network or its own parameters."""


class ConfigError(UserError):
    """A configuration that is not valid."""


class DataError(UserError):
    """A data set that cannot be found, fetched, trusted or split."""


class RunError(UserError):
    """A run that cannot start or continue."""


class MiscompiledError(RunError):
    """Rounds that were compiled or captured wrongly. A run that starts again does not use what was wrong."""


class FormatError(UserError):
    """A file that a newer version of this package wrote."""


class PeerError(UserError):
    """A peer whose identity, configuration or neighbours do not fit."""


NO_TEXT = "backslashreplace"
"""How to write what is no text, as the bytes of a file's name may be: escaped, as on stderr."""


def harmless(text: str) -> str:
    """Words of a file without what a terminal would obey: such characters as Python writes them."""
    obeyed = ("Cc", "Cf", "Cs", "Zl", "Zp")
    return "".join(
        c if c == "\n" or category(c) not in obeyed else c.encode("unicode_escape").decode() for c in text
    )


def tell(text: str) -> None:
    """Print lines on stderr in one piece. `print` writes the last end of line by itself, and processes that
    share a terminal come in between."""
    sys.stderr.write(f"{harmless(text)}\n")


def warn_user(message: str) -> None:
    """A RuntimeWarning that points at the user's own line, the innermost one outside this package."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == __package__:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, RuntimeWarning, stacklevel=level)


def kind_of(value: object) -> str:
    """What a value is, for a message: "an int", "a Network", "the class Network itself"."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__} itself"
    return article(type(value).__name__)


def counted(count: int, noun: str) -> str:
    """`1 sample`, `2 samples`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def some(names: Iterable[object], most: int = 12) -> str:
    """The first few, and how many more there are."""
    listed = list(map(str, names))
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")


def first_line(error: BaseException) -> str:
    """Of what an exception says; its class if it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def article(noun: str) -> str:
    """The noun with "a" or "an"."""
    return f"{'an' if noun[0] in 'aeiouAEIOU' else 'a'} {noun}"


def unknown_name(kind: str, name: str, known: Iterable[str]) -> str:
    """Two lines for an unknown name: the nearest known name, and all known names."""
    known = sorted(known)
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"unknown {kind} {name!r}{hint}\nknown: {', '.join(known) or 'none'}"
