"""Optimizers, schedules and local steps give what a loop over PyTorch's own modules gives."""

import copy
import math
from dataclasses import replace
from typing import Any

import networkx as nx
import pytest
import torch
from torch import nn
from torch.nn import functional

import clippedgossip as cg
from clippedgossip.errors import ConfigError, RunError
from clippedgossip.rules import Gossip
from clippedgossip.simulate import Setup, Training, train
from clippedgossip.step import SGD, AdamW, Averaged, HeavyBall, LearningRate, Optimizer
from clippedgossip.tasks import DataSet, unflatten
from clippedgossip.tasks.workers import Workers
from tests.rounding import assert_near, near
from tests.samples import sample_setup

ROUNDS = 5


def run_of(optimizer: Optimizer, steps: int, lr: LearningRate, model: str = "mlp") -> Setup:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(120) % 3
    shape = (1, 8, 8) if model == "cnn" else (6,)
    inputs = 2 * torch.randn(3, *shape, generator=generator)[labels]
    inputs += torch.randn(120, *shape, generator=generator)
    data = DataSet.of(inputs, labels, inputs[:60], labels[:60], name="tiny")
    chosen = Training(
        rounds=ROUNDS, evaluate_every=ROUNDS, optimizer=optimizer, local_steps=steps, lr=lr, evaluate_last=0
    )
    return sample_setup(data, Gossip(), None, chosen, model=model)


def torch_optimizer(chosen: Optimizer, parameters: list[Any]) -> torch.optim.Optimizer:
    if isinstance(chosen, AdamW):
        betas, decay = (chosen.beta1, chosen.beta2), chosen.weight_decay
        return torch.optim.AdamW(parameters, 1.0, betas, chosen.epsilon, decay)
    # PyTorch's first momentum is the gradient too, whatever its dampening.
    momentum = dampening = 0.0
    if isinstance(chosen, HeavyBall):
        momentum = chosen.beta
    if isinstance(chosen, Averaged):
        momentum = dampening = 1 - chosen.alpha
    return torch.optim.SGD(parameters, 1.0, momentum, dampening, chosen.weight_decay)


def plain_loop(run: Setup) -> tuple[torch.Tensor, float]:
    """Models after the last round and the mean of its losses, in float64."""
    training, task = run.training, run.task
    workers = Workers([task], **training.drawing)
    weights = torch.tensor(run.network.weights)
    modules = [unflatten(task.initial(), copy.deepcopy(task.module)).double() for _ in task.nodes]
    optimizers = [torch_optimizer(training.optimizer, list(module.parameters())) for module in modules]
    losses: list[float] = []
    for round in range(training.rounds):
        losses = []
        for h in range(training.local_steps):
            x, y = workers.draw(workers.shares, round * training.local_steps + h)
            for i, (module, optimizer) in enumerate(zip(modules, optimizers, strict=True)):
                optimizer.param_groups[0]["lr"] = training.rate(round)
                optimizer.zero_grad()
                loss = task.loss(module, x[i].double(), y[i])
                loss.backward()  # type: ignore[no-untyped-call]  # PyTorch's
                if training.optimizer.clip_gradient is not None:
                    torch.nn.utils.clip_grad_norm_(module.parameters(), training.optimizer.clip_gradient)
                optimizer.step()
                losses.append(float(loss.detach()))
        flat = [torch.cat([p.detach().flatten() for p in module.parameters()]) for module in modules]
        for module, mixed in zip(modules, weights @ torch.stack(flat), strict=True):
            unflatten(mixed, module)
    last = [torch.cat([p.detach().flatten() for p in module.parameters()]) for module in modules]
    return torch.stack(last), math.fsum(losses) / len(losses)


@pytest.mark.parametrize(
    "optimizer",
    [
        HeavyBall(0.8),
        HeavyBall(0.8, weight_decay=0.05, clip_gradient=0.7),
        Averaged(0.3, clip_gradient=0.5),
        SGD(),
        SGD(weight_decay=0.1, clip_gradient=0.5),
        AdamW(weight_decay=0.1, epsilon=1e-3),  # with 1e-8 the sign of a rounding error is a whole step
        AdamW(beta1=0.5, beta2=0.9, epsilon=1e-3, clip_gradient=0.5),
    ],
    ids=repr,
)
@pytest.mark.parametrize("steps", [1, 3])
def test_local_steps_are_those_of_a_plain_loop(optimizer: Optimizer, steps: int) -> None:
    lr = LearningRate(initial=0.1, schedule="cosine", warmup=2)
    run = run_of(optimizer, steps, lr)
    models, loss = plain_loop(run)
    *_, last = train(run)
    # Both round 15 steps of products of length 64 or less; AdamW divides by small numbers.
    assert_near(last.state().tensors["models"].double(), models, dtype=torch.float32)
    assert last.record is not None
    assert last.record.loss == near(loss, dtype=torch.float32)


def test_workers_that_train_one_by_one_take_the_same_steps() -> None:
    run = run_of(AdamW(clip_gradient=1.0, epsilon=1e-3), 2, LearningRate(initial=0.01), model="cnn")
    run.task.module.eval()
    assert not Workers([run.task]).stacks  # on a CPU convolutions are computed worker by worker
    for layer in run.task.module:  # type: ignore[attr-defined]  # a Sequential; no dropout in the loop
        if isinstance(layer, torch.nn.Dropout):
            layer.p = 0.0
    models, _ = plain_loop(run)
    *_, last = train(run)
    assert_near(last.state().tensors["models"].double(), models, dtype=torch.float32)


