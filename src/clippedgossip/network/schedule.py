"""Networks that change: which links of a network are used in each round.

The network itself is what may be used at all: the union of its rounds. A schedule chooses from it. Nothing is
kept between rounds: a round follows from the schedule, the run's seed and the number of the round, so that
the simulator, ranks and peers know the same one.
"""

import csv
import inspect
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse import csgraph

import clippedgossip.graphs as graphs
import clippedgossip.own as own
from clippedgossip.decode import Kind, known_keys, made
from clippedgossip.errors import NetworkError, UserError, counted, some
from clippedgossip.graphs.graph_files import csv_rows, digest
from clippedgossip.network.spectrum import Ints
from clippedgossip.network.weights import rows_of, starts

if TYPE_CHECKING:
    from torch import Tensor

    from clippedgossip.network.network import Network

Mask = NDArray[np.bool_]
Links = tuple[Ints, Ints]  # indptr and indices: whom each node hears in a round, in ascending order

BLOCK = 256  # rounds of churn that are drawn at once
HORIZON = 100  # rounds in which the links must connect the regular nodes, however short the run
LATEST = 1_000_000  # round that a file may name
SURVEYED = 30_000_000  # links that a survey looks at
GIVEN = ("network", "round", "seed")  # to a function of the user's own
PHASE = ("rounds", "without", "edges", "nodes", "network")


@dataclass(frozen=True)
class GraphSchedule:
    """One of your own has `pairs`, for the rounds of a run and for at least 100. Say `directed = True` if i
    may hear j while j does not hear i."""

    directed: ClassVar[bool] = False

    @property
    def period(self) -> int | None:
        """After how many rounds it repeats; None if it does not, or if nobody knows."""
        return None

    def check(self, network: "Network") -> None:
        """Refuse a network that the schedule does not fit."""
        return

    def pairs(self, network: "Network", round: int, seed: int) -> Iterable[tuple[Hashable, Hashable]]:
        """The links of a round as pairs of labels, or as a networkx graph; of a directed schedule, who hears
        and then who is heard."""
        raise NetworkError(
            f"the schedule {type(self).__name__} has no method pairs(network, round, seed)\n"
            "give it one that returns the links of a round, as pairs of labels"
        )

    def links(self, network: "Network", round: int, seed: int) -> Links:
        """Whom each node hears in a round. Rounds are counted from 0."""
        where = f"round {round + 1} of the schedule {self.name}"
        found = self.pairs(network, round, seed)
        found = getattr(found, "edges", found)  # of a graph
        if not isinstance(found, Iterable):
            raise NetworkError(
                f"{where} is {found!r}\nreturn the links of the round, as pairs of labels or as a graph"
            )
        return _masked(network, _chosen(network, found, where, both=not self.directed))

    @property
    def name(self) -> str:
        """Of its class or function."""
        return type(self).__name__


@dataclass(frozen=True)
class RandomNeighbours(GraphSchedule):
    """Every node hears so many of its neighbours, drawn anew in each round (epidemic learning). It is not
    heard by them in turn: the weights, 1/(s+1), are not symmetric."""

    neighbours: Annotated[int, "how many each node hears in a round"] = 3
    directed: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.neighbours < 1:
            raise NetworkError(f"neighbours is {self.neighbours}; a node hears at least 1 in a round")

    def check(self, network: "Network") -> None:
        most = int(network.degrees.max(initial=0))
        if self.neighbours > most:
            raise NetworkError(
                f"neighbours is {self.neighbours}; no node has more than {counted(most, 'neighbour')} to "
                f"draw from\n"
                f"{f'give at most {most}, or ' if most else ''}add links to the network"
            )

    def links(self, network: "Network", round: int, seed: int) -> Links:
        nodes, degrees = np.arange(network.n), network.degrees
        drawn = self.places(_torch(nodes), _torch(degrees), _torch(np.array([round])), seed)[:, 0].numpy()
        places = np.sort(drawn.T, 1)
        counts = np.minimum(degrees, self.neighbours)
        flat = places[places < degrees[:, None]]
        rows = np.repeat(nodes, counts)
        heard = flat + (flat >= rows) if _complete(network) else network.indices[network.indptr[rows] + flat]
        return starts(counts), heard

    def places(self, nodes: "Tensor", degrees: "Tensor", rounds: "Tensor", seed: int) -> "Tensor":
        """(s, rounds, n) which of its neighbours each of the nodes hears (Floyd's sampling), on the device of
        the nodes. Places from the degree on mean nobody."""
        import torch

        from clippedgossip.randomness import hash_bits

        steps = torch.arange(self.neighbours, device=nodes.device)[:, None, None]
        last = (degrees - self.neighbours + steps).clamp(min=0)
        bits = hash_bits(seed, "neighbours", rounds[:, None], nodes, steps)
        drawn = (((bits >> 33) & 0x7FFFFFFF) * (last + 1)) >> 31
        for k in range(1, self.neighbours):
            taken = (drawn[:k] == drawn[k]).any(0)
            drawn[k] = last[k].where(taken, drawn[k])
        return steps.where(degrees <= self.neighbours, drawn)


