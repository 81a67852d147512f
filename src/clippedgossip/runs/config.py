"""A run as data: frozen sections that check themselves, and their one canonical form."""

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from clippedgossip import decode
from clippedgossip.decode import KeyProblem
from clippedgossip.runs.network_config import NetworkConfig
from clippedgossip.settings import AttackConfig, DataConfig, ModelConfig, RuleConfig, TrainingConfig


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
        for name in ("data", "model", "rule", "attack"):
            section = getattr(self, name)
            object.__setattr__(self, name, None if section is None else section.checked())

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
            data=DataConfig.from_value(raw["data"], folder),
            model=ModelConfig.from_value(raw["model"], folder),
            rule=RuleConfig.from_value(raw["rule"], folder),
            attack=None if attack is None else AttackConfig.from_value(attack, folder),
            training=decode.section(TrainingConfig, raw.get("training", {}), ("training",)),
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
        names = [self.network.label, self.rule.name, *([self.attack.name] if self.attack else [])]
        return re.sub(r"[^\w.-]+", "-", "-".join(decode.short(name) for name in names))
