"""Mixing after the steps of any optimizer."""

import torch
from torch import nn

from clippedgossip.adapters.optimizer_hook import MixAfterStep


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
