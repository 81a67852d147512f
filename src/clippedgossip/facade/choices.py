"""The arguments of `train` and `compare`, checked before the first round: objects, or words of a config."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn

import clippedgossip.decode as decode
from clippedgossip.attacks import Attack
from clippedgossip.decode import KeyProblem
from clippedgossip.devices import find_device, usual_modes
from clippedgossip.errors import ConfigError, DataError, counted, kind_of, unknown_name
from clippedgossip.facade.recorded_run import RecordedRun
from clippedgossip.network import Network
from clippedgossip.randomness import drawn_from
from clippedgossip.rules import Rule
from clippedgossip.settings import AttackConfig, DataConfig, ModelConfig, RuleConfig, Training, TrainingConfig
from clippedgossip.simulate.setup import Setup, Shares, network_task
from clippedgossip.step import (
    OPTIMIZER,
    SHARED,
    Averaged,
    HeavyBall,
    LearningRate,
    Optimizer,
    momentum_words,
)
from clippedgossip.tasks import SCHEMES, DataSet
from clippedgossip.tasks.module_checks import copied
from clippedgossip.tasks.objective import LossLike, MetricLike, listed

Words = str | Mapping[str, Any]  # a name, or a table with a name and parameters, as in a config
RuleLike = Rule | Words
AttackLike = Attack | Words | None
DataLike = DataSet | Words | Sequence[Any]
ModelLike = nn.Module | Words | Callable[[], nn.Module]
Partition = Words | Shares
OptimizerLike = Optimizer | Words | None
SHARING = ("alpha", "byzantine_share", "byzantine_copies")
"""Keys of a config's [data] that may stand in the table of a partition."""
TRAINING = tuple(
    entry.name
    for entry in dataclasses.fields(TrainingConfig)
    if entry.name not in ("loss", "metric", "folder")
)
"""Keys of a config's [training], each an argument of `train` and `compare`."""
ELSEWHERE = {
    "learning_rate": "lr",
    "batch_size": "batch",
    "epochs": "rounds: an epoch has (samples of a worker / batch) of them",
    "max_grad_norm": "clip_gradient",
    "out": "out= of cg.train, for one run; a comparison is kept by found.report(path) or found.frame()",
}
"""What other libraries call it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Choices:
    """All that the runs of one call have in common."""

    network: Network
    data: DataSet
    said: DataConfig
    """What was said of the data in words: the partition, unless `shares` are given, and so on."""
    shares: Shares | None
    model: ModelLike
    training: Training
    said_training: Mapping[str, Any]  # [training] as a config has it
    loss: LossLike
    metric: MetricLike
    augment: bool
    device: str

    @classmethod
    def of(
        cls,
        network: Network,
        data: DataLike,
        model: ModelLike,
        *,
        partition: Partition,
        training: Mapping[str, Any],
        loss: LossLike,
        metric: MetricLike,
        augment: bool,
        device: str | torch.device,
        **given: Any,
    ) -> "Choices":
        """From the arguments of a call, those of [training] in `given`. Rules and seeds are for `setup`."""
        if not isinstance(network, Network):
            raise ConfigError(f"network is {kind_of(network)}; give cg.Network(graph, byzantine=[…])")
        said_training, made = _training({**training, **{key: given[key] for key in TRAINING if key in given}})
        words = isinstance(_named(partition).get("name"), str)
        said = _said(data, partition if words else "iid")
        return cls(
            network=network,
            data=said.checked().load() if isinstance(data, str | Mapping) else _data(data),
            said=said,
            shares=None if words else cast(Shares, partition),
            model=model,
            training=made,
            said_training=said_training,
            loss=listed(loss),
            metric=metric,
            augment=augment or said.augment,
            device=str(find_device(device)),
        )

    def setup(self, rule: RuleLike, attack: AttackLike, seed: int) -> Setup:
        """One run of these."""
        seed = decode.value(int, seed, ("seed",))
        if not 0 <= seed < 1 << 63:
            raise ConfigError(f"seed is {seed!r}; it must be a whole number, at least 0 and below 2^63")
        made = self._attack(attack)
        task = network_task(
            self.network,
            self.data,
            _model(self.model, self.data, seed),
            attack=made,
            partition=self.said.scheme() if self.shares is None else self.shares,
            alpha=self.said.alpha,
            byzantine_share=self.said.byzantine_share,
            byzantine_copies=self.said.byzantine_copies,
            seed=seed,
            batch=self.said_training["batch"],
            loss=self.loss,
            metric=self.metric,
            augment=self.augment,
            poison=self.said.build_poison(self.data.classes),
        )
        return Setup(
            network=self.network,
            task=task,
            rule=self._rule(rule, seed),
            attack=made,
            training=self.training,
            seed=seed,
        )

    def recorded(self, setup: Setup) -> RecordedRun:
        """The run, without records yet."""
        description = self._described(setup)
        attack = description.get("attack", {}).get("name", "none")
        rule = description["rule"]["name"]
        return RecordedRun(setup=setup, description=description, rule=rule, attack=attack, seed=setup.seed)

    def _described(self, setup: Setup) -> dict[str, Any]:
        network = self.network
        module = {"name": type(setup.task.module).__name__, "parameters": setup.task.layout.size}
        byzantine = [str(network.labels[node]) for node in network.byzantine]
        partition = {} if self.shares is None else {"partition": "own"}
        mapping: dict[str, Any] = {
            "seed": setup.seed,
            "network": {
                "name": f"{network.n} nodes",
                "edges": len(network.indices) // 2,
                "byzantine": byzantine,
                "weights": network.weighting,
                **{key: str(part) for key in ("schedule", "delay") if (part := getattr(network, key))},
            },
            "data": self.said.to_mapping() | {"name": self.data.name, "augment": self.augment} | partition,
            "model": _named(self.model) or module,
            "rule": _table(setup.rule),
            "training": {
                **self.said_training,
                **_said_as("loss", self.loss, setup.task.loss.name),
                **_said_as("metric", self.metric, setup.task.metric.name),
            },
        }
        return mapping if setup.attack is None else mapping | {"attack": _table(setup.attack)}

    def _rule(self, rule: RuleLike, seed: int) -> Rule:
        if isinstance(rule, str | Mapping):
            config = RuleConfig.from_value(rule)
            return config.build(self.network, rounds=self.training.rounds, seed=seed)
        return rule  # Setup refuses anything that is not a rule

    def _attack(self, attack: AttackLike) -> Attack | None:
        count = len(self.network.byzantine)
        if attack is None and count:
            raise ConfigError(
                f"the network has {counted(count, 'Byzantine node')}, but there is no attack\n"
                'give attack=cg.attacks.Dissensus() or another, or attack="none" to follow the protocol'
            )
        if isinstance(attack, str | Mapping):
            return AttackConfig.from_value(attack).build()
        if attack is not None and not isinstance(attack, Attack):
            raise ConfigError(
                f"attack is {kind_of(attack)}; give an Attack: attack=cg.attacks.Dissensus(), or its name"
            )
        return attack


def _training(said: dict[str, Any]) -> tuple[dict[str, Any], Training]:
    """[training] in a config's words, and what it means. Objects become the words that a config has."""
    unknown = next((key for key in said if key not in TRAINING), None)
    if unknown is not None:
        if unknown in ELSEWHERE:
            raise ConfigError(f"unknown argument {unknown!r}; here it is {ELSEWHERE[unknown]}")
        raise ConfigError(unknown_name("argument", unknown, TRAINING))
    rate, own = said["lr"], None
    if isinstance(rate, LearningRate):
        parts = {entry.name: getattr(rate, entry.name) for entry in dataclasses.fields(rate)}
        words = {"lr" if name == "initial" else f"lr_{name}": part for name, part in parts.items()}
        twice = next((key for key in words if key != "lr" and key in said), None)
        if twice is not None:
            raise ConfigError(f"{twice} is given beside a LearningRate; give it there, or give lr a number")
        said |= words
    if said["evaluate_every"] is not None:  # then there are no other rounds
        said.setdefault("evaluate_last", 0)
    optimizer, momentum = said["optimizer"], said["momentum"]
    if not isinstance(optimizer, str | Mapping | Optimizer | None):
        raise ConfigError(
            f"optimizer is {kind_of(optimizer)} of {getattr(optimizer, '__module__', 'Python')}\n"
            f"give a name: {', '.join(map(repr, OPTIMIZER.names))}; or an object of cg.step"
        )
    given = optimizer if isinstance(optimizer, Optimizer) else momentum
    if isinstance(given, Optimizer):
        if any(said[name] for name in SHARED) or (given is optimizer and momentum is not None):
            raise ConfigError(
                f"{type(given).__name__} is given as an object, so its numbers are its own\n"
                f"leave momentum, weight_decay and clip_gradient out: {type(given).__name__}(weight_decay=…)"
            )
        said |= {"momentum": None, "optimizer": None, **{name: getattr(given, name) for name in SHARED}}
        if isinstance(given, HeavyBall | Averaged) and type(given) in (HeavyBall, Averaged):
            said |= momentum_words(given)
        else:
            own, said["optimizer"] = given, "sgd"  # an object may be of a class that no config can name
    there = {key: value for key, value in said.items() if value is not None}
    try:
        config = decode.section(TrainingConfig, there, (), folder=None)
    except KeyProblem as problem:
        message = str(problem).replace("training.", "")
        raise ConfigError(message) from problem
    if own is None:
        return config.to_mapping(), config.build()
    table = {key: value for key, value in _table(own).items() if key not in SHARED}
    return config.to_mapping() | {"optimizer": table}, dataclasses.replace(config.build(), optimizer=own)


