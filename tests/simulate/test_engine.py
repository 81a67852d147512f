"""The training engine: Algorithm 1 as written, alone or together, stopped or not."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import networkx as nx
import pytest
import torch
from torch import nn
from torch.func import functional_call

from clippedgossip import graphs
from clippedgossip.attacks import ALIE, ATTACKS, Attack, BitFlipping, LabelFlipping, Tuned, make_attack
from clippedgossip.errors import ConfigError, NetworkError, RunError
from clippedgossip.mixing.inbox import Inbox
from clippedgossip.network import Network
from clippedgossip.rules import Bucketing, ClippedGossip, GeometricMedian, Gossip, Mozi, Rule, TrimmedMean
from clippedgossip.simulate import Moment, Setup, State, Training, train, train_together
from clippedgossip.simulate.engine import MessageLosses, Stack
from clippedgossip.step import Averaged, HeavyBall, LearningRate
from clippedgossip.tasks import DataSet, Workers, make_task, partition
from tests.rounding import assert_near
from tests.samples import sample_setup


def tiny_data(shape: tuple[int, ...] = (6,), classes: int = 3) -> DataSet:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(120) % classes
    centres = 2 * torch.randn(classes, *shape, generator=generator)
    inputs = centres[labels] + torch.randn(120, *shape, generator=generator)
    return DataSet.of(inputs, labels, inputs[:60], labels[:60], name="tiny")


def setup(
    rule: Rule | None = None,
    attack: Attack | None = None,
    *,
    seed: int = 0,
    model: str | nn.Module = "mlp",
    shape: tuple[int, ...] = (6,),
    **training: Any,
) -> Setup:
    chosen = Training(**({"rounds": 6, "evaluate_every": 2, "evaluate_last": 0} | training))
    rule = rule or ClippedGossip(radius=0.5)
    return sample_setup(tiny_data(shape), rule, attack, chosen, model=model, seed=seed)


def lines(moments: Iterable[Moment]) -> list[str]:
    return [str(moment.record) for moment in moments]


@pytest.mark.parametrize("momentum", [HeavyBall(beta=0.9), Averaged(alpha=0.1)])
def test_two_rounds_are_algorithm_1_written_out(momentum: HeavyBall | Averaged) -> None:
    run = setup(Gossip(), optimizer=momentum, lr=LearningRate(initial=0.1), rounds=2)
    task, workers = run.task, Workers([run.task])
    weights = torch.tensor(run.network.weights)
    models = task.initial().double().expand(7, -1).clone()
    held: list[torch.Tensor | None] = [None] * 7
    for now in range(2):
        x, y = workers.draw(workers.shares, now)
        half = []
        for i in range(7):
            parameters = {k: v.requires_grad_() for k, v in task.layout.views(models[i].clone()).items()}
            outputs = functional_call(task.module.double(), parameters, (x[i].double(),))
            loss = task.loss.of_outputs(outputs, y[i])
            g = torch.cat([p.flatten() for p in torch.autograd.grad(loss, list(parameters.values()))])
            before = held[i]
            if before is None:
                held[i] = g
            elif isinstance(momentum, HeavyBall):
                held[i] = 0.9 * before + g
            else:
                held[i] = 0.9 * before + 0.1 * g
            now_held = held[i]
            assert now_held is not None
            half.append(models[i] - 0.1 * now_held)
        models = weights @ torch.stack(half)
    task.module.float()
    *_, last = train(run)
    # Two steps of products of 64 numbers.
    assert_near(last.state().tensors["models"].double(), models, roundings=20, dtype=torch.float32)


def test_the_same_setup_gives_the_same_records() -> None:
    first, second = (lines(train(setup(attack=ALIE(z=1.0)))) for _ in range(2))
    assert first == second
    assert any("accuracy" in line for line in first)


@pytest.mark.parametrize("stop", [1, 3, 5])
def test_a_run_continues_from_any_round_to_the_same_records(stop: int, tmp_path: object) -> None:
    whole = lines(train(setup(attack=BitFlipping())))
    for moment in train(setup(attack=BitFlipping())):
        if moment.round == stop:
            moment.state().save(f"{tmp_path}/checkpoint")
            break
    state = State.load(f"{tmp_path}/checkpoint")
    assert state.round == stop
    rest = train(setup(attack=BitFlipping()), state=state)
    assert lines(rest) == whole[stop:]


def test_runs_together_give_what_they_give_alone() -> None:
    runs = [
        setup(ClippedGossip(radius=0.3), ALIE(z=2.0), seed=1),
        setup(GeometricMedian(), LabelFlipping(), seed=2),
        setup(TrimmedMean(trim=1), seed=3),
    ]
    together = list(train_together(runs))[-1]
    for run, moment in zip(runs, together, strict=True):
        *_, alone = train(run)
        assert_near(moment.state().tensors["models"], alone.state().tensors["models"])


@pytest.mark.parametrize("name", [name for name in ATTACKS if name != "tuned"])
def test_every_attack_trains_and_stays_finite_under_clipped_gossip(name: str) -> None:
    *_, last = train(setup(attack=make_attack(name)))
    assert torch.isfinite(last.state().tensors["models"]).all()


def test_a_tuned_attack_in_training() -> None:
    *_, last = train(setup(attack=Tuned(ALIE(z=1.0), steps=3, refinements=1)))
    assert torch.isfinite(last.state().tensors["models"]).all()


@pytest.mark.parametrize("rule", [Mozi(), Bucketing(Mozi()), Bucketing(TrimmedMean(trim=1))])
def test_rules_that_need_the_engine(rule: Rule) -> None:
    *_, last = train(setup(rule, lr=LearningRate(initial=0.2), rounds=60))
    assert last.record is not None
    assert last.record.accuracy is not None
    assert (last.record.accuracy["all"] or 0) > 0.8


class Steepest(Gossip):
    """A rule of the user's own that takes gradients of what it receives."""

    def mix(self, inbox: Inbox) -> torch.Tensor:
        with torch.enable_grad():
            models = (1.0 * inbox.models).requires_grad_()
            (slope,) = torch.autograd.grad((models * models).sum(), models)
        return super().mix(replace(inbox, models=slope / 2))


