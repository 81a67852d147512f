"""A network from the command line: a name with its parameters or a file, Byzantine nodes, weights."""

import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from clippedgossip.errors import NetworkError, counted, unknown_name

if TYPE_CHECKING:
    from clippedgossip.graphs.generators import Graph
    from clippedgossip.network import Network

FILES = (".graphml", ".csv", ".json")
FREE = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Settings of a command that takes the options of networks."""

Source = Annotated[
    str, typer.Argument(metavar="NETWORK", help="A network's name, or a .graphml, .csv or .json file.")
]
Nodes = Annotated[str | None, typer.Option(metavar="NODES", help="Byzantine nodes, such as 3,7.")]
RandomNodes = Annotated[int, typer.Option(metavar="B", help="Byzantine nodes drawn at random.")]
Pendants = Annotated[
    str | None, typer.Option(metavar="NODES", help="Add a Byzantine node beside each of these nodes.")
]
RandomPendants = Annotated[
    int, typer.Option("--pendants-random", metavar="B", help="Add Byzantine nodes beside random nodes.")
]
WorstNodes = Annotated[int, typer.Option(metavar="B", help="Byzantine nodes where they do most harm.")]
Weights = Annotated[
    str | None,
    typer.Option(
        help="metropolis-hastings, equal, lazy, optimal (the largest γ), '{robust = B, cap = C}' "
        "(any B neighbours hold C at most), or own (those of the file). The default is own if the file has "
        "weights, else metropolis-hastings."
    ),
]
Schedule = Annotated[
    str | None,
    typer.Option(
        help="Which links each round uses: a name, such as random-matching, or a table, such as "
        "'{name = \"random-neighbours\", neighbours = 5}'."
    ),
]
Delay = Annotated[
    str | None, typer.Option(help="How late messages are: rounds, or a table, such as '{edges = 3}'.")
]
MaxDegree = Annotated[
    int | None,
    typer.Option(metavar="D", help="A bound on the degree that all nodes know, for equal weights."),
]


def split_list(text: str | None) -> list[str]:
    """'3,7' as ['3', '7']."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def check_source(source: str) -> None:
    """Refuse what is neither the name of a network nor a file."""
    from clippedgossip.graphs import parameters

    if is_file(source):
        return
    try:
        parameters(source)
    except NetworkError as error:
        first, *rest = str(error).split("\n")
        also = f" (a file ends in {', '.join(FILES)})" if first.startswith("unknown") else ""
        raise NetworkError("\n".join([first + also, *rest])) from None


def is_file(source: str) -> bool:
    """Whether it is the path of a file and not the name of a network."""
    from clippedgossip.graphs import GENERATORS

    return source not in GENERATORS and (Path(source).suffix.lower() in FILES or Path(source).exists())


def parse_options(context: typer.Context, source: str) -> dict[str, str]:
    """`--clique 10 --hub` as {'clique': '10', 'hub': 'true'}: what is no option of the command itself."""
    from clippedgossip.graphs import parameters

    mine = {} if is_file(source) else parameters(source)
    found: dict[str, str] = {}
    rest = list(context.args)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise NetworkError(f"unexpected argument {word!r}; options look like --name value")
        name, _, value = word[2:].partition("=")
        key = name.replace("-", "_")
        if key not in mine:
            known = [name for parameter in context.command.params for name in parameter.opts]
            options = [f"--{own.replace('_', '-')}" for own in mine]
            options += [name for name in known if name.startswith("--")]
            raise NetworkError(unknown_name(f"option for {source!r}", f"--{name}", options))
        if not value and mine[key].type is bool and (not rest or rest[0].startswith("--")):
            value = "true"
        elif not value:
            if not rest or rest[0].startswith("--"):
                raise NetworkError(f"--{name} needs a value ({mine[key].help})\nadd it: --{name} VALUE")
            value = rest.pop(0)
        if key in found:
            raise NetworkError(f"--{name} is given twice, as {found[key]} and as {value}; give it once")
        found[key] = value
    return found


def load_graph(
    source: str, options: Mapping[str, str], *, seed: int | None = None, scheduled: bool = False
) -> "Graph":
    """A network by name or from a file; the seed goes to generators that take one. A large complete network
    for a schedule lists no links."""
    from clippedgossip.graphs import build, parameters, read_graph

    if is_file(source):
        return read_graph(source)
    nodes = options.get("nodes", "")
    if scheduled and source == "complete" and nodes.isdecimal():
        from clippedgossip.graphs.generators import complete_for_schedules

        return complete_for_schedules(int(nodes))
    values: dict[str, object] = {"seed": seed} if seed is not None and "seed" in parameters(source) else {}
    return build(source, seed or 0, **values, **options)


def network_asked_for(context: typer.Context) -> "Network":
    """The network that the options of a command describe; see `build_network` for them."""
    said = {key: context.params[key] for key in inspect.signature(build_network).parameters if key != "graph"}
    source, scheduled = context.params["network"], said["schedule"] is not None
    check_source(source)
    options = parse_options(context, source)
    return build_network(load_graph(source, options, seed=said["seed"], scheduled=scheduled), **said)


def build_network(
    graph: "Graph",
    *,
    byzantine: str | None = None,
    random_byzantine: int = 0,
    pendants: str | None = None,
    random_pendants: int = 0,
    worst_byzantine: int = 0,
    weights: str | None = None,
    max_degree: int | None = None,
    schedule: str | None = None,
    delay: str | None = None,
    seed: int = 0,
) -> "Network":
    """The network with its Byzantine nodes: given, at random, as pendants, or where they do most harm."""
    from clippedgossip.graphs import add_pendants, find_nodes, random_nodes
    from clippedgossip.network import Network

    chosen = find_nodes(graph, split_list(byzantine))
    for node in chosen:
        graph.nodes[node]["byzantine"] = True
    for node in random_nodes(graph, random_byzantine, seed=seed):
        graph.nodes[node]["byzantine"] = True
    on = [*find_nodes(graph, split_list(pendants)), *random_nodes(graph, random_pendants, seed=seed)]
    if on:
        graph = add_pendants(graph, on)
    said: dict[str, Any] = {"weights": weights, "schedule": schedule, "delay": delay}
    if any(said.values()):
        from clippedgossip.runs.config import toml_value

        said = {key: None if text is None else toml_value(text) for key, text in said.items()}
    network = Network(graph, max_degree=max_degree, **said)
    if not worst_byzantine:
        return network
    from clippedgossip.audit import worst_placement

    worst = worst_placement(network, worst_byzantine)
    if worst is None:
        raise NetworkError(
            f"no worst place for {counted(worst_byzantine, 'Byzantine node')}\n"
            "give a connected network of more nodes"
        )
    turned = [network.labels[i] for i in worst.nodes]
    return Network(graph, byzantine=turned, max_degree=max_degree, **said)


def catalogue(kind: str = "networks") -> list[str]:
    """What --help lists, from a file: importing what has these names takes seconds."""
    text = Path(__file__).with_name("catalogue.json").read_text(encoding="utf-8")
    found: list[str] = json.loads(text)[kind]
    return found


def listing(kind: str = "networks") -> str:
    """The same as text."""
    return "\n".join(catalogue(kind))


def known() -> str:
    """The networks under their heading."""
    return f"Networks, their options and defaults:\n{listing()}"


def help_with(known: Callable[[], str]) -> type[TyperCommand]:
    """The class of a command whose --help ends with these words."""

    class WithNames(TyperCommand):
        def format_help(self, ctx: Any, formatter: Any) -> None:
            super().format_help(ctx, formatter)
            print(f"{known()}\n")

    return WithNames
