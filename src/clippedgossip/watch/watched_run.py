"""A simulated run, as its folder tells of it while it runs, and afterwards."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clippedgossip.decode import short
from clippedgossip.errors import UserError
from clippedgossip.network import Network
from clippedgossip.records import RunDirectory
from clippedgossip.report.terminal import percent, score_text
from clippedgossip.watch.records_tail import Tail, is_number, metric_of, score_of
from clippedgossip.watch.watched import Cell, Watched, chart, places, score_chart, table
from clippedgossip.watch.words import metric_title, number, text

_LOSS = {"loss": "Loss", "consensus_distance": "Consensus distance Ξ"}


class WatchedRun(Watched):
    """The records of a run and its config, and its network where that can be built here."""

    def __init__(self, run: RunDirectory, config: Mapping[str, Any], network: Network | None) -> None:
        super().__init__()
        self._run, self._config = run, config
        self._tail = Tail(_measure)
        self._labels: list[str] = []
        self._byzantine: set[int] = set()
        self._where: dict[str, tuple[float, float]] = {}
        self._links: list[tuple[str, str]] = []
        self._size = f"Network: {_name(config, 'network')}, which is not in this folder and not drawn"
        if network is not None:
            self._draw(network)

    def _draw(self, network: Network) -> None:
        self._labels = [text(label) for label in network.labels]
        self._byzantine = {int(node) for node in network.byzantine}
        changes = ", with links that change from round to round" if network.schedule else ""
        self._size = f"{network.n} nodes, {len(self._byzantine)} of them Byzantine{changes}"
        self._where = places(network, self._labels)
        self._links = [(text(a), text(b)) for a, b in network.to_networkx().edges if self._where]

    def look(self, chosen: str) -> dict[str, Any]:
        self._tail.follow(self._run.records_path)
        try:
            state, failure = self._run.state, self._run.failure or self._run.diverged
        except UserError:
            state, failure = "failed", "its summary cannot be read"
        last, config, names = self._tail.last, self._config, self._tail.names()
        attack = f" Attack: {_name(config, 'attack')}." if "attack" in config else ""
        rounds = text(_part(config, "training").get("rounds"))
        groups = [name.partition(":")[2] for name in names if name.startswith("score:")]
        scores = [(f"average of {group}", self._tail.curve(f"score:{group}")) for group in groups]
        singles = {"mean_score": "single nodes, mean", "worst_score": "worst single node"}
        scores += [(words, self._tail.curve(name)) for name, words in singles.items() if name in names]
        return {
            "title": f"Run {text(self._run.path.resolve().name.rpartition('-')[0])}",
            "facts": [
                f"{state.capitalize()}: round {last.get('round', 0)} of {rounds}.",
                f"{self._size}.",
                f"Rule: {_name(config, 'rule')}.{attack}",
            ],
            "alarms": [text(failure)] if failure else [],
            "network": self._network(last),
            "charts": [
                score_chart(metric_of(last), not last.get("lower_is_better"), scores),
                *(chart(title, [("", self._tail.curve(name))], log=True) for name, title in _LOSS.items()),
                chart("Messages clipped so far", [("", self._tail.curve("clipped"))], percent=True),
            ],
            "tables": [],
            "nodes": [],
            "chosen": "",
            "detail": [self._rounds_table()],
        }

    def _network(self, last: Mapping[str, Any]) -> dict[str, Any]:
        edges = last.get("clipped_edges")  # of the last record of a run alone
        clipped = {
            frozenset((text(edge[0]), text(edge[1])))
            for edge in edges or ()
            if isinstance(edge, list) and len(edge) == 3 and is_number(edge[2]) and edge[2] > 0.5
        }
        words = {"good": "link", "clipped": "clipped in most rounds"}
        nodes = []
        for i, name in enumerate(self._labels if self._where else ()):
            x, y = self._where[name]
            node = {"name": name, "x": x, "y": y, "state": "running", "byzantine": i in self._byzantine}
            nodes.append(node | {"note": "Byzantine" if i in self._byzantine else "regular"})
        links = [
            {"to": a, "from": b, "health": "clipped" if frozenset((a, b)) in clipped else "good"}
            for a, b in self._links
        ]
        return {"nodes": nodes, "links": links, "halves": False, "words": words}

    def _rounds_table(self) -> dict[str, Any]:
        metric = metric_of(self._tail.last)
        rows: list[list[Cell]] = [
            [
                str(record["round"]),
                score_text(metric, score_of(record)),
                score_text(metric, record.get(f"worst_{metric}")),
                number(record.get("loss")),
                number(record.get("consensus_distance")),
                percent(record.get("clipped")),
            ]
            for record in reversed(self._tail.recent)
        ]
        title = metric_title(metric)
        columns = ["Round", title, "Worst node", "Loss", "Consensus distance", "Clipped so far"]
        note = f"{title} is that of the regular nodes' averaged model. Only evaluated rounds have a row."
        return table("The last rounds", columns, rows, note)


def _part(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    part = config.get(key)
    return part if isinstance(part, Mapping) else {}


def _name(config: Mapping[str, Any], key: str) -> str:
    part = _part(config, key)
    return text(short(str(part["name"])) if "name" in part else Path(str(part.get("file"))).stem)


def _measure(record: Mapping[str, Any]) -> dict[str, object]:
    metric = metric_of(record)
    groups = record.get(metric)
    found = {f"score:{name}": value for name, value in groups.items()} if isinstance(groups, dict) else {}
    found |= {f"{which}_score": record.get(f"{which}_{metric}") for which in ("mean", "worst")}
    return found | {name: record.get(name) for name in ("clipped", *_LOSS)}
