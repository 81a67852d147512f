"""`[network]`: a generator or a file, its weights, and where the Byzantine nodes sit."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, Self

from clippedgossip import decode, graphs
from clippedgossip.decode import KeyProblem
from clippedgossip.errors import ConfigError, NetworkError
from clippedgossip.graphs.registry import NETWORK
from clippedgossip.graphs.types import Graph
from clippedgossip.network import Network
from clippedgossip.network.optimal_weights import Robust

Weights = Literal["metropolis-hastings", "equal", "lazy", "optimal", "own"]
Nodes = tuple[int | str, ...]
PLACEMENTS: Mapping[str, Any] = {"random": int, "pendants": Nodes, "pendants_random": int, "worst": int}
RANDOM = ("random", "pendants_random")
KEYS: Mapping[str, Any] = {"name": str, "file": str, "max_degree": int, "seed": int}
ROBUST: Mapping[str, Any] = {"robust": int, "cap": float}


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """`name` and `parameters` of a generator, or a `file`.

    `byzantine` names nodes, or says how they are found: {"random": 2} of the nodes, {"pendants": [0, 3]}
    hung on these, {"pendants_random": 2} hung on nodes drawn at random, {"worst": 1} where they hurt most.
    `seed` serves the generator and the drawing; the run's own seed does not change the network.
    """

    name: str | None = None
    file: Path | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    weights: Weights | Mapping[str, Any] | None = None
    max_degree: int | None = None
    byzantine: Nodes | Mapping[str, Any] = ()
    seed: int | None = None
    folder: Path | None = field(default=None, compare=False, repr=False)
    """Where the user's own modules are looked for first."""

    def __post_init__(self) -> None:
        if (self.name is None) == (self.file is None):
            raise ConfigError("a network has a name or a file: give one of the two")
        thing = self._thing()
        if thing is not None:
            parameters = {key: said for key, said in thing.parameters.items() if key != "seed"}
            object.__setattr__(self, "name", thing.name)
            object.__setattr__(self, "parameters", parameters)
        if self.max_degree is not None and self.weights not in (None, "equal"):
            raise KeyProblem(
                ("network", "max_degree"), "network.max_degree goes with weights = 'equal' alone"
            )
        for count in self.byzantine.values() if isinstance(self.byzantine, Mapping) else ():
            if isinstance(count, int) and count < 0:
                raise KeyProblem(("network", "byzantine"), f"network.byzantine asks for {count}; at least 0")
        drawn = isinstance(self.byzantine, Mapping) and any(how in RANDOM for how in self.byzantine)
        random = drawn or (thing is not None and "seed" in thing.takes)
        if self.seed is None:
            object.__setattr__(self, "seed", 0 if random else None)
        elif not random:
            raise KeyProblem(
                ("network", "seed"),
                "network.seed has no effect: nothing about this network is random; drop it\n"
                "(the seed of the run stands at the top of the file)",
            )

    @classmethod
    def from_value(cls, raw: Any, folder: Path | None = None) -> Self:
        """From the section; a file's path is taken from `folder`."""
        path = ("network",)
        content = dict(decode.table(raw, path, example='name = "ring"'))
        known: dict[str, Any] = {}
        for key, hint in KEYS.items():
            if key in content:
                known[key] = decode.value(hint, content.pop(key), (*path, key))
        if "weights" in content:
            known["weights"] = _weights(content.pop("weights"), (*path, "weights"))
        if "byzantine" in content:
            known["byzantine"] = _placement(content.pop("byzantine"), (*path, "byzantine"))
        if "file" in known:
            known["file"] = (folder or Path()) / known["file"]
            _check_file(known["file"], content.pop("sha256", None))
        if "name" not in known:
            decode.known_keys(content, (*KEYS, "weights", "byzantine"), path)
        try:
            return cls(**known, parameters=content, folder=folder)
        except (ConfigError, NetworkError) as error:
            raise decode.within(path, error) from error

    def to_mapping(self) -> dict[str, Any]:
        """What identifies the network; of a file its name and digest, wherever it lies."""
        mapping: dict[str, Any] = (
            {"name": self.name, **self.parameters}
            if self.file is None
            else {"file": self.file.name, "sha256": digest(self.file)}
        )
        weights = dict(self.weights) if isinstance(self.weights, Mapping) else self.weights
        chosen = {"weights": weights, "max_degree": self.max_degree, "seed": self.seed}
        mapping |= {key: value for key, value in chosen.items() if value is not None}
        if self.byzantine:
            mapping["byzantine"] = (
                dict(self.byzantine) if isinstance(self.byzantine, Mapping) else list(self.byzantine)
            )
        return mapping

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
        return Network(graph, byzantine=nodes, weights=self.weights, max_degree=self.max_degree)

    def _graph(self) -> Graph:
        thing = self._thing()
        if thing is None:
            return graphs.read_graph(str(self.file))
        graph: Graph = thing.build()
        return graph

    def _thing(self) -> decode.Thing | None:
        """The generator with its parameters; its seed stands beside them."""
        if self.name is None:
            return None
        if "seed" in self.parameters:
            raise KeyProblem(("network", "seed"), "network.parameters has a seed; give it as network.seed")
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
            raise NetworkError(f"byzantine = {{worst = {count}}} leaves nothing to hurt; choose fewer")
        return tuple(network.labels[node] for node in found.nodes)


def digest(path: Path) -> str:
    """What is in the file, so that another content is another run."""
    try:
        return sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise NetworkError(f"cannot read {path}: {error.strerror}; a config's files lie beside it") from error


def _weights(raw: Any, path: decode.Path) -> Weights | dict[str, Any]:
    """A name, or {robust = b, cap = c}."""
    if not isinstance(raw, Mapping):
        name: Weights = decode.value(Weights, raw, path)
        return name
    decode.known_keys(raw, tuple(ROBUST), path)
    known = {key: decode.value(ROBUST[key], said, (*path, key)) for key, said in raw.items()}
    try:
        Robust.from_table(known)
    except NetworkError as error:
        raise KeyProblem(path, f"{'.'.join(path)}: {error}") from error
    return known


def _placement(raw: Any, path: decode.Path) -> Nodes | dict[str, Any]:
    if isinstance(raw, Mapping):
        decode.known_keys(raw, tuple(PLACEMENTS), path)
        if len(raw) != 1:
            raise KeyProblem(path, f"network.byzantine needs exactly one of {', '.join(PLACEMENTS)}")
        return {how: decode.value(PLACEMENTS[how], what, (*path, how)) for how, what in raw.items()}
    try:
        nodes: Nodes = decode.value(Nodes, raw, path)
        return nodes
    except KeyProblem:
        fix = "list the nodes, such as [0, 3], or say how to find them, such as {random = 2}"
        raise KeyProblem(path, f"network.byzantine is {raw!r}; {fix}") from None


def _check_file(file: Path, promised: object) -> None:
    if promised is not None and digest(file) != promised:
        raise KeyProblem(("network", "sha256"), f"{file} is not the file of this config: its content differs")
