"""`cg.train`: what a newcomer writes works, and a mistake is told in two lines before the first round."""

import random
import sys
from collections.abc import Callable
from copy import deepcopy
from itertools import islice
from pathlib import Path
from typing import Any, cast

import networkx as nx
import numpy as np
import pandas
import pytest
import torch
from torch import Tensor, nn

import clippedgossip as cg
from clippedgossip.errors import ClippedGossipError, RunError, UserError
from clippedgossip.facade import TrainingRun
from clippedgossip.network import Network
from clippedgossip.simulate.setup import network_task
from clippedgossip.step import AdamW, Averaged, HeavyBall, LearningRate
from clippedgossip.tasks import DataSet, flatten
from tests.facade.interrupting import Interrupting
from tests.rounding import assert_near, near

SHORT: dict[str, Any] = {"rounds": 6, "evaluate_every": 2, "lr": 0.3, "device": "cpu"}


def start(network: Any, data: Any, model: Any, **options: Any) -> TrainingRun:
    return cg.train(network, data, model, **{"attack": cg.attacks.Dissensus(), **SHORT, **options})


UNTYPED: Any = start
"""For calls that a type checker refuses."""


def test_iterating_trains_and_iterating_again_gives_the_same_records(
    network: Network, data: DataSet, model: nn.Module
) -> None:
    before = flatten(model)
    run = start(network, data, model, rule=cg.rules.ClippedGossip(1.0))
    assert "round 0 of 6" in repr(run)
    seen = list(run)
    assert [record.round for record in seen] == [2, 4, 6]
    assert run.finished
    assert list(run) == seen == run.records
    assert run.accuracy == (seen[-1].accuracy or {})["all"]
    assert run.models.shape == (9, before.numel())
    torch.testing.assert_close(flatten(model), before, rtol=0, atol=0)  # the user's own is not trained
    assert f"accuracy {run.accuracy:.1%}" in repr(run)


def test_what_a_user_gets_prints_on_a_few_lines(network: Network, data: DataSet, model: nn.Module) -> None:
    run = start(network, data, model).finish()
    *_, moment = cg.simulate.train(run.setup)
    *_, end = cg.consensus(network, "gossip", torch.randn(10, 99), attack="ipm", rounds=2)
    for value in (network, data, run, run.setup, run.records[-1], moment, moment.state(), end):
        assert len(repr(value)) < 500, repr(value)


def test_it_is_the_run_of_a_setup(network: Network, data: DataSet, model: nn.Module) -> None:
    run = start(network, data, model, rule=cg.rules.ClippedGossip(0.5), momentum=0.8, seed=3, batch=16)
    training = cg.Training(
        rounds=6, evaluate_every=2, evaluate_last=0, lr=LearningRate(initial=0.3), optimizer=HeavyBall(0.8)
    )
    attack = cg.attacks.Dissensus()
    setup = cg.Setup(
        network=network,
        task=network_task(network, data, deepcopy(model), attack=attack, seed=3, batch=16),
        rule=cg.rules.ClippedGossip(0.5),
        attack=attack,
        training=training,
        seed=3,
    )
    assert run.records == [now.record for now in cg.simulate.train(setup) if now.record is not None]


def test_a_stopped_run_goes_on_to_the_same_end(network: Network, data: DataSet, model: nn.Module) -> None:
    whole = start(network, data, model).finish()
    stopped = start(network, data, model)
    first = list(islice(stopped, 1))
    assert stopped.records == first
    assert not stopped.finished
    assert stopped.finish() is stopped
    assert stopped.records == whole.records
    torch.testing.assert_close(stopped.models, whole.models, rtol=0, atol=0)


def test_after_an_interrupt_the_records_stay_and_the_run_can_go_on(
    network: Network, data: DataSet, model: nn.Module
) -> None:
    loss = Interrupting()
    start(network, data, model, loss=loss).finish()  # asks once what a sample needs
    loss.calls = 0
    whole = start(network, data, model, loss=loss).finish()
    loss.calls, loss.last = 0, loss.calls - 2  # one call in each of six rounds: in the fourth
    run = start(network, data, model, loss=loss)
    with pytest.raises(KeyboardInterrupt):
        run.finish()
    assert [record.round for record in run.records] == [2]
    assert run.accuracy == (whole.records[0].accuracy or {})["all"]
    assert run.finish().records == whole.records


