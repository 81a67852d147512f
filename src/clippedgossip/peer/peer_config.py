"""One TOML file says everything a peer needs to know. Every default is safe to run on an open network."""

import ipaddress
import math
import re
import tomllib
import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from clippedgossip.errors import ConfigError, unknown_name
from clippedgossip.peer.identity import format_fingerprint, parse_fingerprint

CONFIG_FILE = "peer.toml"
WIRE_DTYPES = ("float32", "bfloat16", "float16")
MOMENTUM_FORMS = ("pytorch", "paper")
ON_CONVICTION = ("keep", "exclude")
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
    "stalling",
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

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if self.is_ipv6 else f"{self.host}:{self.port}"


@dataclass(frozen=True, kw_only=True)
class Neighbour:
    """A participant this peer talks to; nobody else is listened to."""

    name: str
    address: Address
    fingerprint: bytes


@dataclass(frozen=True, kw_only=True)
class Training:
    """The local step of a built-in task: words and defaults of a simulated run's `[training]`."""

    batch: int = 32
    lr: float = 0.01
    lr_drops: tuple[int, ...] = ()
    lr_factor: float = 0.1
    momentum: float = 0.9
    momentum_form: str = "pytorch"


@dataclass(frozen=True, kw_only=True)
class Deadlines:
    """Seconds. A round waits `margin` times what is usual, never below `least` nor above `most`."""

    least: float = 2.0
    most: float = 10.0
    margin: float = 4.0
    join: float = 30.0
    linger: float = 5.0


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a stranger may cost this peer."""

    model_bytes: int = 1 << 30
    pulls_per_second: float = 100.0
    connections: int = 256
    handshake: float = 5.0
    backoff_least: float = 1.0
    backoff_most: float = 300.0
    strikes: int = 3


@dataclass(frozen=True, kw_only=True)
class Wire:
    """How models travel."""

    dtype: str = "float32"
    zstd: bool = False


@dataclass(frozen=True, kw_only=True)
class Config:
    """One participant of one run."""

    name: str
    run: str
    neighbours: tuple[Neighbour, ...] = ()
    bind: Address = Address("127.0.0.1", 7000)
    metrics: Address = Address("127.0.0.1", 0)
    rounds: int = 100
    seed: int = 0
    checkpoint_every: int = 10
    evaluate_every: int = 10
    witness: bool = False
    on_conviction: str = "keep"
    """What follows when a neighbour is proved to have signed two models for one round: "keep" exchanging with
    it, or "exclude" it."""
    staleness: int = 0
    """For how many rounds a message may be used again when no new one comes."""
    task: Mapping[str, object] = field(default_factory=lambda: {"name": "digits"})
    training: Training = Training()
    rule: Mapping[str, object] = field(default_factory=lambda: {"name": "clipped-gossip", "radius": 1.0})
    deadlines: Deadlines = Deadlines()
    limits: Limits = Limits()
    wire: Wire = Wire()
    misbehave: str = ""
    folder: Path = Path()

    @property
    def degree(self) -> int:
        return len(self.neighbours)


def load(path: Path) -> Config:
    """Reads `peer.toml`, or the one in a folder."""
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
    return parse(raw, folder=path.parent.resolve(), source=str(path))


def parse(raw: bytes, *, folder: Path = Path(), source: str = CONFIG_FILE) -> Config:
    """Turns TOML into a checked `Config`; whatever is wrong becomes a `ConfigError`."""
    try:
        data = tomllib.loads(raw.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{source} is not TOML: {error}") from None
    try:
        config: Config = from_table(Config, {**data, "folder": folder}, "")
        _check(config)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None
    return config


def dump(config: Config) -> str:
    """The TOML text of a config, without what is left at its default."""
    lines = [
        f"{key} = {_toml(getattr(config, key))}"
        for key in (*_PLAIN, "witness", "on_conviction", "staleness", "misbehave")
        if _changed(config, key)
    ]
    for key in ("task", "rule"):
        lines += ["", f"[{key}]", *(f"{_key(k)} = {_toml(v)}" for k, v in getattr(config, key).items())]
    for key in ("training", "deadlines", "limits", "wire"):
        part = getattr(config, key)
        changed = [f.name for f in fields(part) if getattr(part, f.name) != f.default]
        if changed:
            lines += ["", f"[{key}]", *(f"{name} = {_toml(getattr(part, name))}" for name in changed)]
    for neighbour in config.neighbours:
        lines += ["", "[[neighbours]]", f"name = {_toml(neighbour.name)}"]
        lines += [f"address = {_toml(neighbour.address)}"]
        lines += [f"fingerprint = {_toml(format_fingerprint(neighbour.fingerprint))}"]
    return "\n".join(lines) + "\n"


_PLAIN = ("name", "run", "bind", "metrics", "rounds", "seed", "checkpoint_every", "evaluate_every")


def _changed(config: Config, key: str) -> bool:
    default = next(f.default for f in fields(Config) if f.name == key)
    return key in ("name", "run", "bind", "rounds") or getattr(config, key) != default


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


def from_table(cls: type[Any], data: Mapping[str, Any], where: str) -> Any:
    """A dataclass from a table, every key known and of its type; `where` stands before keys in messages."""
    known = {f.name: f for f in fields(cls)}
    hints = get_type_hints(cls)
    for key in data:
        if key not in known:
            raise ConfigError(unknown_name("key", where + key, (where + name for name in known)))
    missing = [
        k for k, f in known.items() if f.default is MISSING and f.default_factory is MISSING and k not in data
    ]
    if missing:
        raise ConfigError(f"{where + missing[0]} is not given; add a line `{missing[0]} = …`")
    return cls(**{key: _convert(hints[key], value, where + key) for key, value in data.items()})


def _convert(hint: Any, value: Any, where: str) -> Any:
    if get_origin(hint) is types.UnionType:
        hint = next(member for member in get_args(hint) if member is not types.NoneType)
    if hint is Address and isinstance(value, str):
        return Address.parse(value)
    if hint is bytes and isinstance(value, str):
        return parse_fingerprint(value)
    if get_origin(hint) is tuple and isinstance(value, list | tuple):
        return tuple(_convert(get_args(hint)[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if hasattr(hint, "__dataclass_fields__") and isinstance(value, dict):
        return from_table(hint, value, f"{where}.")
    if get_origin(hint) is Mapping and isinstance(value, dict):
        return types.MappingProxyType(dict(value))
    if hint is float and type(value) is int and abs(value) < 1 << 53:
        return float(value)
    if isinstance(hint, type) and (type(value) is hint or (hint is Path and isinstance(value, Path))):
        return value
    expected = getattr(hint, "__name__", str(hint))
    raise ConfigError(f"{where} = {str(value)[:60]!r} is a {type(value).__name__}; it must be a {expected}")


def _check(config: Config) -> None:
    for what, name in (("name", config.name), *(("neighbour", n.name) for n in config.neighbours)):
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
            raise ConfigError(
                f"{what} {name[:80]!r}: use 1 to 64 letters, digits, dots, dashes or underscores"
            )
    if not 1 <= len(config.run.encode()) <= 128 or not config.run.isprintable():
        raise ConfigError(
            f"run {config.run[:80]!r}: use 1 to 128 printable bytes, the same for all peers of a run"
        )
    for what in ("name", "fingerprint"):
        values = [getattr(n, what) for n in config.neighbours]
        double = next((n.name for n in config.neighbours if values.count(getattr(n, what)) > 1), None)
        if double:
            raise ConfigError(f"neighbour {double!r} shares its {what} with another; each has its own")
    if config.wire.dtype not in WIRE_DTYPES:
        raise ConfigError(unknown_name("wire.dtype", config.wire.dtype, WIRE_DTYPES))
    if config.on_conviction not in ON_CONVICTION:
        raise ConfigError(unknown_name("on_conviction", config.on_conviction, ON_CONVICTION))
    if config.training.momentum_form not in MOMENTUM_FORMS:
        form = config.training.momentum_form
        raise ConfigError(unknown_name("training.momentum_form", form, MOMENTUM_FORMS))
    if config.misbehave and config.misbehave not in (*MISBEHAVIOURS, *FORMER_MISBEHAVIOURS):
        raise ConfigError(unknown_name("misbehaviour", config.misbehave, MISBEHAVIOURS))
    for part, key, low, high in _RANGES:
        value = getattr(getattr(config, part) if part else config, key)
        if not math.isfinite(value) or not low <= value <= high:
            name = f"{part}.{key}" if part else key
            raise ConfigError(f"{name} = {value} is out of bounds; choose {low:g} to {high:g}")
    for part, low_key, high_key in (
        ("deadlines", "least", "most"),
        ("limits", "backoff_least", "backoff_most"),
    ):
        low, high = getattr(getattr(config, part), low_key), getattr(getattr(config, part), high_key)
        if low > high:
            raise ConfigError(f"{part}.{low_key} = {low:g} exceeds {part}.{high_key} = {high:g}; swap them")


_RANGES = (
    ("", "rounds", 1, 2**53),
    ("", "seed", 0, 2**53),
    ("", "checkpoint_every", 1, 10**6),
    ("", "staleness", 0, 10**6),
    ("", "evaluate_every", 1, 10**6),
    ("training", "batch", 1, 10**6),
    ("training", "lr", 1e-12, 10**6),
    ("training", "lr_factor", 0, 10**6),
    ("training", "momentum", 0, 0.999999),
    ("deadlines", "least", 0.01, 600),
    ("deadlines", "most", 0.01, 3600),
    ("deadlines", "margin", 1, 100),
    ("deadlines", "join", 0, 3600),
    ("deadlines", "linger", 0, 3600),
    ("limits", "model_bytes", 1, 2**40),
    ("limits", "pulls_per_second", 0.1, 10**5),
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
