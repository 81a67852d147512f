"""One TOML file says everything a peer needs to know. Every default is safe to run on an open network."""

import ipaddress
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from clippedgossip import decode
from clippedgossip.decode import KeyProblem, from_toml
from clippedgossip.errors import ConfigError, unknown_name
from clippedgossip.peer.identity import format_fingerprint, parse_fingerprint
from clippedgossip.settings import DataConfig, ModelConfig, TrainingConfig

CONFIG_FILE = "peer.toml"
FORMAT = 2
"""Of the file: 1, where none is said, is that of version 0.1, which is still read."""
ATTACKS_OF_PEERS = (
    "alie",
    "ipm",
    "bit-flipping",
    "dissensus",
    "zero-sum",
    "spectral",
    "mimic",
    "gaussian",
    "non-finite",
    "silence",
)
"""Attacks that need nothing but the messages a peer receives."""
VIOLATIONS_OF_PEERS = (
    "wrong-shape",
    "garbage",
    "oversize",
    "replay",
    "equivocation",
    "false-round",
    "flooding",
    "hello-flooding",
    "stalling",
    "late-stalling",
    "gzip-bomb",
)
FORMER_MISBEHAVIOURS = {"sign-flip": "bit-flipping", "noise": "gaussian", "nan": "non-finite"}
"""Names of version 0.1, still read."""
MISBEHAVIOURS = (*ATTACKS_OF_PEERS, *VIOLATIONS_OF_PEERS)
"""How a peer can be made to misbehave, for demonstrations and drills."""
_LARGEST_FILE = 1 << 20


@dataclass(frozen=True)
class Address:
    """Where a peer listens: a name, an IPv4 or an IPv6 address, and a port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address":
        match = re.fullmatch(r"(\[[0-9A-Fa-f:.%\w]+\]|[^\[\]:]+):(\d{1,5})", text)
        host = match[1].strip("[]") if match else ""
        if not match or not (0 <= int(match[2]) <= 65535) or not _is_host(host, bracketed=text[0] == "["):
            raise ConfigError(f"address {text[:80]!r} is not host:port; for IPv6 write [::1]:7000")
        return cls(host=host, port=int(match[2]))

    @property
    def is_ipv6(self) -> bool:
        return ":" in self.host

    @property
    def place(self) -> tuple[str, int]:
        """The same for all ways to name this machine by loopback."""
        return _LOOPBACK.get(self.host.lower(), self.host.lower()), self.port

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if self.is_ipv6 else f"{self.host}:{self.port}"


_LOOPBACK = {"localhost": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True, kw_only=True)
class Neighbour:
    """A participant this peer talks to; nobody else is listened to."""

    name: str  # of the neighbour
    address: Address  # where it listens
    fingerprint: Annotated[bytes, parse_fingerprint]  # of its key
    former: Annotated[bytes, parse_fingerprint] = b""
    """Of its old key: valid as well until the neighbour has shown the new one; empty: there is none."""

    @property
    def fingerprints(self) -> tuple[bytes, ...]:
        return (self.fingerprint, self.former) if self.former else (self.fingerprint,)


@dataclass(frozen=True, kw_only=True)
class Deadlines:
    """Seconds. A round waits `margin` times what is usual, never below `least` nor above `most`."""

    least: float = 2.0  # seconds, the shortest deadline of a round
    most: float = 10.0  # seconds, the longest
    margin: float = 4.0  # the deadline, as a multiple of the usual time
    join: float = 30.0  # seconds, at the start, for neighbours not there yet
    linger: float = 5.0  # seconds, at the end, for neighbours not done


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What neighbours and outsiders may cost this peer."""

    model_bytes: int = 1 << 30  # of one message
    pulls_per_second: float = 100.0  # of one neighbour
    bytes_per_second: float = 0.0
    """Of all messages that this peer sends together; 0: no limit."""
    connections: int = 256  # at once
    handshake: float = 5.0  # seconds
    backoff_least: float = 1.0  # seconds, the first time a neighbour is ignored
    backoff_most: float = 300.0  # seconds, the longest
    strikes: int = 3  # violations until a neighbour is ignored for a time


@dataclass(frozen=True, kw_only=True)
class Wire:
    """How models travel."""

    dtype: Literal["float32", "bfloat16", "float16"] = "float32"  # bfloat16 and float16 halve the bytes
    zstd: bool = False  # compress; worth it with bfloat16