def _table(thing: Rule | Attack | Optimizer) -> dict[str, Any]:
    """A rule or attack as a config says it; one of the user's own goes by the name of its class."""
    table = decode.plain_of(thing)
    return {**table, "name": table["name"].rpartition(":")[2].rpartition(".")[2]}


def _said_as(key: str, given: object, name: str) -> dict[str, Any]:
    """What [training] says of a loss or metric: words as they are, of an object its name, of None nothing."""
    return {} if given is None else {key: given if isinstance(given, str | Mapping) else name}


def _named(words: object) -> dict[str, Any]:
    return {"name": words} if isinstance(words, str) else dict(words) if isinstance(words, Mapping) else {}


def _said(data: DataLike, partition: Any) -> DataConfig:
    """The words about data and partition as a config's [data] has them."""
    table = _named(data)
    if isinstance(partition, Mapping):
        rest = {key: value for key, value in partition.items() if key not in SHARING}
        for key in rest:
            if partition["name"] in SCHEMES and key != "name":
                raise DataError(unknown_name(f"key of partition {partition['name']!r}:", str(key), SHARING))
        sharing = {key: value for key, value in partition.items() if key in SHARING}
        sharing["partition"] = partition["name"] if len(rest) == 1 else rest
    else:
        sharing = {} if partition == "iid" else {"partition": partition}
    for key in sharing:
        if key in table:
            raise DataError(f"{key} is given in data and in partition; drop one of them")
    return DataConfig.from_value(table | sharing)


