"""Rules and attacks as plain data: a name and every parameter it takes, defaults written out."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, get_type_hints

from clippedgossip.attacks import ATTACKS, Attack, make_attack
from clippedgossip.errors import RuleError, UserError, unknown_name
from clippedgossip.network import Network
from clippedgossip.rules import RULES, Adaptive, Oracle, Radius, Rule, make_rule
from clippedgossip.runs import typed_values as decode
from clippedgossip.runs.typed_values import KeyProblem, Path

BYZANTINE = "byzantine"
BOUNDS = ("trim", "faulty", "byzantine_weight")  # parameters that bound the Byzantine neighbours


@dataclass(frozen=True)
class Named(ABC):
    """Something of a registry by its name. `parameters` holds only what TOML can say."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)

    kind: ClassVar[str]
    registry: ClassVar[Mapping[str, type]]

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameters", self._complete((self.kind,)))
        self._check()

    @classmethod
    def from_value(cls, raw: Any, path: Path) -> Self:
        """From a section, or from the name alone."""
        content = dict(decode.table(raw, path, example=f'name = "{next(iter(cls.registry))}"'))
        if "name" not in content:
            raise KeyProblem(path, f"[{'.'.join(path)}] has no name; give one of {', '.join(cls.registry)}")
        name = decode.value(str, content.pop("name"), (*path, "name"))
        try:
            return cls(name, content)
        except KeyProblem as problem:
            raise KeyProblem((*path[:-1], *problem.path), str(problem)) from None
        except UserError as error:
            raise decode.section(path, error) from error

    def to_mapping(self) -> dict[str, Any]:
        return {"name": self.name, **self.parameters}

    @abstractmethod
    def _check(self) -> None:
        """Raise if the parameters make none of its kind."""

    def _complete(self, path: Path) -> dict[str, Any]:
        if self.name not in self.registry:
            raise KeyProblem((*path, "name"), unknown_name(self.kind, self.name, self.registry))
        fields = _fields(self.registry[self.name])
        for key in self.parameters:
            if key not in fields:
                known = f"parameter of {self.kind} {self.name!r}:"
                raise KeyProblem((*path, key), unknown_name(known, key, fields))
        complete = {}
        for key, (hint, default) in fields.items():
            if key in self.parameters:
                complete[key] = _plain(hint, key, self.parameters[key], (*path, key))
            elif default is dataclasses.MISSING:
                raise KeyProblem(path, f"{self.kind} {self.name!r} needs a value for {key}")
            elif default is not None:
                complete[key] = default
        return complete


class RuleConfig(Named):
    """A rule. `trim`, `faulty`, `byzantine_weight` and the adaptive radius may say "byzantine": what the
    network has of Byzantine neighbours or weight around a regular node, at most what the rule can bear."""

    kind = "rule"
    registry = RULES

    def build(self, network: Network) -> Rule:
        """The rule on this network."""
        weight = network.delta_max
        if not self._asks():
            return self._made(0, weight)
        counts = set(network.degrees[network.regular].tolist())
        for faulty in range(_byzantine_neighbours(network), -1, -1):
            try:
                rule = self._made(faulty, weight)
                for count in counts:
                    rule.check(int(count))
            except RuleError:
                if not faulty:
                    raise
            else:
                return rule
        raise AssertionError("unreachable")

    def _asks(self) -> bool:
        inner = self.parameters.get("rule")
        return BYZANTINE in self.parameters.values() or (inner is not None and _inner_rule(inner)._asks())

    def _made(self, faulty: int, weight: float) -> Rule:
        hints = _fields(RULES[self.name])
        made: dict[str, Any] = {}
        for key, plain in self.parameters.items():
            if key == "rule":
                made[key] = _inner_rule(plain)._made(faulty, weight)
            elif key == "radius":
                made[key] = _radius(plain, weight)
            elif plain == BYZANTINE:
                made[key] = faulty if hints[key][0] in (int, int | tuple[int, ...]) else weight
            else:
                made[key] = plain
        return make_rule(self.name, **made)

    def _check(self) -> None:
        self._made(0, 0.0)


class AttackConfig(Named):
    """An attack."""

    kind = "attack"
    registry = ATTACKS

    def build(self) -> Attack:
        inner = self.parameters.get("attack")
        made = dict(self.parameters) | ({} if inner is None else {"attack": _inner_attack(inner).build()})
        return make_attack(self.name, **made)

    def _check(self) -> None:
        self.build()


def _fields(kind: type) -> dict[str, tuple[Any, Any]]:
    """{parameter: (type, default)} of what a file can give: functions are for Python alone."""
    hints = get_type_hints(kind)
    return {
        entry.name: (hints[entry.name], entry.default)
        for entry in dataclasses.fields(kind)
        if "Callable" not in str(hints[entry.name])
    }


def _plain(hint: Any, key: str, raw: Any, path: Path) -> Any:
    if hint is Rule:
        return RuleConfig.from_value(raw, path).to_mapping()
    if hint is Attack:
        return AttackConfig.from_value(raw, path).to_mapping()
    if Radius in getattr(hint, "__args__", ()):
        return _plain_radius(raw, path)
    if raw == BYZANTINE and key in BOUNDS:
        return raw
    return decode.value(hint, raw, path)


def _plain_radius(raw: Any, path: Path) -> Any:
    if raw == "oracle":
        return raw
    if isinstance(raw, Mapping) and list(raw) == ["adaptive"]:
        if raw["adaptive"] == BYZANTINE:
            return dict(raw)
        return {"adaptive": decode.value(float, raw["adaptive"], (*path, "adaptive"))}
    try:
        return decode.value(float, raw, path)
    except KeyProblem as problem:
        choices = '"oracle" or {adaptive = 0.1}, the bound on the Byzantine weight'
        raise KeyProblem(path, f"{problem}, {choices}") from None


def _radius(plain: Any, weight: float) -> float | Radius:
    if plain == "oracle":
        return Oracle()
    if isinstance(plain, Mapping):
        bound = plain["adaptive"]
        return Adaptive(weight if bound == BYZANTINE else bound)
    return float(plain)


def _inner_rule(plain: Mapping[str, Any]) -> RuleConfig:
    return RuleConfig.from_value(plain, ("rule", "rule"))


def _inner_attack(plain: Mapping[str, Any]) -> AttackConfig:
    return AttackConfig.from_value(plain, ("attack", "attack"))


def _byzantine_neighbours(network: Network) -> int:
    """The most Byzantine neighbours a regular node has."""
    lies = set(network.byzantine.tolist())
    around = (
        network.indices[network.indptr[node] : network.indptr[node + 1]].tolist() for node in network.regular
    )
    return max(sum(other in lies for other in others) for others in around)
