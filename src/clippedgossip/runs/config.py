"""A run as data: frozen sections that check themselves, and their one canonical form."""

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, get_type_hints

from clippedgossip.errors import ConfigError, unknown_name
from clippedgossip.runs import typed_values as decode
from clippedgossip.runs.named import AttackConfig, RuleConfig
from clippedgossip.runs.network_config import NetworkConfig
from clippedgossip.runs.typed_values import KeyProblem
from clippedgossip.simulate.setup import Precision, Training
from clippedgossip.step import LearningRate, momentum_of
from clippedgossip.tasks import MODELS
from clippedgossip.tasks.sources.catalog import CATALOG

DATA = ("digits", *CATALOG)
T = TypeVar("T", bound="DataConfig | ModelConfig | TrainingConfig")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What is learnt, and who holds what of it."""

    name: str = "digits"
    root: str | None = None
    """A folder to take the data from where the cache has none; no part of the run's identity."""
    partition: Literal["iid", "sorted", "clique", "dirichlet", "classes"] = "iid"
    alpha: float | None = None
    """Dirichlet's."""
    samples: int | None = None
    """Train on this many, drawn at random, the same for every seed."""
    test_samples: int | None = None
    augment: bool = False
    byzantine_share: bool = False
    """Byzantine nodes hold a share even if the attack does not train on it, so that under every attack the
    regular nodes have the same samples."""
    byzantine_copies: bool = False
    """Byzantine nodes that train hold a copy of a regular neighbour's share and take nothing away."""

    def __post_init__(self) -> None:
        if self.name not in DATA:
            raise KeyProblem(("data", "name"), unknown_name("data set", self.name, DATA))
        if self.alpha is not None and self.partition != "dirichlet":
            raise KeyProblem(("data", "alpha"), "data.alpha goes with partition = 'dirichlet' alone; drop it")
        if self.partition == "dirichlet" and self.alpha is None:
            object.__setattr__(self, "alpha", 0.5)
        if self.byzantine_share and self.byzantine_copies:
            message = "data.byzantine_share and data.byzantine_copies exclude each other; choose one"
            raise KeyProblem(("data", "byzantine_copies"), message)
        for name in ("samples", "test_samples"):
            count = getattr(self, name)
            if count is not None and count < 1:
                raise KeyProblem(("data", name), f"data.{name} is {count}; it must be at least 1")

    def to_mapping(self) -> dict[str, Any]:
        return {key: value for key, value in _present(self).items() if key != "root"}


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    name: str

    def __post_init__(self) -> None:
        if self.name not in MODELS:
            raise KeyProblem(("model", "name"), unknown_name("model", self.name, MODELS))

    def to_mapping(self) -> dict[str, Any]:
        return {"name": self.name}


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Algorithm 1's numbers. `momentum` is the weight of the old momentum in either form: PyTorch's
    m ← β m + g, or the paper's m ← β m + (1−β) g with β = 1 − α."""

    rounds: int = 900
    batch: int = 32
    lr: float = 0.01
    lr_drops: tuple[int, ...] = ()
    lr_factor: float = 0.1
    momentum: float = 0.9
    momentum_form: Literal["pytorch", "paper"] = "pytorch"
    evaluate_every: int = 30
    evaluate_last: int = 150
    evaluate_last_every: int = 10
    evaluate_nodes: bool = True
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise KeyProblem(("training", "batch"), f"training.batch is {self.batch}; it must be at least 1")
        self.build()

    def build(self) -> Training:
        return Training(
            rounds=self.rounds,
            lr=LearningRate(initial=self.lr, drops=self.lr_drops, factor=self.lr_factor),
            momentum=momentum_of(self.momentum_form, self.momentum),
            evaluate_every=self.evaluate_every,
            evaluate_last=self.evaluate_last,
            evaluate_last_every=self.evaluate_last_every,
            evaluate_nodes=self.evaluate_nodes,
            precision=self.precision,
        )

    def to_mapping(self) -> dict[str, Any]:
        return _present(self)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One run. Equal mappings are one run; where it happens (`device`, `data.root`) is no part of it."""

    network: NetworkConfig
    rule: RuleConfig
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig
    attack: AttackConfig | None = None
    training: TrainingConfig = field(default_factory=TrainingConfig)
    seed: int = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            message = f"device is {self.device!r}; choose auto, cpu, cuda or cuda:1"
            raise KeyProblem(("device",), message)
        if not 0 <= self.seed < 1 << 63:
            raise KeyProblem(("seed",), f"seed is {self.seed}; it must be at least 0 and below 2^63")

    @classmethod
    def from_mapping(cls, raw: Mapping[str, Any], *, folder: Path | None = None) -> Self:
        """From what a file says, or from `to_mapping`; paths are taken from `folder`."""
        decode.known_keys(raw, tuple(entry.name for entry in dataclasses.fields(cls)), ())
        for key, example in (("network", "ring"), ("data", "digits"), ("model", "mlp"), ("rule", "gossip")):
            if key not in raw:
                raise KeyProblem((), f'there is no [{key}]; add it, with for example name = "{example}"')
        attack = raw.get("attack")
        return cls(
            network=NetworkConfig.from_value(raw["network"], folder),
            data=_rooted(_section(DataConfig, raw["data"], "data"), folder),
            model=_section(ModelConfig, raw["model"], "model"),
            rule=RuleConfig.from_value(raw["rule"], ("rule",)),
            attack=None if attack is None else AttackConfig.from_value(attack, ("attack",)),
            training=_section(TrainingConfig, raw.get("training", {}), "training"),
            seed=decode.value(int, raw.get("seed", 0), ("seed",)),
            device=decode.value(str, raw.get("device", "auto"), ("device",)),
        )

    def to_mapping(self) -> dict[str, Any]:
        """Canonical: every default written out."""
        mapping: dict[str, Any] = {
            "seed": self.seed,
            "network": self.network.to_mapping(),
            "data": self.data.to_mapping(),
            "model": self.model.to_mapping(),
            "rule": self.rule.to_mapping(),
            "training": self.training.to_mapping(),
        }
        return mapping if self.attack is None else mapping | {"attack": self.attack.to_mapping()}

    @property
    def label(self) -> str:
        """What a folder or a progress bar calls it."""
        parts = [self.network.label, self.rule.name, self.attack.name if self.attack else None]
        return re.sub(r"[^\w.-]+", "-", "-".join(part for part in parts if part))


def _section(kind: type[T], raw: Any, name: str) -> T:
    content = decode.table(raw, (name,))
    hints = get_type_hints(kind)
    decode.known_keys(content, tuple(hints), (name,))
    values = {key: decode.value(hints[key], value, (name, key)) for key, value in content.items()}
    missing = [
        entry.name
        for entry in dataclasses.fields(kind)
        if entry.default is dataclasses.MISSING and entry.name not in values
    ]
    if missing:
        raise KeyProblem((name,), f"[{name}] needs a value for {', '.join(missing)}")
    try:
        return kind(**values)
    except ConfigError as error:
        raise decode.section((name,), error) from error


def _rooted(data: DataConfig, folder: Path | None) -> DataConfig:
    if data.root is None or folder is None:
        return data
    return dataclasses.replace(data, root=str(folder / data.root))


def _present(section: Any) -> dict[str, Any]:
    values = {entry.name: getattr(section, entry.name) for entry in dataclasses.fields(section)}
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in values.items()
        if value is not None
    }
