"""Compilers and CUDA graphs that are wrong, at once or later, by much or by little: found, and not used."""

import logging
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from math import nan
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

import networkx as nx
import pytest
import torch
from torch import Tensor, nn

from clippedgossip import Network, devices
from clippedgossip.attacks import ATTACKS
from clippedgossip.devices import CAPTURE
from clippedgossip.errors import MiscompiledError, RunError
from clippedgossip.rules import ClippedGossip, TrimmedMean
from clippedgossip.runs.config import RunConfig
from clippedgossip.runs.execute import execute
from clippedgossip.simulate import Setup, Training, engine, train, train_together
from clippedgossip.simulate.engine import Mixer, Stack
from clippedgossip.simulate.selfcheck import Reference, rows_compared, wrong_models
from clippedgossip.step import SGD, AdamW, Averaged, HeavyBall, LearningRate, LocalStep, Optimizer
from clippedgossip.tasks import DataSet, Workers
from tests.rounding import assert_near
from tests.samples import sample_setup

Gradients = list[Tensor]
FAULTS: dict[str, Callable[[Gradients], Gradients]] = {
    "none": lambda gradients: [gradient * (1 + 1e-5) for gradient in gradients],
    "too large": lambda gradients: [gradient * 1.1 for gradient in gradients],
    "NaN": lambda gradients: [gradient * torch.nan for gradient in gradients],
    "the wrong way round": lambda gradients: [gradient.flip(-1) for gradient in gradients],
    "one small parameter": lambda gradients: [*gradients[:-1], 0.5 * gradients[-1]],
}
WRONG = [fault for fault in FAULTS if fault != "none"]


OPTIMIZERS = [
    HeavyBall(0.9),
    Averaged(0.2, weight_decay=0.1, clip_gradient=0.5),
    SGD(weight_decay=0.1),
    AdamW(clip_gradient=0.1, weight_decay=0.01),
]