def test_a_nodes_model_and_the_average_are_loaded_by_label(data: DataSet, model: nn.Module) -> None:
    graph = nx.relabel_nodes(nx.cycle_graph(5), dict(enumerate(["ann", "bob", "cy", "dee", "eve"])))
    run = start(Network(graph, byzantine=["bob"]), data, model)
    loaded = run.load(model, node="dee")
    assert loaded is model
    torch.testing.assert_close(flatten(model), run.models[2], rtol=0, atol=0)
    mean = run.models.double().mean(0).float()
    torch.testing.assert_close(flatten(run.load(model)), mean, rtol=0, atol=0)
    with pytest.raises(RunError, match=r"'bob' is Byzantine.*\n"):
        run.load(model, node="bob")
    with pytest.raises(RunError, match=r"unknown node 'an'; did you mean 'ann'\?"):
        run.load(model, node="an")
    with pytest.raises(RunError, match="does not have the 82 parameters"):
        run.load(nn.Linear(2, 2))


class Ordered(nn.Module):
    """Two layers of one shape, registered in one order or the other."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        for name in names:
            self.add_module(name, nn.Linear(2, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.get_submodule("last")(torch.tanh(self.get_submodule("inner")(x)))  # type: ignore[no-any-return]  # a module's call


def test_a_model_is_loaded_by_name(network: Network, data: DataSet) -> None:
    run = start(network, data, Ordered("inner", "last")).finish()
    one, other = run.load(Ordered("inner", "last"), node=0), run.load(Ordered("last", "inner"), node=0)
    assert torch.equal(one(data.test_x), other(data.test_x))


def test_a_loaded_model_gives_what_was_tested(network: Network, data: DataSet) -> None:
    def net(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        made = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))
        made[0].requires_grad_(False)
        return made

    run = start(network, data, net(0), attack="alie").finish()
    found = {
        node: float((run.load(net(1), node).eval()(data.test_x).argmax(1) == data.test_y).double().mean())
        for node in (None, *network.regular.tolist())
    }
    assert found.pop(None) == near(run.accuracy)
    last = run.records[-1]
    assert min(found.values()) == near(last.worst_accuracy)
    assert sum(found.values()) / len(found) == near(last.mean_accuracy)


@pytest.mark.parametrize("layer", [nn.Identity(), nn.Conv1d(1, 1, 1)], ids=["vmap", "each"])
def test_a_parameter_that_the_model_does_not_use_stays(
    layer: nn.Module, network: Network, data: DataSet
) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.layer, self.spare = nn.Linear(2, 2), layer, nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return cast(torch.Tensor, self.used(self.layer(x[:, None])[:, 0]))

    model = Net()
    run = start(network, data, model).finish()
    before, after = model.state_dict(), run.load(deepcopy(model)).state_dict()
    assert not torch.equal(after["used.weight"], before["used.weight"])
    assert_near(after["spare.weight"], before["spare.weight"])


def test_a_loss_that_depends_on_no_parameter_is_refused(
    network: Network, data: DataSet, model: nn.Module
) -> None:
    with pytest.raises(UserError, match=r"the loss depends on no parameter of the model.*\n"):
        start(network, data, model, loss=lambda outputs, y: outputs.detach().square().mean())


def test_a_run_that_has_not_begun_trains_when_it_is_asked(
    network: Network, data: DataSet, model: nn.Module
) -> None:
    frame = start(network, data, model).frame()
    assert list(frame["round"]) == [2, 4, 6]
    assert {"accuracy", "loss", "consensus_distance"} <= set(frame.columns)
    assert "clipped_edges" not in frame.columns


def test_a_network_with_groups_has_a_column_for_each(data: DataSet, model: nn.Module) -> None:
    network = Network(cg.graphs.dumbbell(clique=3))
    frame = start(network, data, model, attack=None, partition="clique").frame()
    assert {"accuracy", "accuracy clique A", "accuracy clique B"} <= set(frame.columns)


def test_without_pandas_a_frame_says_so(
    network: Network, data: DataSet, model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start(network, data, model).finish()
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(RunError, match=r"pandas is not installed\n"):
        run.frame()


def test_it_plots_on_new_axes_or_on_those_given(network: Network, data: DataSet, model: nn.Module) -> None:
    from matplotlib.figure import Figure

    run = start(network, data, model)
    axes = run.plot()
    line: Any = axes.lines[0]
    assert list(line.get_xdata()) == [2, 4, 6]
    assert list(line.get_ydata()) == [(record.accuracy or {})["all"] for record in run.records]
    assert line.get_color() == "#1f7fc4"  # ClippedGossip's colour in every report
    mine = Figure().add_subplot()
    assert run.plot(mine) is mine


def test_it_writes_a_page(network: Network, data: DataSet, model: nn.Module, tmp_path: Path) -> None:
    page = start(network, data, model).report(tmp_path / "page.html")
    text = page.read_text(encoding="utf-8")
    assert "<svg" in text
    assert "dissensus" in text
    with pytest.raises(RunError, match="cannot write"):
        start(network, data, model).report(tmp_path / "none" / "page.html")


def test_a_run_that_diverges_ends_with_a_warning_and_keeps_its_records(
    network: Network, data: DataSet, model: nn.Module
) -> None:
    run = start(network, data, model, rule="gossip", rounds=400, lr=1e37, evaluate_every=10)
    with pytest.warns(RuntimeWarning, match="diverged by round"):
        run.finish()
    assert run.finished
    assert run.diverged
    assert len(run.records) < 40


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"rule": "clipped-gossip"}, {"rule": cg.rules.ClippedGossip()}),
        (
            {"rule": {"name": "clipped-gossip", "radius": {"adaptive": 0.2}}},
            {"rule": cg.rules.ClippedGossip(cg.rules.Adaptive(0.2))},
        ),
        ({"rule": {"name": "trimmed-mean", "trim": "byzantine"}}, {"rule": cg.rules.TrimmedMean(1)}),
        ({"attack": "alie"}, {"attack": cg.attacks.ALIE()}),
        ({"attack": "label-flipping"}, {"attack": cg.attacks.LabelFlipping()}),
        ({"lr": 0.3}, {"lr": LearningRate(initial=0.3)}),
        ({"momentum": Averaged(0.1)}, {"optimizer": Averaged(alpha=0.1)}),
        (
            {"lr_schedule": "cosine", "lr_warmup": 2},
            {"lr": LearningRate(initial=0.3, schedule="cosine", warmup=2)},
        ),
        ({"optimizer": {"name": "momentum", "beta": 0.5}}, {"momentum": 0.5}),
        ({"optimizer": "adamw", "weight_decay": 0.1}, {"optimizer": AdamW(weight_decay=0.1)}),
        ({"partition": "dirichlet"}, {"partition": {"name": "dirichlet", "alpha": 0.5}}),
    ],
    ids=str,
)
def test_words_and_objects_mean_the_same(
    one: dict[str, Any], other: dict[str, Any], network: Network, data: DataSet, model: nn.Module
) -> None:
    assert start(network, data, model, **one).records == start(network, data, model, **other).records


def test_ones_own_things_go_by_module_and_name(
    network: Network, data: DataSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "our_things.py").write_text(OUR_THINGS)
    monkeypatch.syspath_prepend(str(tmp_path))
    words: dict[str, Any] = {
        "rule": {"name": "our_things:Half", "share": 0.25},
        "partition": "our_things:in_order",
        "attack": "our_things:Zeros",
    }
    run = start(network, data, {"name": "our_things:net", "width": 4}, **words)
    assert repr(run).startswith("TrainingRun(Half against Zeros on 10 nodes")
    assert run.setup.task.layout.size == 2 * 4 + 4 + 4 * 2 + 2
    assert run.setup.task.table[0, :3].tolist() == [0, 1, 2]
    assert "Half" in run.report(tmp_path / "page.html").read_text(encoding="utf-8")


OUR_THINGS = """
from dataclasses import dataclass

