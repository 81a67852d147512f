"""The rules on arrays of other libraries: NumPy, JAX, CuPy, whatever speaks DLPack."""

from typing import Any

import numpy as np
from torch import Tensor, from_numpy
from torch.utils.dlpack import from_dlpack

from clippedgossip.rules import Rule
from clippedgossip.settings import must_be


def mixed(rule: Rule, own: Any, received: Any, weights: Any) -> Any:
    """`rule(own, received, weights)` for arrays of shapes (*batch, d), (*batch, k, d), (*batch, k).

        mixed(cg.rules.Median(), np.zeros(3), np.ones((4, 3)), np.full(4, 0.2))

    Nothing is copied on the way in, where the library allows it. The result is of the library of `own`.
    """
    must_be("rule", rule, Rule, "rules.Median()")
    model = tensor(own)
    found = rule(model, tensor(received).to(model), tensor(weights).to(model))
    if isinstance(own, Tensor):
        return found
    if isinstance(own, np.ndarray) or not hasattr(own, "__dlpack__"):
        return found.numpy()
    namespace = own.__array_namespace__()  # of the array API standard
    return namespace.from_dlpack(found)


def tensor(array: Any) -> Tensor:
    """As a tensor: by DLPack, or through NumPy for what does not speak it (lists, read-only arrays)."""
    if isinstance(array, Tensor):
        return array
    try:
        found = from_dlpack(array)
    except (AttributeError, BufferError, TypeError, RuntimeError):
        found = from_numpy(np.array(array))
    return found if found.is_floating_point() else found.double()
