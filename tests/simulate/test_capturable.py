"""Capturable rules and attacks never synchronise with the CPU: a CUDA graph could not hold their rounds.

Tested on a CPU: nothing reads a value of a tensor, makes a tensor whose size depends on a value, or copies a
tensor to the device.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from clippedgossip.attacks import Attack, Dissensus
from clippedgossip.mixing import kernels
from clippedgossip.mixing.inbox import Inbox
from clippedgossip.rules import Bucketing, ClippedGossip, Fixed, Median, Rule, base
from clippedgossip.simulate.engine import Stack
from tests.simulate.distributed import distributed_cases as cases

CPU = torch.device("cpu")
ATEN: Any = torch.ops.aten
SYNCHRONISING = {
    ATEN._linalg_check_errors.default,
    ATEN._local_scalar_dense.default,
    ATEN.allclose.default,
    ATEN.bincount.default,
    ATEN.equal.default,
    ATEN.masked_select.default,
    ATEN.nonzero.default,
    ATEN.repeat_interleave.Tensor,
    ATEN._unique2.default,
    ATEN.unique_consecutive.default,
    ATEN.unique_dim.default,
}
MASKED = {ATEN.index.Tensor, ATEN.index_put.default, ATEN.index_put_.default}


CPU_ALONE = {
    kernels.combine.__code__,
    kernels.row_lengths.__code__,
    kernels.saturated.__code__,
    kernels.squared_along_edges.__code__,
    kernels.sum_wide.__code__,
    Inbox._linear_is_measured.fget.__code__,  # type: ignore[attr-defined]  # a property's
}
"""A GPU has kernels of its own for these, which end at once where there is nothing to do, or always works."""


class Synchronised(Exception):
    """A value was read on the CPU."""


class _Listener(TorchDispatchMode):  # type: ignore[no-untyped-call]  # PyTorch leaves it untyped
    def __torch_dispatch__(
        self,
        function: Any,
        types: Sequence[type],
        arguments: tuple[Any, ...] = (),
        options: Mapping[str, Any] | None = None,
    ) -> Any:
        if (function in SYNCHRONISING or by_mask(function, arguments)) and not on_a_cpu_alone():
            raise Synchronised(str(function))
        return function(*arguments, **(options or {}))


@contextmanager
def no_synchronisation() -> Iterator[None]:
    def refuse(*arguments: Any, **options: Any) -> Any:
        raise Synchronised

    listener: Any = _Listener
    with pytest.MonkeyPatch.context() as patch, listener():
        for name in ("tensor", "as_tensor", "from_numpy"):
            patch.setattr(torch, name, refuse)
        for name in ("tolist", "numpy", "cpu"):
            patch.setattr(torch.Tensor, name, refuse)
        yield


def by_mask(function: Any, arguments: tuple[Any, ...]) -> bool:
    if function not in MASKED or (len(arguments) > 2 and arguments[2].dim() == 0):  # that fills in place
        return False
    return any(place is not None and place.dtype == torch.bool for place in arguments[1])


def on_a_cpu_alone() -> bool:
    frame = sys._getframe()
    while (caller := frame.f_back) is not None:
        frame = caller
        if frame.f_code in CPU_ALONE:
            return True
    return False


@pytest.fixture
def coordinates_as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gathered and combined as they are there, but not compiled."""
    monkeypatch.setattr(base, "compiled", lambda kind, function, dynamic: function)

    def mix(rule: base.CoordinateRule, inbox: Inbox, count: int, nodes: Tensor, output: Tensor) -> None:
        output.index_copy_(0, nodes, rule._mix_compiled(inbox, count, nodes))

    monkeypatch.setattr(base.CoordinateRule, "_mix_on_cpu", mix)


PAIRS = [("clipped-gossip", attack) for attack in cases.ATTACK_CASES] + [
    (rule, "alie") for rule in cases.RULE_CASES if rule != "clipped-gossip"
]


@pytest.mark.usefixtures("coordinates_as_on_a_gpu")
@pytest.mark.parametrize("dense", [True, False], ids=["dense", "sparse"])
@pytest.mark.parametrize(("rule", "attack"), PAIRS)
def test_capturable_rounds_never_synchronise_with_the_cpu(rule: str, attack: str, dense: bool) -> None:
    stack = Stack([cases.setup(rule, attack, network=None if dense else cases.sparse())], CPU, None)
    stack.advance()  # computes what is computed once
    assert stack.mixers[0].capturable is (rule != "mda")
    with torch.no_grad(), no_synchronisation():
        stack.mix(capturable=True)


class OwnRule(Median):
    pass


class OwnAttack(Dissensus):
    pass


class OwnRadius(Fixed):
    pass


class CapturableRule(Median):
    @property
    def capturable(self) -> bool:
        return True


def test_a_class_of_the_users_own_is_capturable_only_if_it_says_so() -> None:
    own: list[Rule | Attack] = [
        OwnRule(),
        OwnAttack(),
        ClippedGossip(OwnRadius(1.0)),
        Bucketing(OwnRule()),
    ]
    assert not any(one.capturable for one in own)
    assert CapturableRule().capturable
    assert Bucketing(CapturableRule()).capturable


@pytest.mark.parametrize(
    "read",
    [
        lambda models: models[models.sum(1).argmax()],
        lambda models: models[models[:, 0] > 0],
        lambda models: models.index_put_((models > 0,), models[models > 0]),
        lambda models: float(models.sum()),
        lambda models: models.tolist(),
        lambda models: models.cpu(),
        lambda models: models + torch.tensor([1.0]),
        lambda models: torch.linalg.inv(models[:, :3]),
        lambda models: torch.unique(models),
    ],
)
def test_reading_a_value_is_found(read: Callable[[torch.Tensor], object]) -> None:
    models = torch.randn(3, 4)
    with pytest.raises(Synchronised), no_synchronisation():
        read(models)