@dataclass(frozen=True, kw_only=True)
class Config:
    """One participant of one run: the sections of a simulated run, and what concerns this peer alone."""

    name: str  # of this peer; neighbours know it by this
    run: str  # the same for all peers of a run
    bind: Address = Address("127.0.0.1", 7000)  # where it listens
    metrics: Address = Address("127.0.0.1", 0)  # where Prometheus reads; port 0 takes a free one
    seed: int = 0  # its draws derive from it
    node: int | None = None
    """Which share of the data is this peer's, ..."""
    nodes: int = 1
    """... and among how many the data is shared out."""
    groups: tuple[tuple[int, ...], ...] | None = None
    """Who is in which clique, for the partition of that name and those of the user's own."""
    checkpoint_every: int = 10  # rounds
    witness: bool = False  # ask neighbours for signed headers, to find equivocation
    on_conviction: Literal["keep", "exclude"] = "keep"
    """What follows when a neighbour is proved to have signed two models for one round: "keep" exchanging with
    it, or "exclude" it."""
    staleness: int = 0
    """For how many rounds a message may be used again when no new one comes."""
    misbehave: str = ""  # an attack, for trying a network out
    network: Mapping[str, Any] = field(default_factory=dict)
    """Where rounds differ, or weights do not follow from degrees: the whole network, {edges, weights,
    schedule}, with peers by their numbers."""
    learner: Mapping[str, Any] = field(default_factory=dict)
    """What trains in place of data and model: {name = "mine:make"}, and whatever that reads."""
    data: DataConfig = field(default_factory=DataConfig)  # as for a run
    model: ModelConfig = field(default_factory=lambda: ModelConfig("mlp"))  # as for a run
    rule: Mapping[str, Any] = field(default_factory=lambda: {"name": "clipped-gossip", "radius": 1.0})
    """As for a run."""
    training: TrainingConfig = field(default_factory=TrainingConfig)  # as for a run
    deadlines: Deadlines = Deadlines()  # of a round
    limits: Limits = Limits()  # on what neighbours can cost
    wire: Wire = Wire()  # how models travel
    neighbours: tuple[Neighbour, ...] = ()  # who they are, one table each
    folder: Path = Path()

    @property
    def degree(self) -> int:
        """How many neighbours the peer has."""
        return len(self.neighbours)

    @property
    def rounds(self) -> int:
        """How many rounds the run has."""
        return self.training.rounds

    def until(self, rounds: int | None) -> Self:
        """The same for so many rounds; None changes nothing."""
        return self if rounds is None else replace(self, training=replace(self.training, rounds=rounds))


def load(path: Path, *, look_up: bool = True) -> Config:
    """Reads `peer.toml`, or the one in a folder; `look_up` as for `parse`."""
    if path.is_dir():
        path = path / CONFIG_FILE
    try:
        with path.open("rb") as file:
            raw = file.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}; `clippedgossip peer init` makes one"
        ) from None
    if len(raw) > _LARGEST_FILE:
        raise ConfigError(f"{path} is larger than {_LARGEST_FILE} bytes; a peer's config is a page")
    return parse(raw, folder=path.parent.resolve(), source=str(path), look_up=look_up)


def parse(raw: bytes, *, folder: Path = Path(), source: str = CONFIG_FILE, look_up: bool = False) -> Config:
    """Turns TOML into a checked `Config`; whatever is wrong becomes a `ConfigError`. With `look_up` the rule,
    data and model that it names must be there, which loads PyTorch."""
    try:
        text = raw.decode("utf-8-sig")  # some editors write a mark before the first word
        said = from_toml(text)
    except ValueError as error:
        raise ConfigError(
            f"{source} is not TOML: {error}\n"
            "correct that line; `clippedgossip peer init` writes a file that is"
        ) from None
    try:
        version = decode.value(int, said.pop("format", 1), ("format",))
        if not 1 <= version <= FORMAT:
            raise KeyProblem(
                ("format",), f"format is {version}; this version reads 1 to {FORMAT}\nupgrade clippedgossip"
            )
        for key in (key for key in _OLD_KEYS if version > 1 and key in said):
            place = "[data] and [model]" if key == "task" else "[training]"
            raise KeyProblem((key,), f"{key} is a key of format 1\nwrite it in {place}")
        config = _read(said if version > 1 else _modern(said), folder)
        check(config)
        if look_up:
            _look_up(config)
    except KeyProblem as problem:
        raise ConfigError(f"{decode.place(problem.path, source, text)}: {problem}") from None
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None
    return config


def _look_up(config: Config) -> None:
    from clippedgossip.peer.peer_mixing import rule_of

    rule_of(config)
    if config.network:
        from clippedgossip.peer.round_neighbours import network_of

        network_of(config)
    if not config.learner:
        config.data.checked()
        config.model.checked()
        config.training.checked()