def _data(data: object) -> DataSet:
    if isinstance(data, DataSet):
        return data.to("cpu")
    if isinstance(data, list | tuple) and len(data) == 4:
        return DataSet.of(*data)
    given = kind_of(data) + (f" of {len(data)}" if isinstance(data, list | tuple) else "")
    raise DataError(
        f"data is {given}; give (x, y, x_test, y_test)\n"
        'or cg.tasks.DataSet.of(x, y, x_test, y_test), or a name such as "digits"'
    )


def _on_cpu(module: nn.Module) -> nn.Module:
    if any(held.is_meta for held in (*module.parameters(), *module.buffers())):
        raise DataError(
            "the model is on the device meta, without numbers\n"
            'give one with numbers: module.to_empty(device="cpu"), initialised'
        )
    return module.cpu()


@usual_modes()
def _model(model: ModelLike, data: DataSet, seed: int) -> str | nn.Module:
    """A copy of a module; a module that a factory makes, its weights drawn from the seed."""
    if isinstance(model, str | Mapping):
        return ModelConfig.from_value(model).checked().build(data.shape, data.classes, seed=seed)
    if isinstance(model, nn.Module):
        return _on_cpu(copied(model))
    made: object = model
    if callable(model):
        with drawn_from(seed):
            made = _called(model)
    if not isinstance(made, nn.Module):
        what = "makes" if callable(model) else "is"
        raise DataError(
            f"model {what} {kind_of(made)}; give a torch.nn.Module, a function that makes one,\n"
            'or a name such as "mlp"'
        )
    return _on_cpu(made)


def _called(model: Callable[[], nn.Module]) -> object:
    try:
        return model()
    except Exception as error:  # a user's own function may raise anything
        first = (str(error).splitlines() or [""])[0]
        raise DataError(
            f"calling model() raised {type(error).__name__}: {first}\n"
            "give a module, or a function without arguments: lambda: Net(64, 10)"
        ) from error