import torch
from clippedgossip.attacks import FreeAttack
from clippedgossip.mixing.inbox import from_neighbors
from clippedgossip.rules import LinearRule


@dataclass(frozen=True)
class Half(LinearRule):
    share: float = 0.5

    def coefficients(self, near):
        return from_neighbors(self.share * near.weights)


@dataclass(frozen=True)
class Zeros(FreeAttack):
    about: torch.Tensor = torch.zeros(1)

    def messages(self, view):
        return torch.zeros(len(view.receivers), view.models.shape[1])


def in_order(labels, nodes):
    return list(torch.arange(len(labels)).tensor_split(nodes))


def net(shape, classes, width: int):
    return torch.nn.Sequential(torch.nn.Linear(2, width), torch.nn.ReLU(), torch.nn.Linear(width, classes))
"""


def test_data_in_words_are_a_configs_section(network: Network) -> None:
    words: dict[str, Any] = {"name": "digits", "samples": 200, "test_samples": 50}
    run = start(network, words, "linear", partition={"name": "dirichlet", "alpha": 0.1}, rounds=1)
    assert (len(run.setup.task.data.train_y), int(run.setup.task.sizes.sum())) == (200, 200)
    with pytest.raises(UserError, match="partition is given in data and in partition"):
        start(network, {**words, "partition": "sorted"}, "linear", partition="dirichlet")


def test_shares_go_by_order_or_by_label(network: Network, data: DataSet, model: nn.Module) -> None:
    rows = [list(range(50 * k, 50 * k + 50)) for k in range(9)]
    by_label = dict(zip(network.regular.tolist(), rows, strict=True))
    assert (
        start(network, data, model, partition=rows).records
        == start(network, data, model, partition=by_label).records
    )


def test_data_is_a_data_set_four_arrays_or_a_name(network: Network, data: DataSet, model: nn.Module) -> None:
    arrays = [tensor.numpy() for tensor in (data.train_x, data.train_y, data.test_x, data.test_y)]
    assert start(network, tuple(arrays), model).records == start(network, data, model).records
    assert cg.train(network, attack="none", rounds=1, device="cpu").accuracy is not None  # digits and mlp


@pytest.mark.parametrize("draw", [lambda: torch.rand(()), np.random.rand, random.random])
def test_a_factory_starts_every_seed_from_other_weights(
    network: Network, data: DataSet, draw: Callable[[], Any]
) -> None:
    def make() -> nn.Module:
        made = nn.Linear(2, 2)
        nn.init.constant_(made.weight, float(draw()))
        return made

    state = torch.get_rng_state()
    starts = [start(network, data, make, seed=seed).setup.task.initial() for seed in (0, 0, 1)]
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(starts[0], starts[1])
    assert not torch.equal(starts[0], starts[2])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attack": None}, "1 Byzantine node, but there is no attack"),
        ({"rule": "cliped-gossip"}, "did you mean 'clipped-gossip'"),
        ({"rule": cg.rules.ClippedGossip}, "rule is the class ClippedGossip itself"),
        ({"attack": "disensus"}, "did you mean 'dissensus'"),
        ({"attack": 3}, "attack is an int"),
        ({"partition": "idd"}, "did you mean 'iid'"),
        ({"partition": {"name": "dirichlet", "alfa": 1}}, "did you mean 'alpha'"),
        ({"partition": {"name": "iid", "alpha": 1}}, "alpha goes with partition = 'dirichlet' alone"),
        ({"partition": [[0, 1]] * 3}, "3 shares, but 9 nodes train"),
        ({"partition": [[0, 1]] * 8 + [[]]}, "worker 9 holds no samples"),
        ({"partition": [slice(0, 10)] * 9}, "the shares are no rows: .*slice.*\nlist the numbers"),
        ({"partition": torch.arange(9)}, r"worker 0's share has shape \(\)"),
        ({"partition": {0: [0, 1]}}, "node 1 has no share"),
        ({"partition": {7: [0, 1]}}, "node 7 does not train"),
        ({"partition": [[0, 1]] * 8 + [[600]]}, "row 600; rows go from 0 to 499"),
        ({"partition": 3}, "partition is 3"),
        ({"lr": "fast"}, "lr is 'fast'; it must be a number"),
        ({"lr": -1.0}, "must be above 0"),
        ({"lr_schedule": "cosin"}, "did you mean 'cosine'"),
        ({"lr_shedule": "cosine"}, "unknown argument 'lr_shedule'; did you mean 'lr_schedule'"),
        ({"learning_rate": 0.1}, "unknown argument 'learning_rate'; here it is lr$"),
        ({"epochs": 3}, "unknown argument 'epochs'; here it is rounds"),
        (
            {"optimizer": torch.optim.SGD([torch.zeros(1)], lr=0.1)},
            "optimizer is a SGD of torch.optim.sgd\ngive a name: 'momentum', 'sgd', 'adamw'",
        ),
        ({"lr": LearningRate(), "lr_warmup": 3}, "lr_warmup is given beside a LearningRate"),
        ({"lr_factor": 0.5}, "lr_factor has no effect without lr_drops"),
        ({"optimizer": "adam"}, "known: adamw, momentum, sgd"),
        ({"optimizer": AdamW}, "optimizer is the class AdamW itself"),
        (
            {"loss": torch.nn.MSELoss},
            "loss is the class MSELoss itself\ngive a name: 'nll', .*; or make it a function",
        ),
        ({"loss": 0}, "loss is an int"),
        ({"metric": torch.nn.MSELoss}, "metric is the class MSELoss itself\ngive a name: 'accuracy', "),
        ({"metric": 3}, "metric is an int"),
        ({"out": 3}, "out is an int; give the folder for runs"),
        ({"optimizer": "sgd", "momentum": 0.5}, "momentum goes with the optimizer 'momentum'"),
        ({"momentum": 1.5}, "below 1"),
        ({"rounds": 0}, "rounds is 0"),
        ({"batch": 0}, "batch is 0"),
        ({"batch": 2.5}, "batch is 2.5"),
        ({"seed": -1}, "seed is -1"),
        ({"device": "gpu"}, "device is 'gpu'"),
        ({"precision": "float8"}, "unknown precision"),
        ({"loss": "msr"}, "unknown loss"),
    ],
    ids=str,
)
def test_a_mistake_is_told_before_the_first_round(
    options: dict[str, Any], message: str, network: Network, data: DataSet, model: nn.Module
) -> None:
    with pytest.raises(UserError, match=message) as told:
        start(network, data, model, **options)
    assert len(str(told.value).splitlines()) <= 2


def late_metric(outputs: Tensor, y: Tensor) -> float:
    return 1 / (0 if len(y) > 50 else 1)


def late_shape(outputs: Tensor, y: Tensor) -> Tensor:
    return torch.zeros(3 if len(y) > 50 else 1)


class LateRows(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = nn.Sequential.__call__(nn.Sequential(*self), x)
        return outputs[: 90 if len(x) > 50 else None]


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (late_metric, "with metric 'late_metric' raised in round 2: ZeroDivisionError"),
        (late_shape, r"metric 'late_shape' of a batch has shape \(3,\)"),
        (None, "LateRows with metric 'accuracy' raised in round 2: RuntimeError"),
    ],
)
def test_what_only_the_whole_test_shows_is_told(
    metric: Any, message: str, network: Network, data: DataSet, model: nn.Module
) -> None:
    assert isinstance(model, nn.Sequential)
    with pytest.raises(UserError, match=message) as told:
        start(network, data, LateRows(*model), metric=metric).finish()
    assert len(str(told.value).splitlines()) == 2


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda n, d, m: start(nx.petersen_graph(), d, m), "network is a Graph; give cg.Network"),
        (lambda n, d, m: start(n, (d.train_x, d.train_y), m), "data is a tuple of 2"),
        (lambda n, d, m: start(n, "digit", m), "did you mean 'digits'"),
        (lambda n, d, m: start(n, {"name": "digits", "sample": 9}, m), "did you mean 'samples'"),
        (lambda n, d, m: UNTYPED(n, d, m).report(3), "path is an int; give the name of a file"),
        (lambda n, d, m: UNTYPED(n, d, m).report(None), "path is None; give the name of a file"),
        (lambda n, d, m: UNTYPED(n, d, m).plot("loss"), "ax is a str; give matplotlib Axes"),
        (lambda n, d, m: start(n, d, "mpl"), "did you mean 'mlp'"),
        (lambda n, d, m: start(n, d, 3), "model is an int"),
        (lambda n, d, m: start(n, d, lambda: 3), "model makes an int"),
        (lambda n, d, m: start(n, d, nn.Linear), r"calling model\(\) raised TypeError"),
        (lambda n, d, m: start(n, d, "cnn"), "model 'cnn' needs images"),
        (lambda n, d, m: start(n, d, nn.Linear(3, 2)), r"cannot take inputs of shape \(2,\)"),
        (lambda n, d, m: start(n, d, nn.Linear(2, 3)), r"outputs of shape \(3, 3\)"),
    ],
)
def test_a_wrong_network_data_or_model_is_told(
    wrong: Callable[..., object], message: str, network: Network, data: DataSet, model: nn.Module
) -> None:
    with pytest.raises(ClippedGossipError, match=message) as told:
        wrong(network, data, model)
    assert len(str(told.value).splitlines()) <= 2


ARRAYS: list[Callable[[np.ndarray[Any, Any], np.ndarray[Any, Any]], tuple[Any, Any]]] = [
    lambda x, y: (x.astype("float64"), y.astype("int32")),
    lambda x, y: (x.astype("float64")[::-1][::-1], y.astype("uint8")),
    lambda x, y: (x.tolist(), y.tolist()),
    lambda x, y: (pandas.DataFrame(x), pandas.Series(y > 0)),
    lambda x, y: (torch.tensor(x, dtype=torch.float64, requires_grad=True), torch.tensor(y)),
]


@pytest.mark.parametrize("form", ARRAYS)
def test_data_of_any_number_type_trains_alike(
    form: Callable[..., tuple[Any, Any]], network: Network, data: DataSet, model: nn.Module
) -> None:
    train, test = (
        form(data.train_x.numpy(), data.train_y.numpy()),
        form(data.test_x.numpy(), data.test_y.numpy()),
    )
    run = start(network, (*train, *test), model, rounds=2)
    assert run.records == start(network, data, model, rounds=2).records


def test_numbers_of_numpy_are_numbers(network: Network, data: DataSet, model: nn.Module) -> None:
    options = {"rounds": np.int64(2), "batch": np.int32(8), "seed": np.int64(1), "lr": np.float32(0.5)}
    shares = np.arange(450).reshape(9, 50)
    run = start(network, data, model, partition=shares, **options)
    same = start(network, data, model, partition=shares.tolist(), rounds=2, batch=8, seed=1, lr=0.5)
    assert run.records == same.records


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: (x[:, 0], y), "each input is a single number"),
        (lambda x, y: ((10 * x).long(), y), r"if the model takes float32, give x.float\(\)"),
        (lambda x, y: (x / 0, y), "inputs are NaN or infinite"),
        (lambda x, y: ([[1.0], [1.0, 2.0]], [0, 1]), "train inputs of type list cannot be made a tensor"),
        (lambda x, y: (x, np.array(["a", "b"])[y]), "train targets of type <U1 cannot be made a tensor"),
        (lambda x, y: (x, y[:, None]), r"train targets have shape \(1,\) but test targets \(\)"),
        (lambda x, y: (x, y + 0.0), "train targets are torch.float32, but test targets torch.int64"),
        (lambda x, y: (x, y + 1), "the lowest label is 1; classes count from 0"),
        (lambda x, y: (x, y - 1), "labels go from -1 to 0"),
        (lambda x, y: (x[:5], y[:5]), "9 workers cannot share 5 samples"),
        (lambda x, y: (x, y[:9]), "500 train inputs for 9 labels"),
    ],
)
def test_data_that_cannot_be_used_is_told_with_a_fix(
    change: Callable[..., tuple[Any, Any]], message: str, network: Network, data: DataSet, model: nn.Module
) -> None:
    test_x = data.test_x[:, 0] if "single number" in message else data.test_x
    test_x = test_x.long() if "float32, give" in message else test_x
    with pytest.raises(UserError, match=message) as told:
        start(network, (*change(data.train_x, data.train_y), test_x, data.test_y), model)
    assert len(str(told.value).splitlines()) <= 2


class ReadsByName(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.inner(x)
        return scores + self.get_parameter("inner.bias")


@pytest.mark.parametrize(
    ("given", "module", "fix"),
    [
        (
            lambda x: {"pixels": x, "mask": x},
            nn.Linear(2, 2),
            r"as model\(pixels=…, mask=…\): give the inputs",
        ),
        (lambda x: (x, x), nn.Linear(2, 2), r"as model\(…, …\): give the inputs that its forward takes"),
        (lambda x: x, ReadsByName(), r"read a parameter as an attribute of the module, self\.layer\.weight"),
    ],
)
def test_a_model_that_cannot_be_called_is_told_with_a_fix(
    given: Callable[[Tensor], Any], module: nn.Module, fix: str, network: Network, data: DataSet
) -> None:
    with pytest.raises(UserError, match=fix) as told:
        start(network, (given(data.train_x), data.train_y, given(data.test_x), data.test_y), module)
    assert len(str(told.value).splitlines()) == 2


class Shrinks(nn.Module):
    """Its outputs lose classes after so many calls."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.inner, self.left = nn.Linear(64, 10), after

    def forward(self, x: Tensor) -> Tensor:
        self.left -= 1
        scores: Tensor = self.inner(x.flatten(1))
        return scores if self.left > 0 else scores[:, :2]