UNUSED = {
    "training": ("evaluate_last", "evaluate_last_every", "evaluate_nodes", "evaluate_components"),
    "data": ("byzantine_share", "byzantine_copies", "poison"),
}
"""Keys of a run that mean nothing to a single peer."""


def _refuse_unused(said: Mapping[str, Any]) -> None:
    for section, keys in UNUSED.items():
        content = said.get(section)
        for key in keys:
            if isinstance(content, Mapping) and key in content:
                why = "a peer evaluates its own model alone, every training.evaluate_every rounds"
                if section == "data":
                    why = "no peer knows who is Byzantine"
                raise KeyProblem((section, key), f"{section}.{key} is a key of a run: {why}\ndrop it")


def _read(said: dict[str, Any], folder: Path) -> Config:
    _refuse_unused(said)
    said |= {
        key: dict(decode.table(said[key], (key,))) for key in ("rule", "learner", "network") if key in said
    }
    sections = {
        "data": DataConfig.from_value(said.pop("data", {}), folder),
        "model": ModelConfig.from_value(said.pop("model", "mlp"), folder),
        "training": decode.section(TrainingConfig, said.pop("training", {}), ("training",), folder=folder),
    }
    return decode.section(Config, said, (), folder=folder, **sections)


def _modern(said: dict[str, Any]) -> dict[str, Any]:
    """What a file of version 0.1 says, in today's form."""
    now = dict(said)
    decode.known_keys(said, (*(f.name for f in fields(Config) if f.name != "folder"), *_OLD_KEYS), ())
    task = dict(decode.table(now.pop("task", {}), ("task",)))
    training = dict(decode.table(now.get("training", {}), ("training",)))
    for key, default in (("rounds", 100), ("evaluate_every", 10)):
        training.setdefault(key, now.pop(key, default))
    now["training"] = training
    if not task:
        return now
    if "entry" in task:
        now["learner"] = {"name": task.pop("entry"), **task}
        node = task.get("node")
        return now | ({"node": node} if isinstance(node, int) else {})
    for key in (f.name for f in fields(TrainingConfig)):
        if key in task:
            raise KeyProblem(("task", key), f"task.{key} belongs to the local step; write it in [training]")
    now |= {key: task.pop(key) for key in ("node", "nodes", "groups") if key in task}
    if "model" in task:
        now["model"] = task.pop("model")
    if task.get("partition") != "dirichlet":
        task.pop("alpha", None)
    return now | {"data": task}


_OLD_KEYS = ("rounds", "evaluate_every", "task")


def dump(config: Config) -> str:
    """The TOML text of a config, without what is left at its default."""
    lines = [f"format = {FORMAT}", f"name = {_toml(config.name)}", f"run = {_toml(config.run)}"]
    lines.append(f"bind = {_toml(config.bind)}")
    for entry in fields(Config):
        said = getattr(config, entry.name)
        simple = isinstance(said, bool | int | str | Address | tuple) and entry.name not in _FIRST
        if simple and said != entry.default:
            lines.append(f"{entry.name} = {_toml(said)}")
    for key in ("network", "learner", "data", "model", "rule", "training", "deadlines", "limits", "wire"):
        lines += _section(key, getattr(config, key))
    return "\n".join(lines) + "\n" + _neighbours(config)


def with_neighbours(text: str, config: Config) -> str:
    """The text of a file with the neighbours of a config; all else stays as its owner wrote it."""
    sections = re.split(r"(?m)^(?=[ \t]*\[)", text)
    others = [section for section in sections if not re.match(r"[ \t]*\[\[\s*neighbours\s*\]\]", section)]
    return "".join(others).rstrip("\n") + "\n" + _neighbours(config)


def _neighbours(config: Config) -> str:
    lines: list[str] = []
    for neighbour in config.neighbours:
        lines += ["", "[[neighbours]]", f"name = {_toml(neighbour.name)}"]
        lines += [f"address = {_toml(neighbour.address)}"]
        lines += [f"fingerprint = {_toml(format_fingerprint(neighbour.fingerprint))}"]
        lines += [f"former = {_toml(format_fingerprint(neighbour.former))}"] if neighbour.former else []
    return "".join(f"{line}\n" for line in lines)


_FIRST = ("name", "run", "bind", "neighbours")
_ALWAYS = {"data": ("name",), "model": ("name",), "training": ("rounds", "evaluate_every")}