def test_a_rule_of_the_users_own_may_take_gradients() -> None:
    assert lines(train(setup(Steepest()))) == lines(train(setup(Gossip())))


@pytest.mark.parametrize("size", [1, 4, 1000])
@pytest.mark.parametrize("attack", [None, "ipm", "gaussian", "non-finite", "label-flipping"])
@pytest.mark.parametrize("rule", [Mozi(), Bucketing(Mozi())])
def test_messages_tried_together_have_the_losses_they_have_one_by_one(
    rule: Rule, attack: str | None, size: int
) -> None:
    attacked = None if attack is None else make_attack(attack)
    stack = Stack([setup(), setup(rule, attacked, seed=1)], torch.device("cpu"), None)
    stack.advance()
    mixer, part = stack.mixers[1], stack.parts[1]
    losses = mixer.message_losses
    assert isinstance(losses, MessageLosses)
    losses.size = size
    regular = slice(part.start, part.start + mixer.regular)
    (near,) = mixer.inbox(stack.models[part], 3, 6).neighborhoods()
    if isinstance(mixer.rule, Bucketing):
        near = near.mapped(*mixer.rule.premix(near))
    x, y = stack.workers.draw(stack.workers.shares, 3, "mozi")
    places = range(near.weights.shape[1] + 1)
    shares, mine = stack.workers.shares, (x[regular], y[regular])
    one_by_one = [stack.workers.losses_of(shares, near.message(place), *mine) for place in places]
    found = losses(near)
    assert found.isfinite().all()
    there = near.closed_present
    # Losses are float32: a product of 64 features, an exponential and a logarithm, summed in another order.
    assert_near(found[there].float(), torch.stack(one_by_one, 1)[there], roundings=64)


