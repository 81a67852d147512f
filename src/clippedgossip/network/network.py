"""A network: graph, Byzantine set and mixing weights, and what the paper derives from them."""

import html
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import cached_property
from numbers import Integral
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import networkx as nx
import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse import csgraph

import clippedgossip.graphs as graphs
from clippedgossip.errors import NetworkError, kind_of, unknown_name, warn_user
from clippedgossip.graphs.generators import Graph
from clippedgossip.network import spectrum
from clippedgossip.network import weights as mixing
from clippedgossip.network.delay import Delay, delay_of
from clippedgossip.network.schedule import GraphSchedule, network_at, schedule_of
from clippedgossip.network.spectrum import Floats, Ints

if TYPE_CHECKING:
    from clippedgossip.audit import Audit

T = TypeVar("T")
Matrix = Floats | spectrum.Csr

DRAWN = 200  # nodes; larger networks are not drawn
DENSE_LIMIT = 2000  # above this many nodes no n×n array is formed


class Network:
    """Frozen. Nodes are 0..n-1 in the graph's order; neighbours are in ascending order.

    The Byzantine nodes are those that the graph marks, and those in `byzantine`. The default of `weights` is
    what `graph.graph["weights"]` says (graph files with weights and some generators say "own"), otherwise
    Metropolis–Hastings. The `weight` of an edge counts only with "own". `max_degree` is the bound d_max of
    equal weights, which all nodes know. "optimal" weights have the largest γ that the graph allows;
    {"robust": b, "cap": c} the largest with which no b neighbours of a node hold more than c together.
    Degrees count Byzantine neighbours.

    With a `schedule` each round uses some of the links: `at` gives the network of a round. With a `delay`
    messages come late. Both are objects, or the words of a config; a schedule may be a function.
    """

    labels: tuple[Hashable, ...]
    n: int
    indptr: Ints
    indices: Ints
    regular: Ints
    byzantine: Ints
    is_byzantine: NDArray[np.bool_]  # (n,) which nodes are
    weighting: str
    max_degree: int | None
    groups: Mapping[str, Ints]
    schedule: GraphSchedule | None = None
    delay: Delay | None = None
    everyone: bool = False  # complete, without a list of its links
    _values: Floats
    _selves: Floats
    _memo: dict[Hashable, Any]

    def __init__(
        self,
        graph: Graph,
        *,
        byzantine: Iterable[Hashable] = (),
        weights: str | Mapping[str, Any] | Floats | sparse.sparray | sparse.spmatrix | None = None,
        max_degree: int | None = None,
        schedule: GraphSchedule | str | Mapping[str, Any] | Callable[..., Any] | None = None,
        delay: Delay | int | Mapping[str, Any] | None = None,
    ) -> None:
        _check_graph(graph)
        labels = tuple(graph)
        index = {label: i for i, label in enumerate(labels)}
        is_byzantine = np.zeros(len(labels), dtype=bool)
        for label in (*graphs.byzantine_nodes(graph), *graphs.find_nodes(graph, byzantine)):
            is_byzantine[index[label]] = True
        if is_byzantine.all():
            raise NetworkError(f"all {len(labels)} nodes are Byzantine; at least one must be regular")
        indptr, indices = _csr(graph, index)
        if weights is None:
            usual = str(graph.graph.get("weights", "metropolis-hastings"))
            weights = usual if max_degree is None else "equal"
            if weights != "own" and any("weight" in data for _, _, data in graph.edges(data=True)):
                warn_user(
                    f"the weights of the graph's edges are not used, {weights} weights are\n"
                    f'give weights="own" to use them, or weights="{weights}" if they mean something else'
                )
        weighting, values, selves = mixing.resolve(
            graph, labels, indptr, indices, is_byzantine, weights, max_degree
        )
        self._fill(
            labels=labels,
            indptr=indptr,
            indices=indices,
            weighting=weighting,
            max_degree=max_degree,
            groups=_groups(graph, index, is_byzantine),
            is_byzantine=is_byzantine,
            _values=values,
            _selves=selves,
            everyone=bool(graph.graph.get("everyone", False)),
        )
        if schedule is not None:
            self.__dict__["schedule"] = schedule_of(schedule)
            self.__dict__["schedule"].check(self)
        if delay is not None:
            self.__dict__["delay"] = delay_of(delay)

    def _fill(self, **fields: Any) -> None:
        is_byzantine = fields["is_byzantine"]
        fields["_memo"] = {}
        fields["n"] = len(fields["labels"])
        fields["regular"] = np.flatnonzero(~is_byzantine).astype(np.int64)
        fields["byzantine"] = np.flatnonzero(is_byzantine).astype(np.int64)
        for value in fields.values():
            if isinstance(value, np.ndarray):
                value.flags.writeable = False
        self.__dict__.update(fields)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a network is frozen; build a new one instead of setting {name!r}")

    def __repr__(self) -> str:
        return (
            f"Network({self.n} nodes, {self.edge_count} edges, {len(self.byzantine)} Byzantine, "
            f"{self.weighting}{''.join(f', {part}' for part in (self.schedule, self.delay) if part)})"
        )

    def _repr_html_(self) -> str:
        """For notebooks: a summary, γ and δ_max, and a drawing if the network is small enough."""
        from clippedgossip.report.figures.canvas import standalone
        from clippedgossip.report.network_drawing import network_svg

        drawing = standalone(network_svg(self)).partition("\n")[2] if self.n <= DRAWN else ""
        text = html.escape(f"{self!r}: γ = {self.spectral_gap:.4g}, δ_max = {self.delta_max:.4g}")
        return f"<div><p><code>{text}</code></p>{drawing}</div>"

    def neighbors(self, node: Hashable) -> tuple[Hashable, ...]:
        """The labels of a node's neighbours; the node is named by its label.

        cg.Network(nx.path_graph(3)).neighbors(1)  # (0, 2)
        """
        by_text = {str(label): i for i, label in enumerate(self.labels)}
        if str(node) not in by_text:
            raise NetworkError(unknown_name("node", str(node), by_text))
        i = self.labels.index(node) if node in self.labels else by_text[str(node)]
        return tuple(self.labels[j] for j in self.indices[self.indptr[i] : self.indptr[i + 1]])

    def audit(
        self, *, more_byzantine: int = 1, suggestions: int = 3, rounds: int = 1000, seed: int = 0
    ) -> "Audit":
        """The diagnosis of this network, as `clippedgossip audit` prints it: `print(network.audit())`.

        It also finds where `more_byzantine` further Byzantine nodes would do most harm, and proposes
        `suggestions` edges. `rounds` and `seed` are those of a run, for a schedule.
        """
        from clippedgossip.audit import audit

        return audit(self, more_byzantine=more_byzantine, suggestions=suggestions, rounds=rounds, seed=seed)

    def at(self, round: int, seed: int = 0) -> "Network":
        """The network of a round (counted from 0) of a run with this seed; without a schedule this one.

        Weights are those of the round: constructed ones from its degrees; own, optimal and robust ones stay
        as they are, and what an unused link had goes to the node itself. Where the schedule is directed, a
        node that hears d others gives each of them 1/(d+1): rows sum to 1, columns need not.
        """
        if self.schedule is None:
            return self
        if not isinstance(round, Integral) or round < 0:
            raise NetworkError(f"round is {round!r}; it must be a whole number, at least 0")
        known = self._memo.get("now")
        if known is None or known[0] != (round, seed):
            self._memo["now"] = known = (round, seed), network_at(self, self.schedule, round, seed)
        now: Network = known[1]
        return now

    def with_links(self, indptr: Ints, indices: Ints) -> "Network":
        """The network of a round that uses these links alone: whom each node hears."""
        assert self.schedule is not None
        if self.fixed_weights:
            keys = self.remember("keys", lambda: mixing.rows_of(self.indptr) * self.n + self.indices)
            values = self._values[np.searchsorted(keys, mixing.rows_of(indptr) * self.n + indices)]
        elif self.schedule.directed:
            counts = np.diff(indptr)
            values = np.repeat((0.5 if self.weighting == "lazy" else 1.0) / (counts + 1.0), counts)
        else:
            values = mixing.constructed(self.weighting, indptr, indices, self.max_degree)
        selves = 1 - mixing.row_sums(indptr, values)
        return self._with(indptr, indices, values, selves, delay=self.delay)

    def _with(self, indptr: Ints, indices: Ints, values: Floats, selves: Floats, **more: Any) -> "Network":
        """The same nodes with other links and weights."""
        network: Network = object.__new__(Network)
        same = ("labels", "weighting", "max_degree", "groups", "is_byzantine")
        links = {"indptr": indptr, "indices": indices, "_values": values, "_selves": selves}
        network._fill(**{name: getattr(self, name) for name in same} | links | more)
        return network

    def remember(self, name: Hashable, compute: Callable[[], T]) -> T:
        """What `compute` gives, computed once."""
        if name not in self._memo:
            self._memo[name] = compute()
        found: T = self._memo[name]
        return found

    @property
    def changes(self) -> bool:
        """Whether rounds differ: other links, or messages of other rounds."""
        return self.schedule is not None or self.delay is not None

    @cached_property
    def degrees(self) -> Ints:
        """Number of neighbours of every node, Byzantine ones included."""
        if self.everyone:
            return _frozen(np.full(self.n, self.n - 1, dtype=np.int64))
        return _frozen(np.diff(self.indptr))

    @property
    def edge_count(self) -> int:
        """Number of edges. In a round of a directed schedule, half of the links."""
        return int(self.degrees.sum()) // 2

    @cached_property
    def byzantine_neighbours(self) -> Ints:
        """Number of Byzantine neighbours of every regular node."""
        if self.everyone:
            return np.full(len(self.regular), len(self.byzantine), dtype=np.int64)
        rows = mixing.rows_of(self.indptr)[self.is_byzantine[self.indices]]
        return np.bincount(rows, minlength=self.n)[self.regular].astype(np.int64)

    @property
    def fixed_weights(self) -> bool:
        """Whether weights do not follow from the degrees. Then a new edge does not change the others."""
        return self.weighting in ("own", "optimal", "robust")

    def edge_weights(self) -> Floats:
        """W_ij of every directed edge, in CSR order."""
        return self._values

    def self_weights(self) -> Floats:
        """W_ii of every node."""
        return self._selves

    @cached_property
    def weights(self) -> Matrix:
        """W: row-stochastic, n×n; sparse above 2000 nodes."""
        return _matrix(self.indptr, self.indices, self._values, self._selves)

    @cached_property
    def regular_weights(self) -> Matrix:
        """W̃ on the regular nodes: Byzantine weight moved to the diagonal; symmetric, doubly stochastic."""
        return _matrix(*self.regular_csr)

    @cached_property
    def regular_csr(self) -> tuple[Ints, Ints, Floats, Floats]:
        """W̃ as indptr, indices, edge weights and self-weights, on positions in `regular`."""
        rows = mixing.rows_of(self.indptr)
        keep = ~(self.is_byzantine[rows] | self.is_byzantine[self.indices])
        renumber = np.cumsum(~self.is_byzantine) - 1
        counts = np.bincount(renumber[rows[keep]], minlength=len(self.regular))
        selves = self._selves[self.regular] + self.delta
        return mixing.starts(counts), renumber[self.indices[keep]], self._values[keep], selves

    @cached_property
    def spectral_gap(self) -> float:
        """γ of W̃: 1 − max(|λ₂|, |λ_n|); 0 iff the regular part is disconnected."""
        return self.gap.value

    @cached_property
    def gap(self) -> spectrum.Gap:
        """γ of W̃ with its eigenvectors and whether it is exact."""
        if self.everyone:  # W̃ is 1/n off its diagonal, and δ + 1/n on it
            rest = len(self.byzantine) / self.n
            return spectrum.Gap(value=1 - rest, lambda2=rest, fiedler=None)
        return spectrum.spectral_gap(spectrum.matrix(*self.regular_csr))

    @cached_property
    def spectral_gap_full(self) -> float:
        """γ of the full W, Byzantine nodes counted as if they were regular."""
        return self.gap_full.value

    @cached_property
    def gap_full(self) -> spectrum.Gap:
        """γ of the full W and whether it is exact."""
        if not len(self.byzantine):
            return self.gap
        full = spectrum.matrix(self.indptr, self.indices, self._values, self._selves)
        if mixing.is_symmetric(self.indptr, self.indices, self._values):
            return spectrum.spectral_gap(full)
        return spectrum.asymmetric_gap(full)

    @cached_property
    def p(self) -> float:
        """1 − (1 − γ)²."""
        return 1 - (1 - self.spectral_gap) ** 2

    @cached_property
    def delta(self) -> Floats:
        """δ_i: the Byzantine weight around each regular node."""
        if self.everyone:
            return _frozen(np.full(len(self.regular), len(self.byzantine) / self.n))
        to_byzantine = np.where(self.is_byzantine[self.indices], self._values, 0.0)
        return _frozen(mixing.row_sums(self.indptr, to_byzantine)[self.regular])

    @cached_property
    def delta_max(self) -> float:
        """The largest δ_i."""
        return float(self.delta.max())

    @cached_property
    def components(self) -> tuple[Ints, ...]:
        """The connected parts of the regular nodes, largest first, as node indices."""
        if self.everyone:
            return (self.regular,)
        indptr, indices, values, _ = self.regular_csr
        m = len(self.regular)
        count, part = csgraph.connected_components(sparse.csr_array((values, indices, indptr), shape=(m, m)))
        order = np.argsort(part, kind="stable")
        parts = np.split(self.regular[order], np.cumsum(np.bincount(part, minlength=count))[:-1])
        return tuple(sorted(parts, key=lambda nodes: (-len(nodes), int(nodes[0]))))

    @cached_property
    def connected(self) -> bool:
        """Assumption (Connectivity): every two regular nodes are connected by a path of regular nodes."""
        return len(self.components) == 1

    def with_edges(self, edges: Iterable[tuple[int, int]]) -> "Network":
        """The network with these edges (pairs of node indices) added, and with new weights.

        Own, optimal and robust weights stay as they are; a new edge gets 1/(max degree + 1), or half the
        smaller self-weight if that is less.
        """
        pairs = np.array(list(edges), dtype=np.int64).reshape(-1, 2)
        keys = mixing.rows_of(self.indptr) * self.n + self.indices
        new = np.concatenate([pairs @ [self.n, 1], pairs @ [1, self.n]])
        if (pairs[:, 0] == pairs[:, 1]).any() or np.isin(new, keys).any() or len(np.unique(new)) < len(new):
            raise NetworkError(f"edges to add must be new and join two nodes; got {pairs.tolist()}")
        order = np.argsort(new)
        place = np.searchsorted(keys, new[order])
        indices = np.insert(self.indices, place, new[order] % self.n)
        degrees = self.degrees + np.bincount(pairs.ravel(), minlength=self.n)
        indptr = mixing.starts(degrees)
        if self.fixed_weights:
            selves = self._selves.copy()
            taken = []
            for i, j in pairs.tolist():
                taken.append(min(1 / (max(degrees[i], degrees[j]) + 1), selves[i] / 2, selves[j] / 2))
                selves[[i, j]] -= taken[-1]
            values = np.insert(self._values, place, np.array(taken * 2)[order])
        else:
            bound = None if self.max_degree is None else max(self.max_degree, int(degrees.max()))
            values = mixing.constructed(self.weighting, indptr, indices, bound)
            selves = 1 - mixing.row_sums(indptr, values)
        weighting = "own" if self.fixed_weights else self.weighting
        return self._with(indptr, indices, values, selves, weighting=weighting)

    def to_networkx(self) -> Graph:
        """The network as a new networkx graph: Byzantine nodes marked, W on the edges."""
        groups = {name: [self.labels[i] for i in nodes] for name, nodes in self.groups.items()}
        graph: Graph = nx.Graph(weights="own", groups=groups)
        graph.add_nodes_from(self.labels)
        graph.add_nodes_from((self.labels[i] for i in self.byzantine), byzantine=True)
        rows = mixing.rows_of(self.indptr)
        mine, theirs = self.is_byzantine[rows], self.is_byzantine[self.indices]
        once = np.where(mine == theirs, rows < self.indices, theirs)  # the regular end's weight counts
        ends = zip(rows[once].tolist(), self.indices[once].tolist(), self._values[once].tolist(), strict=True)
        graph.add_weighted_edges_from((self.labels[i], self.labels[j], w) for i, j, w in ends)
        return graph


