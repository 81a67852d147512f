"""Graphs from files: GraphML, CSV edge lists, JSON node-link."""

import csv
import json
import math
from collections.abc import Callable, Hashable
from hashlib import sha256
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import ParseError

import networkx as nx

from clippedgossip.decode import from_json
from clippedgossip.errors import NetworkError, first_line, unknown_name
from clippedgossip.graphs.generators import Graph

HEADERS = ({"source", "target"}, {"from", "to"})


def read_graph(path: str | Path) -> Graph:
    """Read an undirected graph. If one edge has a weight, every edge must have one, and they are used."""
    path = Path(path)
    readers: dict[str, Callable[[Path], Graph]] = {".graphml": nx.read_graphml, ".csv": _csv, ".json": _json}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise NetworkError(unknown_name("graph file type", path.suffix or path.name, readers))
    if not path.is_file():
        raise NetworkError(
            f"no such graph file: {path}\ngive a .graphml, .csv or .json file, or a network's name"
        )
    try:
        graph = _whole_numbers(_undirected(reader(path), path))
    except (OSError, UnicodeDecodeError, ParseError, json.JSONDecodeError, csv.Error) as error:
        raise NetworkError(
            f"cannot read {path}: {first_line(error)}\ncorrect the file, or write the graph again"
        ) from error
    except NetworkError:
        raise
    except Exception as error:  # networkx raises whatever its own code stumbles over
        raise NetworkError(
            f"{path} is not a valid {path.suffix} graph: {first_line(error)}\n"
            "correct the file, or write the graph again"
        ) from error
    if not graph:
        raise NetworkError(f"{path} holds no node; a network needs at least one")
    if any("weight" in data for _, _, data in graph.edges(data=True)):
        graph.graph["weights"] = "own"
    return graph


_FORM = "write the graph with networkx.node_link_data: a list of 'nodes' and one of 'links'"


def _json(path: Path) -> Graph:
    data: Any = from_json(path.read_text(encoding="utf-8"))
    if not isinstance(data, dict) or "nodes" not in data:
        raise NetworkError(f"{path} is not in node-link form: it has no 'nodes'\n{_FORM}")
    edges = "edges" if "edges" in data else "links"
    if edges not in data:
        raise NetworkError(f"{path} has no 'links' or 'edges'\n{_FORM}")
    nodes = [node if isinstance(node, dict) else {"id": node} for node in data["nodes"]]
    links = [_link(link) for link in data[edges]]
    graph: Graph = nx.node_link_graph({**data, "nodes": nodes, "edges": links}, edges="edges")
    if len(graph) != len(data["nodes"]):
        raise NetworkError(
            f"{path} links {len(graph)} nodes but 'nodes' does not list them all, each once\n{_FORM}"
        )
    return graph


def _link(link: Any) -> Any:
    """A link as networkx has it, or short: [node, node] or [node, node, weight]."""
    if not isinstance(link, list) or len(link) not in (2, 3):
        return link
    return dict(zip(("source", "target", "weight"), link, strict=False))


def digest(path: Path) -> str:
    """Of the content, so that other content is another run."""
    try:
        return sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise NetworkError(
            f"cannot read {path}: {error.strerror}\npaths are relative to the config file"
        ) from error


def csv_rows(path: Path | str) -> list[tuple[int, list[str]]]:
    """Line number and cells of every line that is neither empty nor a comment."""
    with Path(path).open(newline="", encoding="utf-8-sig") as file:
        rows = [[cell.strip() for cell in row] for row in csv.reader(file)]
    return [(number, row) for number, row in enumerate(rows, 1) if any(row) and not row[0].startswith("#")]


def _csv(path: Path) -> Graph:
    rows = csv_rows(path)
    first = [cell.lower() for cell in rows[0][1]] if rows else []
    header = set(first[:2]) in HEADERS or first[2:] == ["weight"]
    graph: Graph = nx.Graph()
    for number, row in rows[header:]:
        if len(row) not in (2, 3) or not row[0] or not row[1]:
            raise NetworkError(
                f"{path} line {number} is {','.join(row)!r}; every line is 'node,node' or 'node,node,weight'"
            )
        weight = _weight(row[2], f"{path} line {number}") if len(row) == 3 and row[2] else None
        known = graph.get_edge_data(*row[:2])
        if known is not None and known.get("weight") != weight:
            raise NetworkError(
                f"{path} line {number} gives edge {row[0]}–{row[1]} the weight {weight}, an earlier line "
                f"{known.get('weight')}\nweights must be symmetric: name each edge once"
            )
        graph.add_edge(*row[:2], **({} if weight is None else {"weight": weight}))
    return graph


def _weight(text: str, where: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not math.isfinite(weight):
        raise NetworkError(f"{where} has the weight {text!r}; a weight is a finite number")
    return weight


def _undirected(graph: Graph, path: Path) -> Graph:
    """The simple undirected graph; edges given in both directions must agree."""
    simple: Graph = nx.Graph(**graph.graph)
    simple.add_nodes_from(graph.nodes(data=True))
    for u, v, data in graph.edges(data=True):
        known = simple.get_edge_data(u, v)
        if known is not None and known.get("weight") != data.get("weight"):
            raise NetworkError(
                f"{path} gives edge {u}–{v} the weights {known.get('weight')} and {data.get('weight')}; "
                "weights must be symmetric"
            )
        if graph.is_directed() and not graph.has_edge(v, u):
            raise NetworkError(
                f"{path} is directed and has {u}→{v} but not {v}→{u}\n"
                "networks are undirected: add the missing edge or mark the file undirected"
            )
        simple.add_edge(u, v, **data)
    return simple


def _whole_numbers(graph: Graph) -> Graph:
    """Node names as integers where all of them are, so that '3' in a file is node 3."""
    names: dict[Hashable, int] = {}
    for node in graph:
        text = str(node)
        if not text.isascii() or not text.isdigit() or str(int(text)) != text:
            return graph
        names[node] = int(text)
    ascending: Graph = nx.Graph(**graph.graph)
    ascending.add_nodes_from(sorted(names.values()))
    ascending.update(nx.relabel_nodes(graph, names))
    return ascending