@pytest.mark.parametrize("size", [1, 4, 1000])
@pytest.mark.parametrize("attack", [None, "ipm", "non-finite"])
@pytest.mark.parametrize(
    ("rule", "graph", "schedule"),
    [
        (Mozi(keep=0.4), nx.lollipop_graph(7, 3), None),  # 1 to 7 neighbours
        (Mozi(keep=0.4), nx.complete_graph(9), {"name": "churn", "leave": 0.3}),
        (Mozi(keep=0.4), nx.complete_graph(9), {"name": "random-neighbours", "neighbours": 5}),
        (Bucketing(Mozi(keep=0.4)), nx.circulant_graph(9, [1, 2, 4]), None),
    ],
    ids=["few and many", "churn", "random neighbours", "bucketing"],
)
def test_mozi_tries_own_and_kept_models_alone(
    rule: Rule, graph: Any, schedule: Any, attack: str | None, size: int
) -> None:
    attacked = None if attack is None else make_attack(attack)
    network = Network(graph, byzantine=[2] if attacked else [], schedule=schedule)
    run = sample_setup(tiny_data(), rule, attacked, Training(rounds=3), network=network, model="mlp")
    stack, passes = Stack([run]), list[torch.Tensor]()
    (mixer,) = stack.mixers
    losses = mixer.message_losses
    assert isinstance(losses, MessageLosses)
    losses.size, losses_of = size, losses._losses_of

    def counted(models: torch.Tensor, *batch: Any) -> Any:
        passes.append(models)
        return losses_of(models, *batch)

    vars(losses)["_losses_of"] = counted
    for now in range(3):
        passes.clear()
        stack.advance()
        (near,) = mixer.inbox(stack.half, now, 3).measurable().neighborhoods()
        if isinstance(rule, Bucketing):
            near = near.mapped(*rule.premix(near))
        expected = []
        for (own, *received), present in zip(near.messages().double(), near.present.tolist(), strict=True):
            there = [message for message, is_there in zip(received, present, strict=True) if is_there]
            there.sort(key=lambda message: float((message - own).norm()))
            expected += [own, *there[: max(1, int(0.4 * len(there)))]]
        assert len({len(models) for models in passes[:-1]}) <= 1
        tried = torch.cat(passes).double()
        assert len(tried) == len(expected)
        # The coordinates' sum tells messages apart; averages of float32 models are rounded once each.
        found, wanted = (rows.sum(1).sort().values for rows in (tried, torch.stack(expected)))
        assert_near(found, wanted, roundings=run.task.layout.size, dtype=torch.float32)


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"network": nx.cycle_graph(5)}, "network is a Graph; give a Network: network=Network"),
        ({"rule": "clipped-gossip"}, "rule is a str; give a Rule"),
        ({"rule": ClippedGossip}, "rule is the class ClippedGossip itself; give a Rule"),
        ({"attack": "alie"}, "attack is a str; give an Attack"),
        (
            {"network": Network(nx.circulant_graph(8, [1, 2]), byzantine=[3])},
            "regular nodes are 0, 1, 2, 4, 5",
        ),
        ({"network": Network(nx.circulant_graph(9, [1, 2]))}, r"nodes 0, 1, 2, 3, 4, 5, 6; the network's"),
    ],
)
def test_a_setup_says_what_does_not_fit(part: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        replace(setup(), **part)


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"rounds": 2.5}, "rounds is 2.5; it must be a whole number"),
        ({"evaluate_every": 0}, "at least 1"),
        ({"lr": "0.1"}, "lr is a str; give a LearningRate"),
        ({"optimizer": 0.9}, "give an Optimizer"),
        ({"precision": "fp16"}, "fp16"),
    ],
)
def test_training_says_what_it_cannot_be(part: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Training(**part)


def test_label_flipping_spoils_byzantine_rows_only() -> None:
    run = setup(attack=LabelFlipping())
    clean = Workers([replace(run.task, poison=None, poisoned=None)])
    poisoned = Workers([run.task])
    (_, flipped), (_, true) = (workers.draw(workers.shares, 0) for workers in (poisoned, clean))
    assert torch.equal(flipped[:5], true[:5])
    assert torch.equal(flipped[5:], 2 - true[5:])


@pytest.mark.parametrize(("width", "threads"), [(4, 1), (9000, 2)])
def test_little_work_keeps_one_core_busy(width: int, threads: int) -> None:
    """More threads would wait; whoever asks between two rounds finds as many as before."""
    seen = set()

    class Counts(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.add(torch.get_num_threads())
            return super().forward(x)

    x, y = torch.randn(60, width), torch.arange(60) % 8
    task = make_task(DataSet.of(x, y, x, y), partition(y, 4, seed=0), Counts(width, 8), seed=0)
    training = Training(rounds=2, evaluate_every=1)
    run = Setup(network=Network(nx.cycle_graph(4)), task=task, rule=Gossip(), training=training)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        seen.clear()
        rounds = train(run)
        next(rounds)
        seen.clear()
        next(rounds)
        assert torch.get_num_threads() == 2
        assert seen == {threads}
    finally:
        torch.set_num_threads(before)


def test_any_module_of_the_users_own() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(6, 3)
            self.drop = nn.Dropout(0.3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.inner(self.drop(x)))

    torch.manual_seed(0)
    module = Odd()
    first, second = (list(train(setup(model=module)))[-1] for _ in range(2))
    assert str(first.record) == str(second.record)


def test_the_last_rounds_are_never_looked_at_less_often() -> None:
    training = Training(rounds=20, evaluate_every=2, evaluate_last=10, evaluate_last_every=5)
    assert [r for r in range(1, 21) if training.evaluates(r)] == list(range(2, 21, 2))
    often = Training(rounds=20, evaluate_every=10, evaluate_last=6, evaluate_last_every=2)
    assert [r for r in range(1, 21) if often.evaluates(r)] == [10, 16, 18, 20]


def test_groups_are_evaluated_by_name() -> None:
    network = Network(graphs.dumbbell(clique=3))
    data = tiny_data()
    groups = [nodes.tolist() for nodes in network.groups.values()]
    task = make_task(data, partition(data.train_y, 6, "clique", seed=0, groups=groups), "mlp", seed=0)
    run = Setup(network=network, task=task, rule=Gossip(), training=Training(rounds=1))
    (moment,) = train(run)
    assert moment.record is not None
    assert set(moment.record.accuracy or {}) == {"all", "clique A", "clique B"}


def test_what_cannot_run_says_so() -> None:
    apart = Network(nx.disjoint_union(nx.complete_graph(3), nx.complete_graph(4)))
    run = setup()
    with pytest.raises(NetworkError, match="2 parts"):
        next(train(Setup(network=apart, task=run.task, rule=Gossip())))
    with pytest.raises(RunError, match=r"same \[training\]"):
        next(train_together([setup(), setup(rounds=7)]))
    if not torch.cuda.is_available():
        with pytest.raises(RunError, match="no GPU"):
            next(train(run, device="cuda"))
    with pytest.raises(RunError, match="do not fit"):
        next(train(run, state=State(1, {"models": torch.zeros(1, 1)})))


def test_a_state_asked_for_too_late_is_refused() -> None:
    first, second, *_ = train(setup(Gossip(), rounds=3))
    with pytest.raises(RunError, match="state of round 1 is gone: the run is at round 3"):
        first.state()
    assert second.round == 2


def test_a_setup_fits_on_a_screen() -> None:
    text = repr(setup(Gossip(), rounds=3))
    assert len(text.splitlines()) == 3
    assert max(map(len, text.splitlines())) <= 120


def test_a_number_is_a_learning_rate() -> None:
    assert Training(lr=0.1) == Training(lr=LearningRate(initial=0.1))
    assert Training(lr=1).rate(5) == 1.0
