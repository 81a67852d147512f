"""Compiling for a GPU once for each kind of work, however many runs do it."""

from collections.abc import Callable, Hashable
from typing import Any

import torch

from clippedgossip.randomness import purpose_word

_COMPILED: dict[Hashable, Callable[..., Any]] = {}


def compiled(kind: Hashable, function: Callable[..., Any]) -> Callable[..., Any]:
    """The compiled form of the first function of this kind; later ones of the kind must do the same work."""
    if kind not in _COMPILED:
        compiler: Any = torch.compiler
        compiler.assume_constant_result(purpose_word)  # a digest: it cannot be looked into, and need not
        config = torch._dynamo.config
        config.recompile_limit = max(config.recompile_limit, 64)  # other kinds are not recompilations
        _COMPILED[kind] = torch.compile(function)  # sizes that change turn symbolic the second time
    return _COMPILED[kind]
