"""Compiling for a GPU once for each kind of work, however many runs do it, and what is done otherwise."""

import logging
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import torch

from clippedgossip.randomness import purpose_word

_Function = TypeVar("_Function", bound=Callable[..., Any])
_COMPILED: dict[Hashable, Callable[..., Any]] = {}
_DISTRUST: dict[Hashable, int] = {}
"""How often a kind was found wrong."""
CAPTURE = "captured rounds"
"""The kind of all rounds that a GPU repeats as it captured them."""
_CONSTANT: list[Callable[..., Any]] = [purpose_word]


def constant(function: _Function) -> _Function:
    """One that a compiler is not to look into: equal arguments, equal results.

    Marked when something is compiled: the compiler takes a second to import, and many never need it.
    """
    _CONSTANT.append(function)
    return function


def ours(thing: object) -> bool:
    """Whether its class is one of this package, and tested as such."""
    return type(thing).__module__.partition(".")[0] == __name__.partition(".")[0]


def distrust(kind: Hashable) -> str | None:
    """What was done of this kind is wrong: from now on it is done otherwise. What was compiled is compiled
    for each size alone, and if that is wrong too, not at all; rounds are no longer captured. Says how it is
    done now; None if there is no other way left."""
    _COMPILED.pop(kind, None)
    times = _DISTRUST[kind] = _DISTRUST.get(kind, 0) + 1
    if kind == CAPTURE:
        return "left uncaptured, right and slower" if times == 1 else None
    return {1: "compiled for each size alone", 2: "left uncompiled, right and slower"}.get(times)


def trusted(kind: Hashable) -> bool:
    return kind not in _DISTRUST


def compiled(
    kind: Hashable, function: Callable[..., Any], *, dynamic: bool | None = None
) -> Callable[..., Any]:
    """The compiled form of the first function of this kind; later ones of the kind must do the same work.

    `dynamic` takes sizes for symbolic from the start; otherwise those that change turn so the second time.
    """
    found_wrong = _DISTRUST.get(kind, 0)
    if found_wrong > 1:
        return function
    if kind not in _COMPILED:
        compiler: Any = torch.compiler
        for known in _CONSTANT:
            compiler.assume_constant_result(known)
        config = torch._dynamo.config
        config.recompile_limit = max(config.recompile_limit, 64)  # other kinds are not recompilations
        logging.getLogger("torch.utils._sympy.interp").setLevel(logging.ERROR)  # of no use to a user
        _COMPILED[kind] = torch.compile(function, dynamic=False if found_wrong else dynamic)
    return _COMPILED[kind]