@dataclass(frozen=True)
class RandomMatching(GraphSchedule):
    """Every node has one partner or none: a matching of the network, drawn anew in each round. On a complete
    network only one node of an odd number has none."""

    def links(self, network: "Network", round: int, seed: int) -> Links:
        from clippedgossip.randomness import hash_bits

        if _complete(network):
            order = hash_bits(seed, "matching", round, _torch(np.arange(network.n))).numpy().argsort()
            half = network.n // 2
            a, b = order[:half], order[half : 2 * half]
            return _both_ways(network.n, a, b)
        a, b = _once(network)
        order = hash_bits(seed, "matching", round, _torch(a), _torch(b)).numpy().argsort()
        return _both_ways(network.n, *_greedy(network.n, a[order], b[order]))


@dataclass(frozen=True)
class OnePeerExponential(GraphSchedule):
    """In round t node i hears i − 2^(t mod ⌈log₂ n⌉) alone, by half (Ying et al., 2021). Where n is a power
    of 2, so many rounds without Byzantine nodes give the exact average."""

    directed: ClassVar[bool] = True

    def check(self, network: "Network") -> None:
        for round in range(self._count(network)):
            nodes, jump = np.arange(network.n), 1 << round
            if not network.everyone and not _known(network, nodes, (nodes - jump) % network.n).all():
                raise NetworkError(
                    f"one-peer-exponential needs a link from every node i to i − {jump}; some are not there\n"
                    'take name = "exponential" or "complete"'
                )

    @staticmethod
    def _count(network: "Network") -> int:
        return max(1, (network.n - 1).bit_length())

    def links(self, network: "Network", round: int, seed: int) -> Links:
        jump = 1 << round % self._count(network)
        nodes = np.arange(network.n)
        return np.arange(network.n + 1), (nodes - jump) % network.n


