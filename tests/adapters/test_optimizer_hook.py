"""Mixing after the steps of any optimizer."""

import importlib
import re
from typing import Any

import pytest
import torch
from torch import nn

from clippedgossip import rules
from clippedgossip.adapters.optimizer_hook import MixAfterStep
from clippedgossip.errors import ConfigError


def step(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_every_second_step_mixes_until_it_is_removed() -> None:
    model, mixed = nn.Linear(2, 1), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook = MixAfterStep(optimizer, lambda: mixed.append(hook.steps), every=2)
    for _ in range(5):
        step(optimizer, model)
    assert mixed == [2, 4]
    hook.remove()
    step(optimizer, model)
    assert hook.steps == 5


def test_a_step_that_the_scaler_skips_mixes_too() -> None:
    model, mixed = nn.Linear(2, 1), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    hook = MixAfterStep(optimizer, lambda: mixed.append(hook.steps), scaler=scaler)
    for factor in (1.0, float("inf"), 1.0):
        before = model.weight.detach().clone()
        scaler.scale(factor * model(torch.ones(1, 2)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        assert torch.equal(before, model.weight) == (factor == float("inf"))  # it was really skipped
    assert mixed == [1, 2, 3]
    hook.remove()
    assert "step" not in vars(scaler)


@pytest.mark.parametrize(
    ("module", "name", "given", "said"),
    [
        *(
            (module, name, {"mix": print, **first, "every": every}, f"every is {every!r}; it must be a whole")
            for module, name, first in (
                ("optimizer_hook", "MixAfterStep", {"optimizer": torch.optim.SGD([torch.ones(1)])}),
                ("hugging_face", "TrainerMixing", {}),
                ("lightning_callback", "LightningMixing", {}),
            )
            for every in (0, 1.5, "2")
        ),
        (
            "model_averager",
            "RobustAverager",
            {"rule": "median", "network": None},
            "rule is a str; give a Rule",
        ),
        (
            "model_averager",
            "RobustAverager",
            {"rule": rules.Median(), "network": 3},
            "network is an int; give",
        ),
        ("flower", "RobustFedAvg", {"rule": rules.Median}, "rule is the class Median itself; give a Rule"),
        (
            "arrays",
            "mixed",
            {"rule": None, "own": 0, "received": 0, "weights": 0},
            "rule is None; give a Rule",
        ),
    ],
)
def test_an_adapter_refuses_at_once_what_would_fail_in_the_loop(
    module: str, name: str, given: dict[str, Any], said: str
) -> None:
    try:
        adapter = getattr(importlib.import_module(f"clippedgossip.adapters.{module}"), name)
    except ModuleNotFoundError as error:
        pytest.skip(str(error))
    with pytest.raises(ConfigError, match=re.escape(said)):
        adapter(**given)