def _section(key: str, part: Any) -> list[str]:
    """A section with what is not at its default, or is always said."""
    if isinstance(part, Mapping):
        said: dict[str, Any] = dict(part)
    elif isinstance(part, ModelConfig):
        said = part.to_mapping()
    else:
        default = type(part)()
        said = {
            f.name: getattr(part, f.name)
            for f in fields(part)
            if f.name in _ALWAYS.get(key, ())
            or (not f.metadata and getattr(part, f.name) not in (None, getattr(default, f.name)))
        }
        said |= getattr(part, "parameters", {})
    return ["", f"[{key}]", *(f"{_key(k)} = {_toml(v)}" for k, v in said.items())] if said else []


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)} = {_toml(inner)}" for key, inner in value.items()) + "}"
    text = "".join(c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08X}" for c in str(value))
    return f'"{text}"'


def _key(text: str) -> str:
    return text if re.fullmatch(r"[A-Za-z0-9_-]+", text) else _toml(text)


def check(config: Config) -> None:
    """Refuse what no peer can do."""
    for what, name in (
        ("name", config.name),
        *(("the name of a neighbour", n.name) for n in config.neighbours),
    ):
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
            raise ConfigError(
                f"{what} is {name[:80]!r}; use 1 to 64 letters, digits, dots, dashes or underscores, "
                "the first a letter or a digit"
            )
    if not config.run.isprintable() or not 1 <= len(config.run.encode()) <= 128:
        raise ConfigError(
            f"run is {config.run[:80]!r}; use 1 to 128 printable bytes, the same for all peers of a run"
        )
    if config.metrics.port and config.metrics.place == config.bind.place:
        raise KeyProblem(("metrics",), f"metrics is {config.metrics}, as bind is; name another port")
    taken: set[object] = {config.name, config.bind.place}
    for n in config.neighbours:
        if not n.address.port:
            raise ConfigError(
                f"neighbour {n.name!r} has the address {n.address}; give the port that it listens on"
            )
        marks = [("fingerprint", mark) for mark in n.fingerprints]
        for what, own in (("name", n.name), *marks, ("address", n.address.place)):
            if own in taken:
                raise ConfigError(
                    f"neighbour {n.name!r} shares its {what} with this peer or another; each has its own"
                )
            taken.add(own)
    if config.node is not None and not config.learner and not 0 <= config.node < config.nodes:
        raise KeyProblem(
            ("node",), f"node is {config.node}; with nodes = {config.nodes} choose 0 to {config.nodes - 1}"
        )
    if config.training.precision != "float32":
        raise KeyProblem(
            ("training", "precision"),
            f"training.precision is {config.training.precision!r}; peers have float32 alone",
        )
    if config.misbehave and config.misbehave not in (*MISBEHAVIOURS, *FORMER_MISBEHAVIOURS):
        raise ConfigError(unknown_name("misbehaviour", config.misbehave, MISBEHAVIOURS))
    for part, key, low, high in _RANGES:
        value = getattr(getattr(config, part) if part else config, key)
        if not (math.isfinite(value) and low <= value <= high):
            path = (part, key) if part else (key,)
            raise KeyProblem(path, f"{'.'.join(path)} is {value}; choose {low:g} to {high:g}")
    for part, low_key, high_key in (
        ("deadlines", "least", "most"),
        ("limits", "backoff_least", "backoff_most"),
    ):
        low, high = getattr(getattr(config, part), low_key), getattr(getattr(config, part), high_key)
        if low > high:
            raise ConfigError(f"{part}.{low_key} = {low:g} exceeds {part}.{high_key} = {high:g}; swap them")


_RANGES = (
    ("", "seed", 0, 2**53),
    ("", "nodes", 1, 2**53),
    ("", "checkpoint_every", 1, 10**6),
    ("", "staleness", 0, 10**6),
    ("training", "rounds", 1, 2**53),
    ("deadlines", "least", 0.01, 600),
    ("deadlines", "most", 0.01, 3600),
    ("deadlines", "margin", 1, 100),
    ("deadlines", "join", 0, 3600),
    ("deadlines", "linger", 0, 3600),
    ("limits", "model_bytes", 1, 2**40),
    ("limits", "pulls_per_second", 0.1, 10**5),
    ("limits", "bytes_per_second", 0, 10**12),
    ("limits", "connections", 1, 65536),
    ("limits", "handshake", 0.1, 120),
    ("limits", "backoff_least", 0.01, 3600),
    ("limits", "backoff_most", 0.01, 86400),
    ("limits", "strikes", 1, 1000),
)


def _is_host(host: str, *, bracketed: bool) -> bool:
    try:
        return ipaddress.ip_address(host).version == (6 if bracketed else 4)
    except ValueError:
        pass
    label = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
    return not bracketed and len(host) <= 253 and re.fullmatch(rf"{label}(\.{label})*\.?", host) is not None