def _check_graph(graph: Graph) -> None:
    if not isinstance(graph, nx.Graph):
        raise NetworkError(
            f"the graph is {kind_of(graph)}; give a networkx graph, such as nx.petersen_graph()"
        )
    if graph.is_directed() or graph.is_multigraph():
        kind = "directed" if graph.is_directed() else "a multigraph"
        raise NetworkError(
            f"the graph is {kind}; networks are simple and undirected: pass networkx.Graph(graph)"
        )
    if not graph:
        raise NetworkError("the graph is empty; a network needs at least one node")
    loop = next(iter(nx.selfloop_edges(graph)), None)
    if loop is not None:
        raise NetworkError(
            f"node {loop[0]} has an edge to itself; self-weights come from W: remove that edge\n"
            "(in Python: graph.remove_edges_from(list(networkx.selfloop_edges(graph))))"
        )


def _csr(graph: Graph, index: Mapping[Hashable, int]) -> tuple[Ints, Ints]:
    degrees = np.fromiter((degree for _, degree in graph.degree), dtype=np.int64, count=len(index))
    indptr = mixing.starts(degrees)
    flat = (index[other] for neighbours in graph.adj.values() for other in neighbours)
    indices = np.fromiter(flat, dtype=np.int64, count=int(indptr[-1]))
    order = np.lexsort((indices, mixing.rows_of(indptr)))
    return indptr, indices[order]


def _groups(
    graph: Graph, index: Mapping[Hashable, int], is_byzantine: NDArray[np.bool_]
) -> Mapping[str, Ints]:
    """The regular members of the groups that the graph names, on itself or node by node."""
    named = {str(name): list(nodes) for name, nodes in dict(graph.graph.get("groups", {})).items()}
    for node, group in graph.nodes(data="group"):
        if group is not None:
            named.setdefault(str(group), []).append(node)
    regular = {node: i for node, i in index.items() if not is_byzantine[i]}
    members = {name: sorted(regular[n] for n in nodes if n in regular) for name, nodes in named.items()}
    frozen = {name: _frozen(np.array(places, dtype=np.int64)) for name, places in members.items()}
    return MappingProxyType(frozen)


def _matrix(indptr: Ints, indices: Ints, values: Floats, selves: Floats) -> Matrix:
    full = spectrum.matrix(indptr, indices, values, selves)
    return _frozen(full.toarray()) if len(selves) <= DENSE_LIMIT else full


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array
