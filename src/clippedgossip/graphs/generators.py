"""Every named network of the paper and of the field, as a networkx graph with nodes 0..n-1.

A generator may mark nodes with `byzantine=True`, edges with `weight`, and the graph with `groups` (name ->
nodes) and `weights` (the weights meant for it); `Network` reads all four.

Byzantine nodes are some of the nodes, named or drawn at random, or new ones hung on regular nodes.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, Annotated, Any

import networkx as nx
import numpy as np

from clippedgossip.decode import Kind, Parameter, Thing, decode, errors_of, find
from clippedgossip.decode import parameters as taken
from clippedgossip.errors import NetworkError, unknown_name

if TYPE_CHECKING:  # networkx's stubs are generic while the class is not
    Graph = nx.Graph[Any]
else:
    Graph = nx.Graph

LISTED = 2000  # nodes of the largest complete graph that lists its edges for a schedule
EDGE_BYTES = 400  # of a networkx graph, with its nodes: 490 in a ring, 170 in a complete graph
Nodes = Annotated[int, "number of nodes"]
Seed = Annotated[int, "seed of the random choices"]


def complete(*, nodes: Nodes = 10) -> Graph:
    """Every node is a neighbour of every other: γ = 1."""
    return Graph(nx.complete_graph(_sized("nodes", nodes, 1, nodes * nodes // 2)))


def complete_for_schedules(nodes: int) -> Graph:
    """The same for a schedule to choose from. A large one does not list its links; `everyone` says so."""
    if nodes <= LISTED:
        return complete(nodes=nodes)
    return Graph(nx.empty_graph(nodes), everyone=True)


def ring(*, nodes: Nodes = 10) -> Graph:
    """A cycle."""
    return Graph(nx.cycle_graph(_sized("nodes", nodes, 3, nodes)))


def line(*, nodes: Nodes = 10) -> Graph:
    """A path."""
    return Graph(nx.path_graph(_sized("nodes", nodes, 2, nodes)))


def star(*, nodes: Nodes = 10) -> Graph:
    """Node 0 is the only neighbour of every other node."""
    return Graph(nx.star_graph(_sized("nodes", nodes, 2, nodes) - 1))


def grid(*, rows: Annotated[int, "rows"] = 4, columns: Annotated[int, "columns"] = 4) -> Graph:
    """A rectangle, numbered row by row."""
    _sized("rows", rows, 1, 2 * rows * columns)
    return _numbered(nx.grid_2d_graph(rows, _at_least("columns", columns, 1)))


def torus(*, rows: Annotated[int, "rows"] = 3, columns: Annotated[int, "columns"] = 3) -> Graph:
    """A grid that continues at the opposite side, 4 neighbours each (§ Constrained topologies, T_{3,3})."""
    _sized("rows", rows, 3, 2 * rows * columns)
    return _numbered(nx.grid_2d_graph(rows, _at_least("columns", columns, 3), periodic=True))


def hypercube(*, dimension: Annotated[int, "2^dimension nodes"] = 4) -> Graph:
    """Nodes whose binary numbers differ in one digit are neighbours."""
    n = 1 << _sized("dimension", dimension, 1, dimension << min(dimension, 60))
    return _from_edges(n, ((i, i ^ (1 << k)) for i in range(n) for k in range(dimension) if not i >> k & 1))


def exponential(*, nodes: Nodes = 16) -> Graph:
    """The neighbours of i are i ± 2^k (mod n): few neighbours, a large gap."""
    _sized("nodes", nodes, 2, nodes * nodes.bit_length())
    jumps = [1 << k for k in range((nodes - 1).bit_length()) if 1 << k < nodes]
    return _from_edges(nodes, ((i, (i + jump) % nodes) for i in range(nodes) for jump in jumps))


def random_regular(
    *, nodes: Nodes = 20, degree: Annotated[int, "neighbours of every node"] = 4, seed: Seed = 0
) -> Graph:
    """Every node has the same number of random neighbours."""
    _sized("nodes", nodes, 2, nodes * degree // 2)
    if not 1 <= degree < nodes or nodes * degree % 2:
        raise NetworkError(
            f"degree is {degree} on {nodes} nodes; it must lie in 1..{nodes - 1} and nodes × degree be even"
        )
    graph = _connected_if_possible(partial(nx.random_regular_graph, degree, nodes), nodes, seed)
    return _from_edges(nodes, graph.edges)  # networkx has the nodes in the order of the edges


def erdos_renyi(
    *, nodes: Nodes = 20, probability: Annotated[float, "of each edge"] = 0.4, seed: Seed = 0
) -> Graph:
    """Every edge exists with the same probability; the graph may be disconnected."""
    _probability("probability", probability)
    _sized("nodes", nodes, 1, int(nodes + probability * nodes * nodes / 2))
    return Graph(nx.fast_gnp_random_graph(nodes, probability, seed=_at_least("seed", seed, 0)))


def small_world(
    *,
    nodes: Nodes = 10,
    neighbours: Annotated[int, "nearest neighbours on the ring, before rewiring"] = 2,
    rewire: Annotated[float, "probability of rewiring each edge"] = 0.15,
    seed: Seed = 0,
) -> Graph:
    """Watts–Strogatz (§ Constrained topologies); drawn again a few times while it is disconnected."""
    _sized("nodes", nodes, 3, nodes * neighbours // 2)
    _probability("rewire", rewire)
    if not 2 <= neighbours <= nodes - 1:
        raise NetworkError(f"neighbours is {neighbours}; it must lie in 2..{nodes - 1} on {nodes} nodes")
    draw = partial(nx.watts_strogatz_graph, nodes, neighbours, rewire)
    return _connected_if_possible(draw, nodes, seed)


def scale_free(
    *, nodes: Nodes = 20, attach: Annotated[int, "edges each newcomer brings"] = 2, seed: Seed = 0
) -> Graph:
    """Barabási–Albert: new nodes prefer neighbours of high degree."""
    if not 1 <= attach < nodes:
        raise NetworkError(f"attach is {attach}; it must lie in 1..{nodes - 1} on {nodes} nodes")
    _sized("nodes", nodes, 1, nodes * attach)
    return nx.barabasi_albert_graph(nodes, attach, seed=_at_least("seed", seed, 0))


def random_tree(*, nodes: Nodes = 20, seed: Seed = 0) -> Graph:
    """A tree in which every new node has a random parent."""
    random = np.random.default_rng(_at_least("seed", seed, 0))
    parents = (random.random(_sized("nodes", nodes, 1, nodes)) * np.arange(nodes)).astype(int)
    return _from_edges(nodes, ((int(parents[i]), i) for i in range(1, nodes)))


def dumbbell(
    *,
    clique: Annotated[int, "nodes of clique A"] = 10,
    clique_b: Annotated[int | None, "nodes of clique B, if not the same"] = None,
    hub: Annotated[bool, "join the cliques through a node in the middle"] = False,
    extra: Annotated[int, "random edges between the cliques besides the bridge"] = 0,
    seed: Seed = 0,
) -> Graph:
    """Two cliques and one bridge, from the last node of A to the first of B (fig. dumbbell topology).

    Extra edges share no endpoint with the bridge or with each other.
    """
    a = _sized("clique", clique, 1, clique * clique // 2)
    b = _sized("clique_b", a if clique_b is None else clique_b, 1, (clique_b or a) ** 2)
    graph = _from_edges(a + b, combinations(range(a), 2))
    graph.add_edges_from(combinations(range(a, a + b), 2))
    graph.add_edges_from([(a - 1, a + b), (a + b, a)] if hub else [(a - 1, a)])
    if not 0 <= extra < min(a, b):
        raise NetworkError(
            f"extra is {extra}; 0..{min(a, b) - 1} edges with endpoints of their own fit between the cliques"
        )
    random = np.random.default_rng(_at_least("seed", seed, 0))
    left, right = random.permutation(a - 1)[:extra], a + 1 + random.permutation(b - 1)[:extra]
    graph.add_edges_from(zip(left.tolist(), right.tolist(), strict=True))
    graph.graph["groups"] = {"clique A": list(range(a)), "clique B": list(range(a, a + b))}
    return graph


def hub_dumbbell(
    *,
    clique: Annotated[int, "nodes of each clique"] = 5,
    on_hub: Annotated[int, "Byzantine nodes on the hub"] = 1,
    delta: Annotated[float | None, "their total weight; 1/16 each if not given"] = None,
) -> Graph:
    """Two cliques joined through a hub that is under attack (fig. vary δ_max).

    The Byzantine weight is taken from the hub's self-weight, so W̃ is the same for every number of Byzantine
    nodes.
    """
    graph = dumbbell(clique=_at_least("clique", clique, 2), hub=True)
    hub, edge = 2 * clique, 1 / (clique + 1)
    nx.set_edge_attributes(graph, dict.fromkeys(graph.edges, edge), "weight")
    _at_least("on_hub", on_hub, 0)
    total = on_hub / 16 if delta is None else delta
    spare = 1 - 2 * edge
    if on_hub and not 0 < total < spare:
        raise NetworkError(
            f"delta is {total:g}; it is taken from the hub's self-weight: 0 < delta < {spare:.4g}"
        )
    for node in range(hub + 1, hub + 1 + on_hub):
        graph.add_node(node, byzantine=True)
        graph.add_edge(hub, node, weight=total / on_hub)
    graph.graph["weights"] = "own"
    return graph


def two_worlds(*, clique: Annotated[int, "nodes of each clique"] = 5) -> Graph:
    """The network of the impossibility theorem: two cliques, one edge, one Byzantine node on both its ends.

    The node at A's end sees two neighbours of equal weight, of which one leads to B and one to an imitation
    of B.
    """
    graph = dumbbell(clique=clique)
    byzantine = 2 * clique
    graph.add_node(byzantine, byzantine=True)
    graph.add_edges_from([(clique - 1, byzantine), (clique, byzantine)])
    return graph


def consensus_chain(
    *,
    beta: Annotated[float, "weight of the middle edge"] = 0.35,
    delta: Annotated[float, "weight of each Byzantine edge"] = 0.1,
) -> Graph:
    """Regular chain 0–1–2–3, weights ⅓, β, ⅓; Byzantine 4 on 1 and 5 on 2 (§ Byzantine-robust consensus).

    The Byzantine weight is taken from the self-weights of 1 and 2, so that W̃ does not depend on δ.
    """
    spare = 1 - 1 / 3 - beta
    if not 0 < beta < 2 / 3:
        raise NetworkError(f"beta is {beta:g}; the middle edge's weight must satisfy 0 < beta < 2/3")
    if not 0 <= delta < spare:
        raise NetworkError(
            f"delta is {delta:g}; with beta = {beta:g} the self-weight leaves 0 <= delta < {spare:.3g}"
        )
    graph: Graph = nx.Graph()
    graph.add_nodes_from(range(4))
    graph.add_weighted_edges_from([(0, 1, 1 / 3), (1, 2, beta), (2, 3, 1 / 3)])
    if delta:
        graph.add_nodes_from([4, 5], byzantine=True)
        graph.add_weighted_edges_from([(1, 4, delta), (2, 5, delta)])
    graph.graph["weights"] = "own"
    return graph


GENERATORS: Mapping[str, Callable[..., Graph]] = {
    function.__name__.replace("_", "-"): function
    for function in (
        complete,
        ring,
        line,
        star,
        grid,
        torus,
        hypercube,
        exponential,
        random_regular,
        erdos_renyi,
        small_world,
        scale_free,
        random_tree,
        dumbbell,
        hub_dumbbell,
        two_worlds,
        consensus_chain,
    )
}
"""Networks by name, each a function that returns a networkx graph."""

NETWORK = Kind(
    word="network",
    names=GENERATORS,
    base=Graph,
    group="clippedgossip.networks",
    fix="make it a function that returns a networkx graph",
    reserved=("file", "max_degree", "weights", "byzantine", "schedule", "delay"),
    error=NetworkError,
)


def parameters(name: str) -> Mapping[str, Parameter]:
    """The parameters of the generator of this name, in order."""
    with errors_of(NETWORK):
        return taken(find(NETWORK, name, ())[1], NETWORK)


def build(name: str, seed: int = 0, /, **values: object) -> Graph:
    """Build a network by name; values may be text. The error of an unknown name has the nearest one. What a
    function of the user's own draws comes from `seed`."""
    with errors_of(NETWORK):
        return graph_of(decode(NETWORK, {"name": name, **values}, ()), seed)