@pytest.mark.parametrize("optimizer", [AdamW(), SGD(), HeavyBall()], ids=repr)
def test_a_run_with_local_steps_resumes_to_the_same_models(optimizer: Optimizer) -> None:
    lr = LearningRate(initial=0.05)
    whole = [moment.state() for moment in train(run_of(optimizer, 2, lr))]
    assert set(whole[0].tensors) == {"models", "clips", "drawn", *optimizer.slots}
    *_, last = train(run_of(optimizer, 2, lr), state=whole[1])
    for name, tensor in last.state().tensors.items():
        assert torch.equal(tensor, whole[-1].tensors[name])


def test_a_poison_gets_the_round_in_each_local_step() -> None:
    seen: list[int] = []

    def poison(x: Any, y: Any, round: Any) -> tuple[Any, Any]:
        seen.append(int(round))
        return x, y

    run = run_of(SGD(), 3, LearningRate())
    task = replace(run.task, poison=poison, poisoned=torch.tensor([0]))
    assert len(list(train(replace(run, task=task), device="cpu"))) == ROUNDS
    assert seen == [round for round in range(ROUNDS) for _ in range(3)]


class Returns(SGD):
    """An own optimizer that returns something else than x½."""

    made: Any

    def step(self, x: torch.Tensor, g: torch.Tensor, *rest: Any) -> Any:
        return self.made(x)


@pytest.mark.parametrize("model", ["mlp", "cnn"])
@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda x: x[:, :1], r"returns \(\d+, 1\) for x of shape \(\d+, \d\d+\)"),
        (lambda x: None, "returns None"),
    ],
    ids=["one number", "nothing"],
)
def test_a_step_must_return_all_of_the_model(made: Any, said: str, model: str) -> None:
    optimizer = Returns()
    object.__setattr__(optimizer, "made", made)
    with pytest.raises(RunError, match=f"step of Returns {said}.*\nreturn x½, of the shape of x"):
        next(iter(train(run_of(optimizer, 1, LearningRate(), model), device="cpu")))


@pytest.mark.parametrize("name", ["models", "buffers", "clips", "sent", "memory"])
def test_a_slot_has_a_name_of_its_own_in_a_checkpoint(name: str) -> None:
    with pytest.raises(ConfigError, match=f"has a slot '{name}'"):
        type("Own", (SGD,), {"slots": (name,)})()


def test_schedules_have_their_values() -> None:
    cosine = LearningRate(initial=0.4, schedule="cosine", warmup=4)
    assert [cosine.at(t, 12) for t in (0, 3, 4, 8)] == near([0.1, 0.4, 0.4, 0.2])
    assert cosine.at(12, 12) == near(0)
    drops = LearningRate(initial=1.0, drops=(2, 5), warmup=2)
    assert [drops.at(t, 9) for t in (0, 1, 2, 4, 5)] == near([0.5, 1.0, 0.1, 0.1, 0.01])
    assert LearningRate(initial=0.3, schedule="constant").at(7, 9) == 0.3


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: LearningRate(schedule="cosine", drops=(3,)), "leave the drops out"),
        (lambda: LearningRate(schedule="cosin"), "cosine"),  # type: ignore[arg-type]  # the wrong type is what is tested
        (lambda: LearningRate(warmup=-1), "at least 0"),
        (lambda: LearningRate(initial=math.nan), "nan; it must be above 0, from 1e-37 to 1e\\+38"),
        (lambda: LearningRate(initial=1e39), "1e-37 to 1e\\+38"),
        (lambda: LearningRate(initial=1e-46), "1e-37 to 1e\\+38"),
        (lambda: LearningRate(drops=(1, 2), factor=1e200), "inf after its drops"),
        (lambda: LearningRate(drops=(1,), factor=1e-99), "1e-101 after its drops"),
        (lambda: SGD(weight_decay=-1), "at least 0"),
        (lambda: SGD(clip_gradient=0), "above 0"),
        (lambda: AdamW(beta2=1), "below 1"),
        (lambda: AdamW(epsilon=0), "above 0"),
        (lambda: Training(local_steps=0), "local_steps is 0"),
    ],
)
def test_numbers_out_of_range_are_refused(make: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make()


def test_an_epoch_in_one_batch_is_gradient_descent() -> None:
    """Every sample once: no chance is left in the gradient, while batches at random have some."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 6, generator=generator), torch.arange(60) % 3
    network, model = cg.Network(nx.complete_graph(3)), nn.Linear(6, 3)
    rows = [range(20), range(20, 40), range(40, 60)]
    whole = {
        batches: cg.train(
            network,
            (x, y, x, y),
            model,
            rule="gossip",
            partition=rows,
            batch=20,
            batches=batches,
            rounds=4,
            lr=0.5,
            momentum=0.0,
            device="cpu",
            progress=False,
        )
        .finish()
        .models.double()
        for batches in ("epochs", "same-epochs", "random")
    }
    exact = copy.deepcopy(model).double()  # of equal models on a complete graph the mean is one step on all
    for _ in range(4):
        parameters = list(exact.parameters())
        gradients = torch.autograd.grad(functional.cross_entropy(exact(x.double()), y), parameters)
        stepped = [(p - 0.5 * g).flatten() for p, g in zip(parameters, gradients, strict=True)]
        unflatten(torch.cat(stepped).detach(), exact)
    wanted = torch.cat([p.detach().flatten() for p in exact.parameters()]).expand(3, -1)
    for batches in ("epochs", "same-epochs"):
        assert_near(whole[batches], wanted, dtype=torch.float32)
    assert (whole["random"] - wanted).abs().max() > 0.01
