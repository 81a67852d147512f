"""Configs: one TOML file, frozen sections, and the setup they describe."""

from clippedgossip.config.build import build
from clippedgossip.config.file import from_raw, load_config, override, put, read
from clippedgossip.config.named import AttackConfig, RuleConfig
from clippedgossip.config.network import NetworkConfig
from clippedgossip.config.sections import DataConfig, ModelConfig, RunConfig, TrainingConfig

__all__ = [
    "AttackConfig",
    "DataConfig",
    "ModelConfig",
    "NetworkConfig",
    "RuleConfig",
    "RunConfig",
    "TrainingConfig",
    "build",
    "from_raw",
    "load_config",
    "override",
    "put",
    "read",
]