@pytest.mark.parametrize("after", range(2, 40, 4))
def test_a_module_that_changes_shape_in_training_is_named(after: int) -> None:
    network = Network(nx.cycle_graph(3))
    data = {"name": "digits", "samples": 200, "test_samples": 20}
    with pytest.raises(UserError) as caught:
        cg.train(network, data, Shrinks(after), rounds=60, batch=8, device="cpu", progress=False).finish()
    assert len(str(caught.value).splitlines()) == 2
    assert "shape" in str(caught.value)


def test_what_does_not_fit_is_refused_when_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clippedgossip.simulate.setup.free_memory", lambda device: 1000)
    with pytest.raises(
        RunError, match=r"3 workers with [\d,]+ parameters need about [\d,]+ bytes, .* 1,000 free"
    ):
        cg.train(Network(nx.cycle_graph(3)), device="cpu")


@pytest.mark.filterwarnings("ignore:a batch of")
def test_a_module_is_not_tried_with_a_batch_that_cannot_fit(
    network: Network, data: DataSet, model: nn.Module
) -> None:
    with pytest.raises(RunError, match=r"need about [\d,]+ bytes"):
        start(network, data, model, batch=10**13)


def test_models_are_tested_when_a_configs_run_would_test_them(
    network: Network, data: DataSet, model: nn.Module
) -> None:
    options = {name: said for name, said in SHORT.items() if name != "evaluate_every"}
    run = cg.train(network, data, model, attack="none", **options)
    assert run.setup.training.evaluate_every == cg.Training().evaluate_every
    assert run.setup.training.evaluate_last == cg.Training().evaluate_last
    assert start(network, data, model).setup.training.evaluate_last == 0  # said: every 2 rounds


def test_a_warning_points_at_the_users_line(network: Network, data: DataSet, model: nn.Module) -> None:
    rows = [[0, 1]] * 8 + [[2]]
    with pytest.warns(RuntimeWarning, match="larger than the smallest share, 1 sample of node 9") as seen:
        cg.train(network, data, model, attack=cg.attacks.Dissensus(), partition=rows, **SHORT)
    assert seen[0].filename == __file__