class BadCompiler:
    """Replaces `torch.compile`: after some calls its gradients are wrong."""

    def __init__(self, fault: str, *, after: int = 0) -> None:
        self.fault, self.after = fault, after
        self.calls = 0

    def __call__(self, function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        if "gradients" not in function.__name__:
            return function

        def compiled(*arguments: Any) -> Any:
            self.calls += 1
            gradients, *rest = function(*arguments)
            return (gradients if self.calls <= self.after else FAULTS[self.fault](gradients)), *rest

        return compiled


Compile = Callable[[BadCompiler], BadCompiler]


@pytest.fixture
def compile_with(monkeypatch: pytest.MonkeyPatch) -> Compile:
    """Compile on this CPU, with the compiler given."""

    def take(compiler: BadCompiler) -> BadCompiler:
        monkeypatch.setattr(Workers, "compiles", True)
        monkeypatch.setattr(torch, "compile", compiler)
        return compiler

    monkeypatch.setattr(devices, "_COMPILED", {})
    monkeypatch.setattr(devices, "_DISTRUST", set())
    return take


def ours(warned: pytest.WarningsRecorder) -> list[str]:
    """What we warned of: PyTorch may warn of other things, once in a process."""
    return [str(w.message) for w in warned if w.category is RuntimeWarning]


def setup(*, model: str | nn.Module = "mlp", **training: Any) -> Setup:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(120) % 3
    inputs = torch.randn(3, 6, generator=generator)[labels] + torch.randn(120, 6, generator=generator)
    data = DataSet.of(inputs, labels, inputs[:60], labels[:60], name="tiny")
    chosen = Training(**({"rounds": 6} | training), lr=LearningRate(initial=0.1))
    return sample_setup(data, ClippedGossip(radius=0.5), None, chosen, model=model)


def small_run() -> RunConfig:
    return RunConfig.from_mapping(
        {
            "device": "cpu",
            "network": {"name": "ring", "nodes": 4},
            "data": {"name": "digits", "samples": 200, "test_samples": 50},
            "model": "linear",
            "rule": "clipped-gossip",
            "training": {"rounds": 12, "batch": 4, "evaluate_every": 3},
        }
    )


def models(run: Setup) -> Tensor:
    *_, last = train(run)
    return last.state().tensors["models"]


@pytest.mark.parametrize("fault", WRONG)
def test_a_compiler_that_is_wrong_is_not_used(fault: str, compile_with: Compile) -> None:
    right = models(setup())
    compiler = compile_with(BadCompiler(fault))
    with pytest.warns(RuntimeWarning, match="compiles `gradients` wrongly") as warned:
        found = models(setup())
    assert len(ours(warned)) == 1
    assert compiler.calls == 1
    assert torch.equal(found, right)


def stop(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("kind", [torch._dynamo.exc.TorchRuntimeError, AssertionError])
def test_what_cannot_be_compiled_trains_uncompiled(compile_with: Compile, kind: type[Exception]) -> None:
    """Some errors of the compiler are of Python's own types."""
    right = models(setup())
    raised_there = FunctionType(stop.__code__, {"__name__": "torch._dynamo.guards"})

    class Fails(BadCompiler):
        def __call__(self, function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
            def compiled(*arguments: Any) -> Any:
                raised_there(kind("no rule for this\nmore"))

            return compiled if "gradients" in function.__name__ else function

    compile_with(Fails("too large"))
    with pytest.warns(RuntimeWarning, match="cannot compile `gradients` of this model.*no rule for this$"):
        found = models(setup())
    assert torch.equal(found, right)


class InPlace(Optimizer):
    """Changes the gradient that it is given."""

    def step(self, x: Tensor, g: Tensor, held: Any, lr: Tensor, numbers: Any) -> Tensor:
        return x - lr * g.mul_(0.5)


def test_an_optimizer_may_change_the_gradient_in_place(compile_with: Compile) -> None:
    right = models(setup(optimizer=InPlace()))
    compile_with(BadCompiler("none", after=100))
    assert torch.equal(models(setup(optimizer=InPlace())), right)


def test_a_user_is_told_before_the_first_function_is_compiled(
    compile_with: Compile, capsys: pytest.CaptureFixture[str]
) -> None:
    class Slow(BadCompiler):
        def __call__(self, function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
            def compiled(*arguments: Any) -> Any:
                print(function.__name__, file=sys.stderr)
                return function(*arguments)

            return compiled

    compile_with(Slow("none"))
    models(setup(model=nn.Linear(6, 3), rounds=1))
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("compiling Linear for the GPU: about ")
    assert said[1] == "draw"


class Talking(nn.Linear):
    """A model that the compiler does not take as one graph."""

    def forward(self, x: Tensor) -> Tensor:
        logging.getLogger("talking").debug("%s", x.shape)
        return super().forward(x)


def test_what_the_compiler_stops_at_is_named_by_its_line(
    compile_with: Compile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would leave out the model without a word, and every round would be slow."""
    monkeypatch.setattr("clippedgossip.tasks.workers.batched_on_cpu", lambda module: True)
    compile_, line, model = torch.compile, Talking.forward.__code__.co_firstlineno + 1, Talking(6, 3)
    right = models(setup(model=model))
    compile_with(lambda function, fullgraph, **_: compile_(function, backend="eager", fullgraph=fullgraph))  # type: ignore[arg-type]  # a good compiler
    with pytest.warns(RuntimeWarning, match="cannot compile `gradients` of this model") as warned:
        found = models(setup(model=model))
    (said,) = [words for words in ours(warned) if words.startswith("PyTorch cannot compile")]
    assert said.splitlines()[1] == f"see {__file__}, line {line}"
    assert_near(found, right)


def test_a_loss_near_zero_is_not_compared_by_its_digits() -> None:
    """A softmax is rounded to 1e-7 of 1, so a loss of 1e-6 has no more than one digit."""
    model = nn.Linear(3, 3, bias=False)
    model.weight.data = 14 * torch.eye(3)
    found = reference(one_input_a_class(model, torch.eye(3)))
    *gradients, losses = found.plain
    assert losses.max() < 2e-6
    assert found.wrong_gradients(gradients, losses + 1e-4) is None
    assert found.wrong_gradients(gradients, losses + 1e-3) is not None


@pytest.mark.parametrize(("bias", "right"), [(-1.0, True), (-1.1, False)])
def test_a_switch_that_rounding_turns_is_no_fault(bias: float, right: bool) -> None:
    """Plain code leaves every ReLU off; the result in question has switched one on, of each worker. At models
    that differ by rounding plain code does the same, or it does not."""
    first = nn.Linear(1, 64)
    first.weight.data.fill_(1.0)
    first.bias.data.fill_(bias)
    model = nn.Sequential(first, nn.ReLU(), nn.Linear(64, 3))
    found = reference(one_input_a_class(model, torch.ones(3, 1)))
    *gradients, losses = (piece.clone() for piece in found.plain)
    assert not gradients[0].any()
    gradients[0][:, 0] = 0.1
    assert (found.wrong_gradients(gradients, losses) is None) == right


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_rounding_is_no_fault(precision: str, compile_with: Compile) -> None:
    compiler = compile_with(BadCompiler("none"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        models(setup(precision=precision, rounds=70))
    assert compiler.calls == 1 + 70


@pytest.mark.parametrize("fault", WRONG)
def test_a_round_that_is_wrong_ends_a_run_and_says_so(fault: str, compile_with: Compile) -> None:
    compile_with(BadCompiler(fault, after=4))  # once before the first round
    said = (
        r"the gradient of \S+, off by .*, where rounding explains .* in round 4\nif the run .* not compiled"
    )
    with pytest.raises(MiscompiledError, match=said):
        models(setup())


def test_a_run_starts_again_without_what_was_wrong(tmp_path: Path, compile_with: Compile) -> None:
    config = small_run()
    right = execute(config, tmp_path / "right")
    compile_with(BadCompiler("too large", after=4))
    with pytest.warns(RuntimeWarning, match="wrongly") as warned:
        found = execute(config, tmp_path / "found")
    assert len(ours(warned)) == 1
    assert found.records_path.read_bytes() == right.records_path.read_bytes()


def test_a_gpu_that_is_wrong_uncompiled_too_ends_the_run(
    compile_with: Compile, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_with(BadCompiler("too large"))
    check = Reference.wrong_gradients
    monkeypatch.setattr(
        Reference, "wrong_gradients", lambda self, found, *rest: check(self, [2 * g for g in found], *rest)
    )
    with pytest.warns(RuntimeWarning), pytest.raises(RunError, match=r"also uncompiled.*\ntake --device cpu"):
        models(setup())


def test_every_row_is_compared_in_time_and_the_last_row_first() -> None:
    for n in (1, 5, 9, 17, 320):
        assert n - 1 in rows_compared(n, 0)
        looked_at = {int(row) for round in range(n) for row in rows_compared(n, round)}
        assert looked_at == set(range(n))
        assert len(set(rows_compared(n, 3).tolist())) == min(n, 8)
    of_runs = {int(row) // 20 for power in range(5) for row in rows_compared(320, 2**power - 1)}
    assert len(of_runs) > 8  # of sixteen runs that are stacked


def one_input_a_class(model: nn.Module, inputs: Tensor) -> Setup:
    labels = torch.arange(120) % 3
    data = DataSet.of(inputs[labels], labels, inputs, labels[:3], name="classes")
    return sample_setup(data, ClippedGossip(radius=0.5), None, Training(rounds=6), model=model)


def reference(run: Setup | None = None) -> Reference:
    run = run or setup()
    models = run.task.initial().expand(7, -1).clone()
    workers = Workers([run.task])
    return Reference(workers, models, workers.initial_buffers(), torch.tensor(0))


def test_one_worker_s_fault_is_found_beside_others_of_any_size() -> None:
    found = reference()
    *gradients, losses = (piece.clone() for piece in found.exact)
    assert found.wrong_gradients(gradients, losses) is None
    for pieces in (found.exact, found.plain, gradients):
        for piece in pieces[:4]:
            piece[0] *= 1e8
            piece[1] *= torch.nan
    assert found.wrong_gradients(gradients, losses) is None  # the second is past comparing
    gradients[2][2] *= -1
    fault = found.wrong_gradients(gradients, losses)
    assert fault is not None
    assert "off by 2 of" in str(fault)


def test_a_few_workers_may_be_off_by_more_than_most() -> None:
    found = reference()
    *gradients, losses = (piece.clone() for piece in found.exact)
    for worker in range(3):
        gradients[0][worker] *= 1.08
        assert found.wrong_gradients(gradients, losses) is None
    gradients[0][3] *= 1.08
    assert found.wrong_gradients(gradients, losses) is not None


def test_most_are_most_of_those_that_can_be_compared() -> None:
    found = reference()
    *gradients, losses = (piece.clone() for piece in found.exact)
    for piece in (*found.exact, *found.plain):
        piece[:4] *= torch.nan
    assert found.wrong_gradients(gradients, losses) is None
    gradients[0] *= 1.08
    assert found.wrong_gradients(gradients, losses) is not None
    losses[5] *= 1.08
    assert "the loss" in str(found.wrong_gradients(found.plain[:-1], losses))


def test_wrong_losses_and_batches_are_found() -> None:
    found = reference()
    *gradients, losses = found.exact
    fault = found.wrong_gradients(gradients, 1.2 * losses)
    assert fault is not None
    assert fault.what == "the loss"
    assert found.batch_differs(found.x, found.y) is None
    x = found.x.clone()
    x[3, 2] = x[3, 1]
    assert found.batch_differs(x, found.y) is not None
    assert found.batch_differs(found.x, (found.y + 1) % 3) is not None


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_wrong_half_steps_and_models_are_found(optimizer: Optimizer) -> None:
    found = reference()
    local = LocalStep(found.workers, optimizer)
    local.set(5, 0, 0.1)
    gradients = [piece.float() for piece in found.exact[:-1]]
    before = [0.01 * torch.ones_like(slot) for slot in local.state.values()]
    slots, half = [slot.clone() for slot in before], torch.empty_like(found.models)
    optimizer.update(found.models, half, gradients, slots, local.clock.lr, local.clock.numbers)
    given = {"the half-step": half} | dict(zip(local.state, slots, strict=True))
    assert found.wrong_half_step(given, gradients, before, local) is None
    for name, right in given.items():
        wrong = right.clone()
        wrong[2] *= 1.001
        fault = found.wrong_half_step(given | {name: wrong}, gradients, before, local)
        assert fault is not None
        assert fault.what == name
    diverged = half.clone()
    diverged[1] *= torch.nan
    assert wrong_models("mixing", diverged, diverged) is None
    assert wrong_models("mixing", diverged, half) is not None


Spoil = Callable[[Stack], object]


def spoil_gradients(stack: Stack) -> None:
    for piece in stack.local_step.found[True][0]:
        piece *= 2


def spoil_half_steps(stack: Stack) -> None:
    stack.half[-1] += 1e-5


def spoil_models(stack: Stack) -> None:
    last = stack.models[stack.parts[-1]]
    last.copy_(last.roll(1, 0))


class Replay:
    """Replaces CUDA graphs: the first round is right, later rounds are spoilt."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, spoil: Spoil) -> None:
        self.rounds, self.spoil, self.capturing = 0, spoil, False
        monkeypatch.setattr(Workers, "compiles", True)
        monkeypatch.setattr(torch, "compile", lambda function, **options: function)
        monkeypatch.setattr(Stack, "captures", property(lambda stack: devices.trusted(CAPTURE)))
        monkeypatch.setattr(engine, "CapturedWork", lambda work, changed: Replayed(self, work))
        monkeypatch.setattr(devices, "capturing", lambda: self.capturing)


class Replayed:
    """A round that is done again and then spoilt. As in a CUDA graph, the gradients that the first call
    captures hold no values before the second."""

    def __init__(self, replay: Replay, work: MethodType) -> None:
        self.replay, self.work, self.replays = replay, work, False
        self.stack: Stack = work.__self__  # type: ignore[assignment]  # a method of the stack

    def __call__(self) -> None:
        self.replay.rounds += 1
        self.replay.capturing = self.replays
        self.work()
        self.replay.capturing = False
        if self.replays:
            self.replay.spoil(self.stack)
        else:
            gradients, losses = self.stack.local_step.found[False]
            self.stack.local_step.found[True] = [piece * nan for piece in gradients], losses * nan
        self.replays = True


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [(spoil_models, "mixing"), (spoil_half_steps, "the half-step")],
    ids=["mixing", "half-step"],
)
def test_a_round_that_is_repeated_wrongly_is_left_uncaptured(
    spoil: Spoil, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compile_with: Compile
) -> None:
    config = small_run()
    right = execute(config, tmp_path / "right")
    replay = Replay(monkeypatch, spoil)
    said = f"replays round 2 wrongly: {fault}, off by .*\nif the run starts again, .* not captured"
    with pytest.warns(RuntimeWarning, match=said):
        found = execute(config, tmp_path / "found")
    assert replay.rounds == 2
    assert found.records_path.read_bytes() == right.records_path.read_bytes()


def test_gradients_that_are_wrong_captured_alone_are_right_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compile_with: Compile
) -> None:
    config = small_run()
    right = execute(config, tmp_path / "right")
    Replay(monkeypatch, spoil_gradients)
    with pytest.warns(RuntimeWarning) as warned:
        found = execute(config, tmp_path / "found")
    ways = ["not compiled", "not captured"]
    assert all(way in words for way, words in zip(ways, ours(warned), strict=True))
    assert found.records_path.read_bytes() == right.records_path.read_bytes()


def two_runs() -> list[Setup]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(120) % 3
    inputs = torch.randn(3, 6, generator=generator)[labels] + torch.randn(120, 6, generator=generator)
    data = DataSet.of(inputs, labels, inputs[:60], labels[:60], name="tiny")
    training = Training(
        rounds=20, lr=LearningRate(initial=0.5, drops=(3, 9)), optimizer=Averaged(0.2), evaluate_every=5
    )
    attack = ATTACKS["gaussian"]()
    return [
        sample_setup(data, ClippedGossip(radius=0.5), attack, training),
        sample_setup(data, TrimmedMean(trim=1), None, training, seed=1),
    ]


def runs_that_keep() -> list[Setup]:
    """An attack that remembers, and messages that come late."""
    gaussian, trimmed = two_runs()
    network = Network(nx.circulant_graph(7, [1, 2]), byzantine=[2, 5], delay=2)
    late = replace(gaussian, network=network, attack=ATTACKS["mimic"]())
    return [late, trimmed]


def last_states(runs: list[Setup]) -> list[dict[str, Tensor]]:
    *_, last = train_together(runs)
    return [moment.state().tensors for moment in last]


@pytest.mark.parametrize("runs", [two_runs, runs_that_keep])
def test_comparing_right_rounds_changes_nothing(
    runs: Callable[[], list[Setup]], monkeypatch: pytest.MonkeyPatch, compile_with: Compile
) -> None:
    right = last_states(runs())
    replay = Replay(monkeypatch, lambda stack: None)
    for ours, theirs in zip(last_states(runs()), right, strict=True):
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert replay.rounds == 20


@pytest.mark.parametrize("spoil", [spoil_models, spoil_half_steps, spoil_gradients])
def test_what_is_wrong_in_any_run_of_a_stack_is_found(
    spoil: Spoil, monkeypatch: pytest.MonkeyPatch, compile_with: Compile
) -> None:
    Replay(monkeypatch, spoil)
    with pytest.raises(MiscompiledError, match="round 2"):
        last_states(two_runs())


def test_no_memory_to_mix_again_is_no_fault_and_counts_no_clips(
    monkeypatch: pytest.MonkeyPatch, compile_with: Compile
) -> None:
    right = last_states(two_runs())
    Replay(monkeypatch, lambda stack: None)
    mix = Mixer.mix

    def mix_once(mixer: Mixer, half: Tensor, out: Tensor, *rest: Any) -> None:
        mix(mixer, half, out, *rest)
        if out.storage_offset() == 0 and out._base is not None and len(out._base) == len(out):
            raise torch.OutOfMemoryError

    monkeypatch.setattr(Mixer, "mix", mix_once)
    for ours, theirs in zip(last_states(two_runs()), right, strict=True):
        assert torch.equal(ours["clips"], theirs["clips"])


def test_rounds_of_a_module_that_reads_values_are_not_captured() -> None:
    class Own(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return self[0](x) if float(x.sum()) else x

    captures = []
    for kind in (nn.Sequential, Own):
        run = setup(model=kind(nn.Linear(6, 3)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says so
            stack = Stack([run], torch.device("cpu"), None)
        stack.device = torch.device("cuda")
        captures.append(stack.captures)
    assert captures == [True, False]


def test_there_are_only_so_many_other_ways() -> None:
    kind = ("a kind", object())
    said = [devices.distrust(kind) for _ in range(5)]
    assert said == ["not compiled: correct, but slower", None, None, None, None]


def test_a_run_that_goes_on_from_a_checkpoint_is_compared_again(compile_with: Compile) -> None:
    states = [moment.state() for moment in train(setup(rounds=20)) if moment.round == 11]
    compile_with(BadCompiler("too large", after=1))  # right on the starting models, wrong in round 12
    with pytest.raises(MiscompiledError, match="in round 12"):
        list(train(setup(rounds=20), state=states[0]))
