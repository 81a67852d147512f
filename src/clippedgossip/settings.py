"""The sections that a run's config and a peer's have in common: frozen, typed, checked.

Reading them does not load PyTorch. What they name is looked up by `checked`, which does.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args

import clippedgossip.decode as decode
import clippedgossip.step as step
from clippedgossip.decode import KeyProblem, Kind, Thing
from clippedgossip.errors import ConfigError, RuleError, article, kind_of, unknown_name, warn_user
from clippedgossip.step import Batches, LearningRate, Optimizer

if TYPE_CHECKING:
    from torch import nn

    from clippedgossip.attacks import Attack
    from clippedgossip.network import Network
    from clippedgossip.own import Origin
    from clippedgossip.rules import Rule
    from clippedgossip.tasks import DataSet, Poison

Precision = Literal["float32", "tf32", "bfloat16"]
Keep = Literal["auto", "device", "host"]
LEAST = {"rounds": 1, "local_steps": 1, "evaluate_every": 1, "evaluate_last": 0, "evaluate_last_every": 1}


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How long to train, and when to evaluate."""

    rounds: int = 900  # of a local step and an exchange each
    evaluate_every: int = 30  # test after so many rounds
    evaluate_last: int = 150  # the reported accuracy is the mean over this many last rounds ...
    evaluate_last_every: int = 10  # ... evaluated this often
    evaluate_nodes: bool = True  # single nodes' accuracies (mean, worst) as well as the groups' averages
    precision: Precision = "float32"  # of the gradients' products; models, momentum and mixing are float32
    local_steps: int = 1  # H, between two exchanges; the paper's theory is for 1
    batches: Batches = "random"  # drawn with replacement; or epochs, in which each sample comes once
    evaluate_components: bool = False  # into which components the models fall, and Ξ within and between them


