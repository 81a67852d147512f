"""A run as data: frozen sections that check themselves, and their canonical form. Configs are read from
files, with changes from the command line; every error names the line."""

import dataclasses
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import clippedgossip.decode as decode
import clippedgossip.graphs as graphs
from clippedgossip.decode import KeyProblem, from_json, from_toml, place, put
from clippedgossip.errors import ConfigError, NetworkError, UserError, counted
from clippedgossip.graphs.generators import NETWORK, Graph, complete_for_schedules, graph_of
from clippedgossip.graphs.graph_files import digest
from clippedgossip.network import Network
from clippedgossip.network.delay import DELAY
from clippedgossip.network.optimal_weights import Robust
from clippedgossip.network.schedule import SCHEDULE
from clippedgossip.network.weights import Name, weights_of
from clippedgossip.settings import AttackConfig, DataConfig, ModelConfig, RuleConfig, TrainingConfig

if TYPE_CHECKING:
    from clippedgossip.records import RunDirectory
    from clippedgossip.simulate.setup import Setup
    from clippedgossip.tasks import DataSet

T = TypeVar("T")
Nodes = tuple[int | str, ...]
PLACEMENTS: Mapping[str, Any] = {"random": int, "pendants": Nodes, "pendants_random": int, "worst": int}
RANDOM = ("random", "pendants_random")
KEYS: Mapping[str, Any] = {"name": str, "file": str, "max_degree": int, "seed": int}


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """`[network]`: `name` and `parameters` of a generator, or a `file`.

    `byzantine` names nodes, or says how they are found: {"random": 2} of the nodes, {"pendants": [0, 3]}
    beside these, {"pendants_random": 2} beside random nodes, {"worst": 1} where they do most harm.
    `seed` is for the generator and the random nodes; without it they are drawn from the seed of the run.
    `schedule` says which of its links each round uses, by the run's seed; `delay` how late messages are.
    """

    name: str | None = None  # of a generator, or `package.module:function`
    file: Path | None = None  # a graph in GraphML, CSV or JSON
    parameters: Mapping[str, Any] = field(default_factory=dict)
    weights: Name | Mapping[str, Any] | None = None  # of the edges; a table for capped ones
    max_degree: int | None = None  # a bound that all nodes know, for equal weights
    byzantine: Nodes | Mapping[str, Any] = ()  # labels of nodes, or how they are found
    seed: int | None = None  # of the generator and random nodes; else the run's
    schedule: str | Mapping[str, Any] | None = None  # which links each round uses
    delay: int | str | Mapping[str, Any] | None = None  # how late messages are, in rounds
    folder: Path | None = field(default=None, compare=False, repr=False)
    """Where the user's own modules are looked for first."""

    def __post_init__(self) -> None:
        if (self.name is None) == (self.file is None):
            raise ConfigError("a network has a name or a file; give one of the two")
        thing = self._thing()
        if thing is not None:
            parameters = {key: said for key, said in thing.parameters.items() if key != "seed"}
            object.__setattr__(self, "name", thing.name)
            object.__setattr__(self, "parameters", parameters)
        if self.seed is not None and self.seed < 0:
            raise KeyProblem.of("network.seed", f"is {self.seed}; it must be at least 0")
        random = self._drawn or (thing is not None and (thing.origin is not None or "seed" in thing.takes))
        self._canonical_changes()
        if self.seed is None:
            object.__setattr__(self, "seed", 0 if random else None)
        elif not random:
            raise KeyProblem.of(
                "network.seed",
                "has no effect: nothing about this network is random; drop it\n"
                "(the seed of the run stands at the top of the file)",
            )

    @classmethod
    def from_value(cls, raw: Any, folder: Path | None = None, *, seed: int = 0) -> Self:
        """From the section; a file's path is taken from `folder`. `seed` is for one that has none itself."""
        path = ("network",)
        content = dict(decode.table(raw, path, example='name = "ring"'))
        known: dict[str, Any] = {}
        for key, hint in KEYS.items():
            if key in content:
                known[key] = decode.value(hint, content.pop(key), (*path, key))
        known |= {key: content.pop(key) for key in ("schedule", "delay") if key in content}
        if "weights" in content:
            weights = weights_of(content.pop("weights"), (*path, "weights"))
            known["weights"] = dataclasses.asdict(weights) if isinstance(weights, Robust) else weights
        if "byzantine" in content:
            known["byzantine"] = _placement(content.pop("byzantine"), (*path, "byzantine"))
        if "file" in known:
            known["file"] = (folder or Path()) / known["file"]
            if (promised := content.pop("sha256", None)) is not None:
                what, found = f"{known['file']} is not the file", digest(known["file"])
                decode.same_content(what, found, promised, (*path, "sha256"))
        if "name" not in known:
            decode.known_keys(content, (*KEYS, "weights", "byzantine", "schedule", "delay"), path)
        try:
            made = cls(**known, parameters=content, folder=folder)
        except (ConfigError, NetworkError) as error:
            raise decode.within(path, error) from error
        fixed = made.seed is None or "seed" in known or made.certain
        return made if fixed else dataclasses.replace(made, seed=seed)

    def to_mapping(self) -> dict[str, Any]:
        """What identifies the network; of a file its name and digest, wherever it lies."""
        mapping: dict[str, Any] = (
            {"name": self.name, **self.parameters}
            if self.file is None
            else {"file": self.file.name, "sha256": digest(self.file)}
        )
        weights = dict(self.weights) if isinstance(self.weights, Mapping) else self.weights
        chosen: dict[str, Any] = {"weights": weights, "max_degree": self.max_degree, "seed": self.seed}
        schedule = dict(self.schedule) if isinstance(self.schedule, Mapping) else None
        if schedule is not None and "sha256" in schedule:
            schedule["file"] = Path(schedule["file"]).name
        chosen |= {"schedule": schedule, "delay": self.delay}
        mapping |= {key: value for key, value in chosen.items() if value is not None}
        if self.byzantine:
            mapping["byzantine"] = (
                dict(self.byzantine) if isinstance(self.byzantine, Mapping) else list(self.byzantine)
            )
        return mapping

    @property
    def certain(self) -> bool:
        """Whether every seed gives the same network: a dumbbell is random only in its extra edges."""
        return not self._drawn and self.name == "dumbbell" and not self.parameters.get("extra")

    @property
    def _drawn(self) -> bool:
        return isinstance(self.byzantine, Mapping) and any(how in RANDOM for how in self.byzantine)

    @property
    def label(self) -> str:
        return decode.short(self.name) if self.name is not None else Path(str(self.file)).stem

    def build(self) -> Network:
        """The network."""
        graph = self._graph()
        nodes: tuple[Hashable, ...] = ()
        if isinstance(self.byzantine, Mapping):
            ((how, what),) = self.byzantine.items()
            if how == "pendants":
                graph = graphs.add_pendants(graph, what)
            elif how == "pendants_random":
                graph = graphs.add_pendants(graph, graphs.random_nodes(graph, what, seed=self.seed or 0))
            elif how == "random":
                nodes = graphs.random_nodes(graph, what, seed=self.seed or 0)
            else:
                nodes = self._worst(graph, what)
        else:
            nodes = self.byzantine
        schedule = None if self.schedule is None else self._schedule().build(offered={"folder": self.folder})
        delay = None if self.delay is None else self._delay().build()
        return Network(
            graph,
            byzantine=nodes,
            weights=self.weights,
            max_degree=self.max_degree,
            schedule=schedule,
            delay=delay,
        )

    def _graph(self) -> Graph:
        thing = self._thing()
        if thing is None:
            return graphs.read_graph(str(self.file))
        if self.schedule is not None and thing.name == "complete":
            return complete_for_schedules(thing.parameters["nodes"])
        return graph_of(thing, self.seed or 0)

    def _canonical_changes(self) -> None:
        """Schedule and delay with every default written out; a file by its name and digest."""
        if self.schedule is not None:
            thing = self._schedule()
            made = thing.build(offered={"folder": self.folder})
            digest = {"sha256": made.digest} if thing.name == "file" else {}
            object.__setattr__(self, "schedule", thing.plain() | digest)
        if self.delay is not None:
            self._delay().build()
            object.__setattr__(self, "delay", self._delay().plain())

    def _schedule(self) -> decode.Thing:
        return decode.decode(SCHEDULE, self.schedule, ("network", "schedule"), self.folder)

    def _delay(self) -> decode.Thing:
        return decode.decode(DELAY, self.delay, ("network", "delay"), self.folder)

    def _thing(self) -> decode.Thing | None:
        """The generator with its parameters; its seed stands beside them."""
        if self.name is None:
            return None
        said = {"name": self.name, **self.parameters}
        thing = decode.decode(NETWORK, said, ("network",), self.folder)
        if "seed" not in thing.takes:
            return thing
        return decode.decode(NETWORK, said | {"seed": self.seed or 0}, ("network",), self.folder)

    def _worst(self, graph: Graph, count: int) -> tuple[Hashable, ...]:
        from clippedgossip.audit import weakest_cut, worst_placement

        network = Network(graph, weights=self.weights, max_degree=self.max_degree)
        found = worst_placement(network, count, weakest_cut(network))
        if found is None:
            raise NetworkError(
                f"byzantine = {{worst = {count}}} leaves no regular nodes that are connected; choose fewer"
            )
        return tuple(network.labels[node] for node in found.nodes)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One run. Equal mappings are the same run; `device` and `data.root` are not part of it."""

    network: NetworkConfig  # who talks to whom, and who is Byzantine
    rule: RuleConfig  # how a node mixes
    data: DataConfig = field(default_factory=DataConfig)  # what is learnt, and who holds what of it
    model: ModelConfig  # what is trained
    attack: AttackConfig | None = None  # what Byzantine nodes do; needed if there are any
    training: TrainingConfig = field(default_factory=TrainingConfig)  # how long, and by which steps
    seed: int = 0  # everything random derives from it
    device: str = "auto"  # `auto`, `cpu`, `cuda` or `cuda:1`

    def __post_init__(self) -> None:
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise KeyProblem.of("device", f"is {self.device!r}; choose auto, cpu, cuda or cuda:1")
        if not 0 <= self.seed < 1 << 63:
            raise KeyProblem.of("seed", f"is {self.seed}; it must be at least 0 and below 2^63")
        for name in ("data", "model", "rule", "attack", "training"):
            section = getattr(self, name)
            object.__setattr__(self, name, None if section is None else section.checked())

    @classmethod
    def from_mapping(cls, raw: Mapping[str, Any], *, folder: Path | None = None) -> Self:
        """From what a file says, or from `to_mapping`; paths are taken from `folder`."""
        decode.known_keys(raw, tuple(entry.name for entry in dataclasses.fields(cls)), ())
        for key, example in (("network", "ring"), ("data", "digits"), ("model", "mlp"), ("rule", "gossip")):
            if key not in raw:
                raise KeyProblem((), f'there is no [{key}]; add it, with for example name = "{example}"')
        attack, seed = raw.get("attack"), decode.value(int, raw.get("seed", 0), ("seed",))
        return cls(
            network=NetworkConfig.from_value(raw["network"], folder, seed=seed),
            data=DataConfig.from_value(raw["data"], folder),
            model=ModelConfig.from_value(raw["model"], folder),
            rule=RuleConfig.from_value(raw["rule"], folder),
            attack=None if attack is None else AttackConfig.from_value(attack, folder),
            training=decode.section(TrainingConfig, raw.get("training", {}), ("training",), folder=folder),
            seed=seed,
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

    def build(self, data: "DataSet | None" = None) -> "Setup":
        """The setup of the run: network, task, rule, attack. `data` takes the place of what it would load."""
        from clippedgossip.simulate.setup import Setup, network_task

        network = self.network.build()
        attack = None if self.attack is None else self.attack.build()
        if attack is None and len(network.byzantine):
            raise ConfigError(
                f"the network has {counted(len(network.byzantine), 'Byzantine node')}, but "
                "there is no [attack]\n"
                'add one, such as name = "dissensus", or name = "none" for nodes that follow the protocol'
            )
        wanted = self.data
        data = wanted.load() if data is None else data
        task = network_task(
            network,
            data,
            self.model.build(data.shape, data.classes, seed=self.seed),
            attack=attack,
            partition=wanted.scheme(),
            alpha=wanted.alpha,
            byzantine_share=wanted.byzantine_share,
            byzantine_copies=wanted.byzantine_copies,
            seed=self.seed,
            batch=self.training.batch,
            **self.training.objective(),
            augment=wanted.augment,
            poison=wanted.build_poison(data.classes),
        )
        return Setup(
            network=network,
            task=task,
            rule=self.rule.build(network, rounds=self.training.rounds, seed=self.seed),
            attack=attack,
            training=self.training.build(),
            seed=self.seed,
        )

    def run(self, root: Path | str) -> "RunDirectory":
        """Where its run is, or will be."""
        from clippedgossip.records import RunDirectory, run_name

        return RunDirectory(Path(root) / run_name(self.to_mapping(), self.label))

    @property
    def label(self) -> str:
        """What a folder or a progress bar calls it."""
        names = [self.network.label, self.rule.name, *([self.attack.name] if self.attack else [])]
        return re.sub(r"[^\w.-]+", "-", "-".join(decode.short(name) for name in names))


def load_config(
    path: Path | str, overrides: Sequence[str] = (), *, typed: Mapping[str, str] | None = None
) -> RunConfig:
    """A TOML file (or a run's config.json), with overrides such as "training.lr=0.1"."""
    path = Path(path)
    text, raw = read(path)
    return from_raw(raw, source=path, text=text, overrides=overrides, typed=typed)


def from_raw(
    raw: Mapping[str, Any],
    *,
    source: Path,
    text: str = "",
    overrides: Sequence[str] = (),
    typed: Mapping[str, str] | None = None,
    point: Mapping[str, Any] | None = None,
) -> RunConfig:
    """The config after its overrides, and after those the dotted keys of `point`.

    An error names the line of the file, or the override that caused it. `typed` maps an override to what the
    user typed, such as `--nodes 7`.
    """

    def after(count: int) -> RunConfig:
        changed = override(raw, overrides[:count], point)
        return RunConfig.from_mapping(changed, folder=source.parent)

    try:
        return after(len(overrides))
    except KeyProblem as problem:
        same = (count for count in range(len(overrides) + 1) if _says(after, count) == str(problem))
        guilty = next(same, 0)  # own code may fail otherwise the next time
        where = place(problem.path, str(source), text)
        if guilty:
            entry = overrides[guilty - 1]
            where = (typed or {}).get(entry, f"override {entry!r}")
        raise ConfigError(f"{where}: {problem}") from problem


def _says(after: Callable[[int], RunConfig], count: int) -> str | None:
    """What is wrong after so many overrides."""
    try:
        after(count)
    except UserError as error:
        return str(error)
    return None


def read(path: Path) -> tuple[str, dict[str, Any]]:
    """The text and its content."""
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors write a byte-order mark
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"cannot read {path}: {reason}\ngive a .toml file; `clippedgossip examples` has some"
        ) from error
    try:
        raw = from_json(text) if path.suffix == ".json" else from_toml(text)
    except ValueError as error:  # both decoders' errors, with line and column
        raise ConfigError(
            f"{path} is not valid: {error}\ncorrect that line; examples/ has files to start from"
        ) from error
    if not isinstance(raw, dict):
        raise ConfigError(f"{path} holds no JSON object\ngive a run's config.json, or a .toml file")
    return text, raw


