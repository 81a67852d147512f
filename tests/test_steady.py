"""Rules and attacks that say they are steady never ask the host: a GPU could not capture their rounds.

Seen here on a CPU: nothing reads a value back, or makes a tensor whose size depends on one.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from clippedgossip import kernels
from clippedgossip.rules import CoordinateRule
from clippedgossip.simulate.train import Stack
from tests import distributed_cases as cases

CPU = torch.device("cpu")
ATEN: Any = torch.ops.aten
ASKING = {
    ATEN._local_scalar_dense.default,
    ATEN.bincount.default,
    ATEN.equal.default,
    ATEN.masked_select.default,
    ATEN.nonzero.default,
    ATEN.repeat_interleave.Tensor,
    ATEN._unique2.default,
    ATEN.unique_dim.default,
}
OTHERS_ON_A_GPU = {kernels.combine.__code__, CoordinateRule._mix_some.__code__}


class Asked(Exception):
    """The host was asked."""


class _Listener(TorchDispatchMode):  # type: ignore[no-untyped-call]  # PyTorch leaves it untyped
    def __torch_dispatch__(
        self,
        function: Any,
        types: Sequence[type],
        arguments: tuple[Any, ...] = (),
        options: Mapping[str, Any] | None = None,
    ) -> Any:
        if (function in ASKING or by_mask(function, arguments)) and not on_a_cpu_alone():
            raise Asked(str(function))
        return function(*arguments, **(options or {}))


nothing_asked: Callable[[], AbstractContextManager[object]] = _Listener


def by_mask(function: Any, arguments: tuple[Any, ...]) -> bool:
    return function is ATEN.index.Tensor and any(
        place is not None and place.dtype == torch.bool for place in arguments[1]
    )


def on_a_cpu_alone() -> bool:
    frame = sys._getframe()
    while (caller := frame.f_back) is not None:
        frame = caller
        if frame.f_code in OTHERS_ON_A_GPU:
            return True
    return False


PAIRS = [("clipped-gossip", attack) for attack in cases.ATTACK_CASES] + [
    (rule, "alie") for rule in cases.RULE_CASES if rule != "clipped-gossip"
]


@pytest.mark.parametrize("dense", [True, False], ids=["dense", "sparse"])
@pytest.mark.parametrize(("rule", "attack"), PAIRS)
def test_steady_rounds_never_ask_the_host(rule: str, attack: str, dense: bool) -> None:
    stack = Stack([cases.setup(rule, attack, network=None if dense else cases.sparse())], CPU, None)
    stack.advance()  # what is worked out once is known now
    if not stack.mixers[0].steady:
        pytest.skip("it says that it asks")
    with torch.no_grad(), nothing_asked():
        stack._mix(steady=True)


def test_one_who_asks_is_found() -> None:
    models = torch.randn(3, 4)
    for ask in (
        lambda: models[models.sum(1).argmax()],
        lambda: models[models[:, 0] > 0],
        lambda: float(models.sum()),
    ):
        with pytest.raises(Asked), nothing_asked():
            ask()