@dataclass(frozen=True, kw_only=True)
class Training(Schedule):
    """Algorithm 1's numbers. The paper's theory covers its momentum, one local step and a constant η."""

    lr: LearningRate | float = field(default_factory=LearningRate)  # a number is a constant rate: lr=0.1
    optimizer: Optimizer = field(default_factory=step.HeavyBall)

    def __post_init__(self) -> None:
        for name, least in LEAST.items():
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ConfigError(f"{name} is {value!r}; it must be a whole number, at least {least}")
        if isinstance(self.lr, Real) and not isinstance(self.lr, bool):
            object.__setattr__(self, "lr", LearningRate(initial=float(self.lr)))
        must_be("lr", self.lr, LearningRate, "0.01, or LearningRate(initial=0.01)")
        must_be("optimizer", self.optimizer, Optimizer, "HeavyBall(0.9)")
        if self.precision not in get_args(Precision):
            raise ConfigError(unknown_name("precision", str(self.precision), get_args(Precision)))
        if self.batches not in get_args(Batches):
            raise ConfigError(unknown_name("batches", str(self.batches), get_args(Batches)))

    @property
    def drawing(self) -> dict[str, Any]:
        """Which batch a worker draws in a step."""
        return {"local_steps": self.local_steps, "batches": self.batches}

    def rate(self, round: int) -> float:
        """η of a round."""
        assert isinstance(self.lr, LearningRate)  # a number became one
        return self.lr.at(round, self.rounds)

    def evaluates_nodes(self, round: int) -> bool:
        """Whether single nodes are evaluated as well: not in between, in the last rounds."""
        return self.evaluate_nodes and (round == self.rounds or round % self.evaluate_every == 0)

    def evaluates(self, round: int) -> bool:
        """Whether to evaluate after this many rounds."""
        last = round > self.rounds - self.evaluate_last
        every = min(self.evaluate_every, self.evaluate_last_every) if last else self.evaluate_every
        return round == self.rounds or round % every == 0


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(Schedule):
    """`[training]`. `momentum` is the weight of the old momentum in either form: PyTorch's
    m ← β m + g, or the paper's m ← β m + (1−β) g with β = 1 − α. It is the default optimizer."""

    batch: int = 32  # samples of a local step
    lr: float = 0.01  # η of the first rounds
    lr_drops: tuple[int, ...] = ()  # rounds at which η is multiplied by `lr_factor`
    lr_factor: float = 0.1  # see `lr_drops`
    lr_schedule: step.RateSchedule = "drops"  # of η; cosine ends at 0
    lr_warmup: int = 0  # η rises linearly in the first so many rounds
    optimizer: str | Mapping[str, Any] | None = None  # a name, or a table with its parameters
    momentum: float | None = None  # β, of the default optimizer
    momentum_form: Literal["pytorch", "paper"] | None = None  # m ← βm + g, or m ← βm + (1−β)g
    weight_decay: float = 0.0  # λ: g ← g + λx
    clip_gradient: float | None = None  # the largest norm of a worker's gradient
    loss: str | Mapping[str, Any] | None = None  # a name, or a table with its parameters
    metric: str | Mapping[str, Any] | None = None  # what the models are tested by
    folder: Path | None = field(default=None, compare=False, repr=False, metadata={"of_python": True})

    def __post_init__(self) -> None:
        for name, least in {"batch": 1, "lr_warmup": 0, **LEAST}.items():
            count = getattr(self, name)
            if count < least:
                raise KeyProblem.of(f"training.{name}", f"is {count}; it must be at least {least}")
        for name, by, useful in (
            ("lr_factor", "lr_drops", self.lr_drops),
            ("evaluate_last_every", "evaluate_last", self.evaluate_last),
        ):
            if not useful and getattr(self, name) != getattr(type(self), name):
                raise KeyProblem.of(f"training.{name}", f"has no effect without training.{by}; drop it")
        if self.lr_schedule == "constant" and not self.lr_drops:
            object.__setattr__(self, "lr_schedule", "drops")  # without drops it is constant
        if self._other is None and isinstance(self.optimizer, Mapping) and "beta" in self.optimizer:
            if self.momentum is not None:
                message = "and training.optimizer.beta say the same thing; drop one of them"
                raise KeyProblem.of("training.momentum", message)
            object.__setattr__(self, "momentum", float(self.optimizer["beta"]))
        for name, default in MOMENTUM.items():
            if self._other is None:
                said = getattr(self, name)
                object.__setattr__(self, name, default if said is None else said)
            elif getattr(self, name) is not None:
                message = "goes with the optimizer 'momentum', the default, alone; drop it"
                raise KeyProblem.of(f"training.{name}", message)
        object.__setattr__(self, "optimizer", None if self._other is None else self._other.plain())
        self.build()

    def build(self) -> Training:
        schedule = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(Schedule)}
        rate = LearningRate(
            initial=self.lr,
            drops=self.lr_drops,
            factor=self.lr_factor,
            schedule=self.lr_schedule,
            warmup=self.lr_warmup,
        )
        shared = {name: getattr(self, name) for name in step.SHARED}
        made = (
            step.momentum_of(str(self.momentum_form), float(self.momentum or 0.0), **shared)
            if self._other is None
            else self._other.build(offered=shared)
        )
        return Training(lr=rate, optimizer=made, **schedule)

    @property
    def _other(self) -> Thing | None:
        """An optimizer other than Algorithm 1's momentum."""
        if self.optimizer is None:
            return None
        thing = decode.decode(step.OPTIMIZER, self.optimizer, ("training", "optimizer"), self.folder)
        return None if thing.name == "momentum" else thing

    def checked(self) -> Self:
        """The same in its canonical form: code of the user's own has its digest."""
        from clippedgossip.tasks.objective import LOSS, METRIC, built_in_words

        said = {kind.word: built_in_words(kind, getattr(self, kind.word)) for kind in (LOSS, METRIC)}
        own = {name: thing.plain() for name, thing in self._objective.items()}
        return dataclasses.replace(self, **{name: words for name, words in said.items() if words} | own)

    @property
    def origins(self) -> "list[Origin]":
        """Where what is the user's own comes from."""
        things = [*self._objective.values(), *([] if self._other is None else [self._other])]
        return [origin for thing in things for origin in thing.origins]

    @property
    def _objective(self) -> dict[str, Thing]:
        """Loss and metric, where they are the user's own."""
        from clippedgossip.tasks.objective import LOSS, METRIC, own_thing

        things = {
            kind.word: own_thing(kind, getattr(self, kind.word), self.folder, ("training", kind.word))
            for kind in (LOSS, METRIC)
        }
        return {word: thing for word, thing in things.items() if thing is not None}

    def objective(self) -> dict[str, Any]:
        """Loss and metric as `make_task` takes them."""
        from clippedgossip.tasks.objective import find_loss, own_metric

        return {
            "loss": None if self.loss is None else find_loss(self.loss, self.folder),
            "metric": None if self.metric is None else own_metric(self.metric, self.folder),
        }

    def to_mapping(self) -> dict[str, Any]:
        """What version 0.1 had is always there; what came later stands only where it is not the default, so
        that a run keeps its name."""
        said = present(self)
        said.pop("folder", None)
        return {key: value for key, value in said.items() if key not in LATER or value != LATER[key]}