def override(
    raw: Mapping[str, Any], overrides: Sequence[str], point: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The config after its overrides, and after those the keys of a sweep's `point`. Another name
    (`rule.name=krum`) drops the parameters that the old one had in the file."""
    changed, given = deepcopy(dict(raw)), read_overrides(overrides)
    for key, value in _names_first(given.items()):
        _set(changed, key, value)
    check_effects(given, [changed], "another override")
    for key, value in _names_first((point or {}).items()):
        _set(changed, key, deepcopy(value))
    return changed


def read_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """`key=value`, with the value as in TOML; anything else is text."""
    given = dict[str, Any]()
    for text in overrides:
        key, equals, said = text.partition("=")
        if not equals or not re.fullmatch(r"[\w-]+(\.[\w-]+)*", key.strip()):
            raise ConfigError(f"cannot read the override {text!r}; write key=value, such as training.lr=0.1")
        key, value = key.strip(), toml_value(said.strip())
        first = given.setdefault(key, value)
        if first != value and str(first) != str(value):  # nan is not equal to itself
            raise ConfigError(f"{key} is given twice, as {first} and as {value}; give it once")
    return given


def check_effects(given: Mapping[str, Any], configs: Iterable[Mapping[str, Any]], other: str) -> None:
    """Refuse an override that none of the configs has kept, as something else sets the same key."""
    for key, value in given.items():
        if not any(_says_still(config, key.split("."), value) for config in configs):
            raise ConfigError(
                f"the override {key}={value} has no effect: {other} sets {key.partition('.')[0]} as well\n"
                "drop one of the two"
            )


def _says_still(raw: Any, key: Sequence[str], value: Any) -> bool:
    for name in key:
        raw = {"name": raw} if isinstance(raw, str) else raw
        if not isinstance(raw, Mapping) or name not in raw:
            return False
        raw = raw[name]
    if isinstance(raw, Mapping):
        value = {"name": value} if isinstance(value, str) else value
        return isinstance(value, Mapping) and value.items() <= raw.items()
    return [raw] == [value]  # in lists also nan, which is not equal to itself


KEPT: Mapping[str, tuple[str, ...]] = {
    "network": ("weights", "max_degree", "byzantine", "seed", "schedule", "delay"),
    "data": tuple(entry.name for entry in dataclasses.fields(DataConfig)),
}
"""Keys that stay when the section gets another name: they are not parameters of what is named."""


def _names_first(changes: Iterable[tuple[str, T]]) -> list[tuple[str, T]]:
    """A section before its keys, and a name before the parameters that go with it."""
    return sorted(changes, key=lambda change: (change[0].count("."), not change[0].endswith(".name")))


def _set(changed: dict[str, Any], key: str, value: Any) -> None:
    section, dot, _ = key.rpartition(".name")
    old = changed.get(section)
    if dot and isinstance(old, dict) and old.get("name") != value:
        changed[section] = {name: said for name, said in old.items() if name in KEPT.get(section, ())}
    put(changed, key, value)


def toml_value(text: str) -> Any:
    """A value as TOML writes it; what is no TOML is text."""
    try:
        return from_toml(f"value = {text}")["value"]
    except ValueError as error:
        if text[:1] in tuple("{['\""):
            raise ConfigError(
                f"cannot read {text}: {error}\n"
                f"close every {{, [ and quotation mark; the shell wants '…' around the whole"
            ) from error
        return text


def _placement(raw: Any, path: decode.Path) -> Nodes | dict[str, Any]:
    if isinstance(raw, Mapping):
        decode.known_keys(raw, tuple(PLACEMENTS), path)
        if len(raw) != 1:
            message = f"has {len(raw)} keys; give exactly one of {', '.join(PLACEMENTS)}"
            raise KeyProblem.of("network.byzantine", message)
        return {how: decode.value(PLACEMENTS[how], what, (*path, how)) for how, what in raw.items()}
    try:
        nodes: Nodes = decode.value(Nodes, raw, path)
        return nodes
    except KeyProblem:
        fix = "list the nodes, such as [0, 3], or say how to find them, such as {random = 2}"
        raise KeyProblem(path, f"network.byzantine is {raw!r}; {fix}") from None