@dataclass(frozen=True)
class Churn(GraphSchedule):
    """Nodes come and go: in each round a node that is there leaves with the probability `leave`, one that is
    away comes back with `join`. Whoever is away hears nobody and trains on by itself. All are there at first.
    """

    leave: Annotated[float, "probability of leaving, in a round"] = 0.05
    join: Annotated[float, "probability of coming back, in a round"] = 0.2

    def __post_init__(self) -> None:
        for name, value in (("leave", self.leave), ("join", self.join)):
            if not 0 <= value <= 1:
                raise NetworkError(f"{name} is {value:g}; a probability lies in 0..1")
        if self.leave and not self.join:
            raise NetworkError(
                f"join is 0 beside leave = {self.leave:g}; in time nobody would be left\n"
                "give join a value above 0"
            )

    def check(self, network: "Network") -> None:
        there = network.n * self.join / (self.leave + self.join) if self.leave else network.n
        if there < 2 <= network.n:
            raise NetworkError(
                f"leave = {self.leave:g} and join = {self.join:g} leave {there:.2g} of {network.n} nodes "
                "there, on average; it takes two to exchange models\nlower leave, or raise join"
            )

    def present(self, nodes: int, round: int, seed: int) -> Mask:
        """(n,) who is there."""
        found: Mask = _presence(self.leave, self.join, nodes, seed, round // BLOCK)[round % BLOCK]
        return found

    def links(self, network: "Network", round: int, seed: int) -> Links:
        return _masked(network, _within(network, self.present(network.n, round, seed)))


@dataclass(frozen=True)
class Phases(GraphSchedule):
    """One part of the network after the other, each for so many `rounds`: all links, or those `without` some,
    or only these `edges`, or those among these `nodes`, or those of another `network`."""

    phases: Annotated[tuple[Mapping[str, Any], ...], "tables with rounds, and what is used of the network"]
    repeat: Annotated[bool, "begin again after the last; otherwise the last one stays"] = True

    def __post_init__(self) -> None:
        if not self.phases:
            raise NetworkError("phases is empty; give at least one, such as {rounds = 1}")
        for place, phase in enumerate(self.phases):
            known_keys(phase, PHASE, ("phases", str(place)))
            rounds = phase.get("rounds")
            if not isinstance(rounds, int) or isinstance(rounds, bool) or rounds < 1:
                raise NetworkError(
                    f"phase {place + 1} has rounds = {rounds!r}; give a whole number, at least 1"
                )
            if len(phase) > 2:
                said = ", ".join(key for key in phase if key != "rounds")
                raise NetworkError(
                    f"phase {place + 1} has {said}; give one of without, edges, nodes and network"
                )

    @property
    def period(self) -> int | None:
        return sum(int(phase["rounds"]) for phase in self.phases) if self.repeat else None

    def check(self, network: "Network") -> None:
        for place in range(len(self.phases)):
            self._mask(network, place)

    def links(self, network: "Network", round: int, seed: int) -> Links:
        ends = np.cumsum([phase["rounds"] for phase in self.phases])
        place = int(np.searchsorted(ends, round % ends[-1] if self.repeat else round, side="right"))
        return _masked(network, self._mask(network, min(place, len(self.phases) - 1)))

    def _mask(self, network: "Network", place: int) -> Mask:
        def compute() -> Mask:
            phase, where = self.phases[place], f"phase {place + 1}"
            if "nodes" in phase:
                among = np.zeros(network.n, dtype=bool)
                among[_nodes(network, phase["nodes"], where)] = True
                return _within(network, among)
            if "network" in phase:
                return _chosen(network, _edges_of(network, phase["network"], where), where)
            if "edges" in phase:
                return _chosen(network, phase["edges"], where)
            return ~_chosen(network, phase.get("without", ()), where)

        return network.remember(("phase", place), compute)


@dataclass(frozen=True)
class EdgeFile(GraphSchedule):
    """Links from a .csv file with the lines `round,node,node`, rounds counted from 1. After the last round it
    begins again; a round without a line has no links."""

    file: Annotated[str, "a .csv file"]
    sha256: Annotated[str | None, "the digest of the file"] = None
    folder: Path | None = None

    def __post_init__(self) -> None:
        if self.sha256 is not None and self.digest != self.sha256:
            raise NetworkError(
                f"{self.file} is not the file of this config: its content differs\ndrop sha256 to use it"
            )

    @property
    def path(self) -> Path:
        return (self.folder or Path()) / self.file

    @property
    def digest(self) -> str:
        return digest(self.path)

    @property
    def period(self) -> int | None:
        return len(self._rounds)

    @property
    def _rounds(self) -> tuple[tuple[tuple[str, str], ...], ...]:
        return _read_rounds(str(self.path), self.digest)

    def phases(self) -> list[dict[str, Any]]:
        """The same as phases of one round each."""
        return [{"rounds": 1, "edges": [list(pair) for pair in pairs]} for pairs in self._rounds]

    def check(self, network: "Network") -> None:
        for round, pairs in enumerate(self._rounds):
            if pairs:
                self._mask(network, round)

    def links(self, network: "Network", round: int, seed: int) -> Links:
        count = network.remember("rounds", lambda: len(self._rounds))
        return _masked(network, self._mask(network, round % count))

    def _mask(self, network: "Network", round: int) -> Mask:
        where = f"{self.path}, round {round + 1}"
        return network.remember(("file", round), lambda: _chosen(network, self._rounds[round], where))


@dataclass(frozen=True)
class FunctionSchedule(GraphSchedule):
    """A function of your own of the round, and of the network and the seed if it takes them. It returns what
    `pairs` of a schedule returns."""

    function: Callable[..., Any]
    parameters: tuple[tuple[str, Any], ...] = ()  # of the function, beside those

    def __post_init__(self) -> None:
        takes = inspect.signature(self.function)
        named = dict(self.parameters) | {name: None for name in GIVEN if name in takes.parameters}
        named["round"] = None  # what every one must take
        try:
            takes.bind(**named)
        except TypeError as error:
            raise NetworkError(
                f"the schedule {self.name} is a function of {takes}: {error}\n"
                "make it one of (round), or of (network, round, seed)"
            ) from error

    @property
    def name(self) -> str:
        return str(getattr(self.function, "__qualname__", type(self.function).__qualname__))

    def __repr__(self) -> str:
        said = [self.name, *(f"{name}={value!r}" for name, value in self.parameters)]
        return f"FunctionSchedule({', '.join(said)})"

    def pairs(self, network: "Network", round: int, seed: int) -> Any:
        takes, given = inspect.signature(self.function).parameters, (network, round, seed)
        named = {name: said for name, said in zip(GIVEN, given, strict=True) if name in takes}
        return self.function(**named, **dict(self.parameters))


@lru_cache(maxsize=32)
def _scheduled(function: Callable[..., Any]) -> Callable[..., GraphSchedule]:
    """Of a function of the round, what makes its schedule from its other parameters. Others return one."""
    takes = inspect.signature(function).parameters
    if "round" not in takes:
        return function

    @wraps(function)
    def make(**values: Any) -> GraphSchedule:
        return FunctionSchedule(function, tuple(values.items()))

    others = [parameter for name, parameter in takes.items() if name not in GIVEN]
    make.__signature__ = inspect.Signature(others)  # type: ignore[attr-defined]  # Python looks for it
    return make


SCHEDULE = Kind(
    word="schedule",
    names={
        "random-neighbours": RandomNeighbours,
        "random-matching": RandomMatching,
        "one-peer-exponential": OnePeerExponential,
        "churn": Churn,
        "phases": Phases,
        "file": EdgeFile,
    },
    base=GraphSchedule,
    group="clippedgossip.schedules",
    fix="make it a function of the round that returns its links, or a GraphSchedule with a method pairs",
    of_function=_scheduled,
    offered=("folder",),
    error=NetworkError,
)


def network_at(network: "Network", schedule: GraphSchedule, round: int, seed: int) -> "Network":
    """The network of a round. What an own schedule raises or causes becomes two lines."""
    try:
        return network.with_links(*schedule.links(network, round, seed))
    except UserError:
        raise
    except Exception as error:  # the user's own schedule may raise anything
        if type(schedule) in SCHEDULE.names.values():
            raise
        raise NetworkError(
            f"round {round + 1} of the schedule {schedule.name} {own.raised(error)}"
        ) from error


def schedule_of(said: object) -> GraphSchedule:
    """A schedule from Python: itself, a function, or the words that a config uses."""
    if isinstance(said, GraphSchedule):
        return said
    if isinstance(said, str | Mapping):
        words = {"name": said} if isinstance(said, str) else dict(said)
        found: GraphSchedule = made(SCHEDULE, str(words.pop("name", "")), words)
        return found
    if callable(said) and not isinstance(said, type):
        return FunctionSchedule(said)
    raise NetworkError(
        f"schedule is {said!r}\ngive a name ({', '.join(SCHEDULE.names)}), a GraphSchedule or a function"
    )


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What the rounds of a run have at most, and whether their links connect the regular nodes."""

    rounds: int  # that were looked at
    whole: bool  # whether these are all rounds of the run
    width: int  # neighbours of a regular node
    byzantine_links: int  # from Byzantine to regular nodes, in a round
    faulty: int  # Byzantine neighbours of a regular node
    delta_max: float
    counts: tuple[int, ...]  # numbers of neighbours that occur
    connected: bool


def survey(network: "Network", rounds: int, seed: int) -> Survey:
    """Look at the rounds of a run, or at as many as a large network allows."""
    return network.remember(("survey", rounds, seed), lambda: _survey(network, rounds, seed))


def _survey(network: "Network", rounds: int, seed: int) -> Survey:
    each = max(1, len(network.at(0, seed).indices))
    period = 1 if network.schedule is None else network.schedule.period
    wanted = min(period or max(rounds, HORIZON), max(rounds, HORIZON))
    looked = min(wanted, max(2, SURVEYED // each))
    width = links = faulty = 0
    delta, counts, parts = 0.0, set[int](), np.arange(len(network.regular))
    for round in range(looked):
        now = network.at(round, seed)
        degrees = now.degrees[now.regular]
        byzantine = now.byzantine_neighbours
        if round < rounds:
            counts.update(np.unique(degrees).tolist())
            width, links = max(width, int(degrees.max())), max(links, int(byzantine.sum()))
            faulty, delta = max(faulty, int(byzantine.max())), max(delta, now.delta_max)
        if parts.any():
            parts = joined(now, parts)
    return Survey(
        rounds=looked,
        whole=looked == wanted,
        width=width,
        byzantine_links=links,
        faulty=faulty,
        delta_max=delta,
        counts=tuple(sorted(counts)),
        connected=not parts.any(),
    )


def joined(now: "Network", parts: Ints) -> Ints:
    """The parts of the regular nodes after this round's links: 0 everywhere if they are one."""
    indptr, indices, _, _ = now.regular_csr
    count = int(parts.max()) + 1
    ends = parts[rows_of(indptr)], parts[indices]
    graph = sparse.coo_array((np.ones(len(indices)), ends), shape=(count, count))
    found: Ints = csgraph.connected_components(graph, directed=False)[1].astype(np.int64)
    return found[parts]


def _torch(array: Ints) -> Any:
    import torch

    return torch.tensor(array)


def _masked(network: "Network", mask: Mask) -> Links:
    """The links of the network where the mask holds."""
    return starts(mask)[network.indptr], network.indices[mask]


def _within(network: "Network", among: Mask) -> Mask:
    """The links among some nodes."""
    return np.repeat(among, np.diff(network.indptr)) & among[network.indices]


def _once(network: "Network") -> tuple[Ints, Ints]:
    """Both ends of each edge of the network."""
    rows = rows_of(network.indptr)
    first = rows < network.indices
    return rows[first], network.indices[first]


def _complete(network: "Network") -> bool:
    """Whether every two nodes are neighbours: then a neighbour's number needs no look into a list."""
    return network.everyone or len(network.indices) == network.n * (network.n - 1)


def _both_ways(n: int, a: Ints, b: Ints) -> Links:
    """Pairs of a matching as links."""
    partner = np.full(n, -1, dtype=np.int64)
    partner[a], partner[b] = b, a
    paired = partner >= 0
    return starts(paired), partner[paired]


def _greedy(n: int, a: Ints, b: Ints) -> tuple[Ints, Ints]:
    """Take edges in their order wherever both ends are free; all at once that come first at both ends."""
    free, taken = np.ones(n, dtype=bool), [(a[:0], b[:0])]
    while len(a):
        place = np.arange(len(a))
        first_a, first_b = (np.full(n, len(a), dtype=np.int64) for _ in range(2))
        first_a[a[::-1]], first_b[b[::-1]] = place[::-1], place[::-1]  # the last to be written stays
        first = np.minimum(first_a, first_b)
        chosen = (first[a] == place) & (first[b] == place)
        taken.append((a[chosen], b[chosen]))
        free[a[chosen]] = free[b[chosen]] = False
        left = free[a] & free[b]
        a, b = a[left], b[left]
    return np.concatenate([x for x, _ in taken]), np.concatenate([y for _, y in taken])


@lru_cache(maxsize=4)
def _presence(leave: float, join: float, nodes: int, seed: int, block: int) -> Mask:
    """(BLOCK, n) who is there in these rounds."""
    from clippedgossip.randomness import hash_uniform

    before = None if not block else _presence(leave, join, nodes, seed, block - 1)[-1]
    rounds = np.arange(block * BLOCK, (block + 1) * BLOCK)
    drawn = hash_uniform(seed, "churn", _torch(rounds)[:, None], _torch(np.arange(nodes))).numpy()
    found = np.empty(drawn.shape, dtype=bool)
    for place, chance in enumerate(drawn):
        found[place] = True if before is None else np.where(before, chance >= leave, chance < join)
        before = found[place]
    return found


def _keys(network: "Network") -> Ints:
    """A number for each link of the network, in ascending order."""
    return network.remember("keys", lambda: rows_of(network.indptr) * network.n + network.indices)


def _known(network: "Network", rows: Ints, columns: Ints) -> Mask:
    """Which of these are links of the network."""
    keys = _keys(network)
    wanted = rows * network.n + columns
    place = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
    return keys[place] == wanted if len(keys) else np.zeros(len(wanted), dtype=bool)


def _chosen(network: "Network", pairs: Iterable[Any], where: str, *, both: bool = True) -> Mask:
    """The links that these pairs of labels name, as a mask of the network's."""
    if network.everyone:
        raise NetworkError(
            f"{where} names links, and a complete network of {network.n} nodes lists none\nname nodes instead"
        )
    listed = [tuple(pair) if isinstance(pair, list | tuple) else (pair,) for pair in pairs]
    wrong = next((pair for pair in listed if len(pair) != 2), None)
    if wrong is not None:
        raise NetworkError(f"{where} has the link {wrong!r}; a link is a pair of nodes, such as [0, 3]")
    ends = _nodes(network, [node for pair in listed for node in pair], where).reshape(-1, 2)
    a, b = (np.concatenate([ends, ends[:, ::-1]]) if both else ends).T
    known = _known(network, a, b)
    if not known.all():
        one, other = (network.labels[int(end[np.argmin(known)])] for end in (a, b))
        raise NetworkError(
            f"{where} has the link {one}–{other}, and the network has not\n"
            "a schedule chooses from the network's links: take a network that has them all"
        )
    mask = np.zeros(len(network.indices), dtype=bool)
    mask[np.searchsorted(_keys(network), a * network.n + b)] = True
    return mask


def _nodes(network: "Network", names: Any, where: str) -> Ints:
    """Places of the nodes of these names."""
    labels = map(str, network.labels)
    index = network.remember("places", lambda: {label: place for place, label in enumerate(labels)})
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise NetworkError(f"{where} has the nodes {names!r}; give a list of them: [{names!r}]")
    found = []
    for name in names:
        if str(name) not in index:
            raise NetworkError(
                f"{where} names node {name!r}, and the network has none of that name\n"
                f"its nodes are {some(network.labels)}"
            )
        found.append(index[str(name)])
    return np.array(found, dtype=np.int64)


def _edges_of(network: "Network", said: Any, where: str) -> list[tuple[Hashable, Hashable]]:
    """The edges of a generator's graph, on the network's nodes in their order."""
    table = {"name": said} if isinstance(said, str) else dict(said)
    name = str(table.pop("name", ""))
    if "nodes" in graphs.parameters(name):
        table.setdefault("nodes", network.n)
    graph = graphs.build(name, **table)
    if len(graph) != network.n:
        raise NetworkError(f"{where} has {len(graph)} nodes, the network {network.n}; give both the same")
    labels = dict(zip(graph, network.labels, strict=True))
    return [(labels[a], labels[b]) for a, b in graph.edges]


@lru_cache(maxsize=8)
def _read_rounds(path: str, digest: str) -> tuple[tuple[tuple[str, str], ...], ...]:
    """The pairs of each round of a file; `digest` is that of its content."""
    try:
        lines = csv_rows(path)
    except (UnicodeDecodeError, csv.Error) as error:
        raise NetworkError(
            f"cannot read {path}: {error}\ngive text with the lines round,node,node"
        ) from error
    header = bool(lines) and lines[0][1][0].lower() == "round"
    found: dict[int, list[tuple[str, str]]] = {}
    for number, row in lines[header:]:
        if len(row) != 3 or not row[0].isdecimal() or len(row[0]) > 7 or not 1 <= int(row[0]) <= LATEST:
            raise NetworkError(
                f"{path} line {number} is {','.join(row)[:80]!r}\n"
                f"every line is 'round,node,node', rounds counted from 1, at most {LATEST:,}"
            )
        found.setdefault(int(row[0]), []).append((row[1], row[2]))
    if not found:
        raise NetworkError(f"{path} has no links; give lines such as 1,0,3")
    return tuple(tuple(found.get(round, ())) for round in range(1, max(found) + 1))