def graph_of(thing: Thing, seed: int = 0) -> Graph:
    """The graph. What a user's own function draws from PyTorch, Python or NumPy comes from the seed."""
    graph: Graph
    if thing.origin is None:
        graph = thing.build()
    else:
        from clippedgossip.randomness import drawn_from  # imports PyTorch

        with drawn_from(seed):
            graph = thing.build()
    return graph


def find_nodes(graph: Graph, names: Iterable[Hashable]) -> tuple[Hashable, ...]:
    """The nodes of these names, in the order given; '3' finds node 3."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise NetworkError(f"nodes are given as {names!r}; give a list of them: [{names!r}]")
    by_text = {str(node): node for node in graph}
    found = []
    for name in names:
        node = name if name in graph else by_text.get(str(name))
        if node is None:
            shown = by_text if len(by_text) <= 20 else [*list(by_text)[:20], "…"]
            raise NetworkError(unknown_name("node", str(name), map(str, shown)))
        found.append(node)
    return tuple(found)


def byzantine_nodes(graph: Graph) -> tuple[Hashable, ...]:
    """The nodes that the graph itself marks with `byzantine`."""
    marks = graph.nodes(data="byzantine")
    return tuple(node for node, mark in marks if mark and str(mark).lower() != "false")


def random_nodes(graph: Graph, count: int, *, seed: int = 0) -> tuple[Hashable, ...]:
    """`count` distinct nodes drawn at random from those not Byzantine yet."""
    marked = set(byzantine_nodes(graph))
    free = [node for node in graph if node not in marked]
    if not 0 <= count <= len(free):
        raise NetworkError(
            f"{count} random nodes are to be Byzantine\n"
            f"give 0 to {len(free)}: that many nodes are not Byzantine yet"
        )
    chosen = np.random.default_rng(_at_least("seed", seed, 0)).permutation(len(free))[:count]
    return tuple(free[i] for i in sorted(chosen.tolist()))


def add_pendants(graph: Graph, on: Iterable[Hashable]) -> Graph:
    """A copy with one new Byzantine node beside each of `on`; a node that is named twice gets two."""
    new = graph.copy()
    whole = all(isinstance(node, int) for node in graph)
    start = 1 + max((node for node in graph if isinstance(node, int)), default=-1) if whole else 1
    for k, node in enumerate(find_nodes(graph, on)):
        pendant: Hashable = start + k if whole else f"byzantine {start + k}"
        new.add_node(pendant, byzantine=True)
        new.add_edge(node, pendant)
    return new


def _at_least(name: str, value: int, bound: int) -> int:
    if value < bound:
        raise NetworkError(f"{name} is {value}; it must be at least {bound}")
    return value


def _sized(name: str, value: int, bound: int, edges: int) -> int:
    """At least `bound`, and not so large that a graph of so many edges does not fit into memory."""
    if edges > 1_000_000:
        from clippedgossip.devices import free_memory  # imports PyTorch

        free = free_memory("cpu")
        if edges * EDGE_BYTES > free:
            raise NetworkError(
                f"{name} is {value}: about {edges:.1e} edges need {edges * EDGE_BYTES / 1e9:,.0f} GB, "
                f"and {free / 1e9:,.0f} GB are free\ngive a smaller network"
            )
    return _at_least(name, value, bound)


def _probability(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise NetworkError(f"{name} is {value:g}; a probability lies in 0..1")


def _from_edges(nodes: int, edges: Iterable[tuple[int, int]]) -> Graph:
    graph: Graph = nx.empty_graph(nodes)
    graph.add_edges_from(edges)
    return graph


def _numbered(graph: Graph) -> Graph:
    return nx.convert_node_labels_to_integers(graph, ordering="sorted")


def _connected_if_possible(draw: Callable[..., Graph], nodes: int, seed: int) -> Graph:
    """The first connected graph of a few draws, fewer for large graphs; otherwise the first draw."""
    first = draw(seed=_at_least("seed", seed, 0))
    if nx.is_connected(first):
        return first
    children = np.random.SeedSequence(seed).generate_state(min(100, 100_000 // nodes))
    return next((graph for s in children if nx.is_connected(graph := draw(seed=int(s)))), first)