MOMENTUM = {"momentum": 0.9, "momentum_form": "pytorch"}
LATER: Mapping[str, Any] = {
    "local_steps": 1,
    "batches": "random",
    "evaluate_components": False,
    "lr_schedule": "drops",
    "lr_warmup": 0,
    "weight_decay": 0.0,
}
"""Keys that came after version 0.1, with their defaults."""


@dataclass(frozen=True)
class Named:
    """Something by its name. `parameters` holds only what TOML can say."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = field(default=None, compare=False, repr=False)
    """Where the user's own modules are looked for first."""

    section: ClassVar[str]

    @classmethod
    def kind(cls) -> Kind:
        """What is named, said by each subclass; asked for when it is needed, as this loads PyTorch."""
        raise NotImplementedError

    @classmethod
    def from_value(cls, raw: Any, folder: Path | None = None) -> Self:
        """From a section, or from the name alone."""
        content = dict(decode.table(raw, (cls.section,), example='name = "…"'))
        if "name" not in content:
            raise KeyProblem(
                (cls.section,), f"[{cls.section}] has no name; give one of {', '.join(cls.kind().names)}"
            )
        return cls(decode.value(str, content.pop("name"), (cls.section, "name")), content, folder)

    def to_mapping(self) -> dict[str, Any]:
        return {"name": self.name, **self.parameters}

    @property
    def thing(self) -> Thing:
        return decode.decode(self.kind(), self.to_mapping(), (self.section,), self.folder)

    @property
    def origins(self) -> "list[Origin]":
        """Where what is the user's own comes from."""
        return self.thing.origins

    def checked(self) -> Self:
        """The same in its canonical form: every default written out."""
        thing = self.thing
        return dataclasses.replace(self, name=thing.name, parameters=thing.parameters)


class RuleConfig(Named):
    """`[rule]`. `trim`, `faulty`, `byzantine_weight` and the adaptive radius may say "byzantine": what the
    network has of Byzantine neighbours or weight around a regular node, at most what the rule can bear."""

    section = "rule"

    @classmethod
    def kind(cls) -> Kind:
        from clippedgossip.rules import RULE

        return RULE

    def checked(self) -> Self:
        self.thing.build((0, 0.0))
        return super().checked()

    def build(self, network: "Network | None" = None, *, rounds: int = 0, seed: int = 0) -> "Rule":
        """The rule, on a network whose Byzantine nodes are known where it asks for them. If the network has a
        schedule, the most that a round of the run has."""
        thing = self.thing
        rule: Rule
        if network is None or not thing.bounded:
            rule = thing.build()
            return rule
        weight, counts = network.delta_max, set(network.degrees[network.regular].tolist())
        most = int(network.byzantine_neighbours.max())
        if network.schedule is not None:
            from clippedgossip.network.schedule import survey

            found = survey(network, rounds, seed)
            weight, counts, most = found.delta_max, set(found.counts) - {0}, found.faulty
        while True:
            try:
                rule = thing.build((most, weight))
                for count in counts:
                    rule.check(int(count))
                return rule
            except (RuleError, KeyProblem):
                if not most:
                    raise
            most -= 1

    def resolved(self, network: "Network", *, rounds: int = 0, seed: int = 0) -> dict[str, Any]:
        """As a table that asks for nothing of the network."""
        if not self.thing.bounded:
            return self.to_mapping()
        return dict(decode.plain_of(self.build(network, rounds=rounds, seed=seed)))


class AttackConfig(Named):
    """`[attack]`."""

    section = "attack"

    @classmethod
    def kind(cls) -> Kind:
        from clippedgossip.attacks import ATTACK

        return ATTACK

    def checked(self) -> Self:
        self.build()
        return super().checked()

    def build(self) -> "Attack":
        attack: Attack = self.thing.build()
        return attack


class ModelConfig(Named):
    """`[model]`. In the canonical form, parameters of a built-in one stand where they are no defaults."""

    section = "model"

    @classmethod
    def kind(cls) -> Kind:
        from clippedgossip.tasks.models import MODEL

        return MODEL

    def checked(self) -> Self:
        thing = self.thing
        kept = {
            key: said
            for key, said in thing.parameters.items()
            if thing.origin is not None or said != thing.takes[key].default
        }
        return dataclasses.replace(self, name=thing.name, parameters=kept)

    def build(self, shape: tuple[int, ...], classes: int | None, *, seed: int) -> "str | nn.Module":
        """The name of one that is built in, as `make_task` takes it; else the module itself."""
        from clippedgossip.tasks.models import seeded

        thing = self.thing
        if not self.parameters and thing.origin is None:
            return self.name
        return seeded(self.name, lambda: thing.build(given=(shape, classes)), seed)


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """`[data]`: what is learnt, and who holds what of it. Other keys are parameters of an own data set."""

    name: str = "digits"  # of a data set, or `package.module:function`
    root: str | None = None
    """A folder to take the data from where the cache has none; no part of the run's identity."""
    partition: str | Mapping[str, Any] = "iid"  # which node holds which samples
    alpha: float | None = None  # Dirichlet's
    samples: int | None = None  # train on this many, drawn at random, the same for every seed
    test_samples: int | None = None  # test on this many
    keep: Keep = "auto"
    """Where samples are: on the device, or in host memory; "auto": on the device, if they take at most half
    of its free memory. No part of the run's identity: the batches are the same."""
    augment: bool = False  # random crops and flips
    byzantine_share: bool = False
    """Byzantine nodes hold a share even if the attack does not train on it, so that under every attack the
    regular nodes have the same samples."""
    byzantine_copies: bool = False
    """Byzantine nodes that train hold a copy of a regular neighbour's share and take nothing away."""
    poison: str | Mapping[str, Any] | None = None  # what Byzantine nodes that train do to their batches
    parameters: Mapping[str, Any] = field(default_factory=dict, metadata={"of_python": True})
    folder: Path | None = field(default=None, compare=False, repr=False, metadata={"of_python": True})

    def __post_init__(self) -> None:
        if self.alpha is not None and self.partition != "dirichlet":
            raise KeyProblem.of("data.alpha", "goes with partition = 'dirichlet' alone; drop it")
        if self.partition == "dirichlet" and self.alpha is None:
            object.__setattr__(self, "alpha", 0.5)
        if self.byzantine_share and self.byzantine_copies:
            message = "data.byzantine_share and data.byzantine_copies exclude each other; choose one"
            raise KeyProblem(("data", "byzantine_copies"), message)
        for name in ("samples", "test_samples"):
            count = getattr(self, name)
            if count is not None and count < 1:
                raise KeyProblem.of(f"data.{name}", f"is {count}; it must be at least 1")

    @classmethod
    def from_value(cls, raw: Any, folder: Path | None = None) -> Self:
        """From the section; `folder` is where its paths begin."""
        content = dict(decode.table(raw, ("data",)))
        known = {entry.name for entry in dataclasses.fields(cls) if not entry.metadata}
        own = ":" in str(content.get("name", "")) or not known.issuperset(content)
        more = {key: content.pop(key) for key in list(content) if own and key not in known}
        return decode.section(cls, content, ("data",), parameters=more, folder=folder)

    @property
    def where(self) -> str | None:
        """The folder to take the data from."""
        return self.root if self.root is None or self.folder is None else str(self.folder / self.root)

    def located(self) -> Self:
        """The same with whole paths, for a config in another folder."""
        from clippedgossip.tasks.datasets import FILES

        here = (self.folder or Path()).resolve()
        files = {"path": str(here / self.parameters["path"])} if self.name == FILES else {}
        root = None if self.root is None else str(here / self.root)
        return dataclasses.replace(self, root=root, parameters={**self.parameters, **files})

    def to_mapping(self) -> dict[str, Any]:
        """What identifies the data."""
        said = {
            key: value
            for key, value in present(self).items()
            if key not in ("root", "keep", "parameters", "folder")
        }
        return said | dict(self.parameters)

    def checked(self) -> Self:
        """The same in its canonical form; whatever it names is there."""
        data, scheme, poison = self._data, self._scheme, self._poison
        return dataclasses.replace(
            self,
            name=data.name,
            parameters=data.parameters | self._digest(data),
            partition=scheme.name if scheme.origin is None else scheme.plain(),
            poison=None if poison is None else poison.plain(),
        )

    @property
    def origins(self) -> "list[Origin]":
        """Where what is the user's own comes from."""
        things = (self._data, self._scheme, self._poison)
        return [origin for thing in things if thing is not None for origin in thing.origins]

    def load(self) -> "DataSet":
        """The data, or so much of it as is asked for; kept, so that runs of one process share one copy."""
        from clippedgossip.tasks.datasets import load_part
        from clippedgossip.tasks.sources.fetch import EMBEDDED

        if self.root is not None and (self.parameters or self.name == EMBEDDED):
            warn_user(f"data.root has no effect: {self.name} takes nothing from a folder; drop it")
        if not self.parameters:
            data = load_part(self.name, self.where, self.samples, self.test_samples)
        else:
            key = json.dumps({"name": self.name, **self.parameters}, sort_keys=True)
            data = _own_data(key, self.folder, self.samples, self.test_samples)
        return data if self.keep == data.keep else dataclasses.replace(data, keep=self.keep)

    def _digest(self, data: Thing) -> dict[str, str]:
        """Of files of the user's own."""
        from clippedgossip.tasks.datasets import FILES

        if data.name != FILES:
            return {}
        from clippedgossip.tasks.large_data import files_digest

        folder = (self.folder or Path()) / data.parameters["path"]
        found = files_digest(folder)
        what, promised = f"the files in {folder} are not the data", data.parameters.get("digest")
        decode.same_content(what, found, promised, ("data", "digest"))
        return {"digest": found}

    def scheme(self) -> "str | Callable[..., Any]":
        """The partition as `tasks.partition` takes it."""
        thing = self._scheme
        if thing.origin is None:
            return thing.name
        return lambda labels, nodes, **offered: thing.build(given=(labels, nodes), offered=offered)

    def build_poison(self, classes: int | None) -> "Poison | None":
        thing = self._poison
        return None if thing is None else thing.build(offered={"classes": classes})

    @property
    def _data(self) -> Thing:
        from clippedgossip.tasks.datasets import DATASET

        return decode.decode(DATASET, {"name": self.name, **self.parameters}, ("data",), self.folder)

    @property
    def _scheme(self) -> Thing:
        from clippedgossip.tasks.partitions import PARTITION

        return decode.decode(PARTITION, self.partition, ("data", "partition"), self.folder)

    @property
    def _poison(self) -> Thing | None:
        from clippedgossip.tasks.poison import POISON

        if self.poison is None:
            return None
        return decode.decode(POISON, self.poison, ("data", "poison"), self.folder)


@lru_cache(maxsize=4)
def _own_data(key: str, folder: Path | None, samples: int | None, test_samples: int | None) -> "DataSet":
    from clippedgossip.randomness import drawn_from
    from clippedgossip.tasks.datasets import DATASET

    thing = decode.decode(DATASET, json.loads(key), ("data",), folder)
    with drawn_from(0):  # the same for every run, as the built-in data are
        data: DataSet = thing.build(offered={"config_folder": folder})
    return data.part(samples, test_samples)


def must_be(name: str, value: object, kind: type[Any], example: str) -> None:
    """Refuse what is of another type."""
    if not isinstance(value, kind):
        raise ConfigError(f"{name} is {kind_of(value)}; give {article(kind.__name__)}: {name}={example}")


def present(section: Any) -> dict[str, Any]:
    """Every value of a section that is there, as JSON says it."""
    values = {entry.name: getattr(section, entry.name) for entry in dataclasses.fields(section)}
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in values.items()
        if value is not None
    }
