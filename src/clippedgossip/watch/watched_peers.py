"""Peers, as their folders tell of them: `peer.toml`, `status.json`, and the records of the run under way."""

import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import networkx as nx

from clippedgossip.errors import PeerError, UserError, counted
from clippedgossip.network import Network
from clippedgossip.peer import peer_config
from clippedgossip.peer.peer_config import CONFIG_FILE
from clippedgossip.peer.peer_folder import peer_folders
from clippedgossip.peer.rejection import VIOLATIONS, Rejection
from clippedgossip.peer.telemetry import STATUS_FILE, read_status, unhealthy
from clippedgossip.records import ACCURACY, RunDirectory
from clippedgossip.report.terminal import percent, score_text
from clippedgossip.watch.records_tail import Tail, is_number, metric_of, score_of
from clippedgossip.watch.watched import Cell, Watched, chart, places, score_chart, table
from clippedgossip.watch.words import age, counts, metric_title, number, text

_LONGEST_SILENCE = 120.0
_REFUSED = [*VIOLATIONS, Rejection.BACKED_OFF, Rejection.CONVICTED]
_FILES = 20
_HEALTH = {
    "good": "used",
    "clipped": "used, clipped",
    "absent": "missing",
    "rejected": "rejected",
    "off": "not known",
}


class WatchedPeers(Watched):
    """The peers in some folders, and what these say of their links."""

    def __init__(self, folders: Sequence[Path]) -> None:
        """`folders`: of peers, or of networks, whose folders are looked for again and again."""
        super().__init__()
        self._folders = folders
        self._peers: dict[Path, WatchedPeer] = {}
        self._drawn: tuple[frozenset[Any], dict[str, tuple[float, float]]] = (frozenset(), {})
        self._find()
        names = [peer.name for peer in self._peers.values()]
        for path, peer in self._peers.items():
            if names.count(peer.name) > 1:
                raise PeerError(
                    f"two peers are called {peer.name!r}, one of them in {path}\nwatch them apart"
                )
            if peer.damaged:
                raise PeerError(
                    f"{path / STATUS_FILE} is damaged\ndelete it; a peer that runs writes it anew each round"
                )

    def _find(self) -> None:
        """Peers that were added or whose config has changed."""
        for path in (found for folder in self._folders for found in peer_folders(folder)):
            if path not in self._peers:
                try:
                    self._peers[path] = WatchedPeer(path)
                except UserError:
                    if not self._peers:
                        raise
        for peer in self._peers.values():
            peer.look()

    def look(self, chosen: str) -> dict[str, Any]:
        self._find()
        listed = sorted(self._peers.values(), key=lambda peer: (len(peer.name), peer.name))
        peers = {peer.name: peer for peer in listed}
        shown = peers.get(chosen) or listed[0]

        def curves(name: str) -> list[tuple[str, list[tuple[int, float]]]]:
            return [(f"peer {peer.name}", peer.tail.curve(name)) for peer in listed]

        return {
            "title": f"Run {text(shown.config.run)}",
            "facts": _facts(listed),
            "alarms": [text(alarm) for peer in listed for alarm in peer.alarms()],
            "network": self._network(peers),
            "charts": [
                score_chart(shown.metric, shown.higher_is_better, curves("score")),
                chart("Squared distance to neighbours", curves("distance"), log=True),
                chart("Messages that were clipped", curves("clipped"), percent=True),
                chart("Messages missing, in a round", curves("missing")),
                chart("Messages rejected, in a round", curves("rejected")),
                chart("Exchange, as a part of its deadline", curves("deadline"), percent=True),
            ],
            "tables": [_peers_table(listed), *_evidence_table(listed)],
            "nodes": list(peers),
            "chosen": shown.name,
            "detail": [shown.links_table(), shown.rounds_table()],
        }

    def _network(self, peers: Mapping[str, "WatchedPeer"]) -> dict[str, Any]:
        links = [(peer.name, other.name) for peer in peers.values() for other in peer.config.neighbours]
        if frozenset(links) != self._drawn[0] or not self._drawn[1]:
            graph: nx.Graph[str] = nx.Graph()
            graph.add_nodes_from(peers)
            graph.add_edges_from(links)
            self._drawn = frozenset(links), places(Network(graph), list(graph))
        where = self._drawn[1]
        nodes = []
        for name, (x, y) in where.items():
            peer, node = peers.get(name), {"name": name, "x": x, "y": y}
            node |= {"state": "unknown", "byzantine": False, "note": "its folder is not watched"}
            if peer is not None:
                node |= {"state": peer.state, "byzantine": bool(peer.misbehave), "note": text(peer.note)}
            nodes.append(node)
        health = [
            {"to": to, "from": origin, "health": peers[to].health(origin)[0]} for to, origin in links if where
        ]
        return {"nodes": nodes, "links": health, "halves": True, "words": _HEALTH}


class WatchedPeer:
    """One peer's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = peer_config.load(path)
        self.name = self.config.name
        self.misbehave = ""
        """What the peer was made to do; its neighbours do not know."""
        self.status: dict[str, Any] = {}
        """Empty where there is none that can be read."""
        self.damaged = False
        self._stamp: object = None
        self.tail = Tail(_measure)
        self._run = ""

    def look(self) -> None:
        """Reads what is new."""
        self._reload()
        self.status = read_status(self.path) or {}
        self.damaged = not self.status and (self.path / STATUS_FILE).exists()
        run = _name(self.status.get("records"))
        if run != self._run:
            self._run, self.misbehave = run, ""
            with contextlib.suppress(UserError):
                self.misbehave = str(RunDirectory(self.path / "runs" / run).config.get("misbehave", ""))
        self.tail.follow(self.path / "runs" / run / "records.jsonl" if run else None)

    def _reload(self) -> None:
        try:
            stat = (self.path / CONFIG_FILE).stat()
            stamp = (stat.st_mtime_ns, stat.st_size)
            if stamp != self._stamp:
                self._stamp, self.config = stamp, peer_config.load(self.path)
        except (OSError, UserError):  # in the midst of an edit: the last one stays
            return

    @property
    def metric(self) -> str:
        return _of(self.status, "metric", str) or ACCURACY

    @property
    def higher_is_better(self) -> bool:
        return self.status.get("higher_is_better") is not False

    @property
    def state(self) -> str:
        """starting, running, finished, stopped, new or damaged."""
        if not self.status:
            return "damaged" if self.damaged else "new"
        if self.status.get("finished"):
            return "finished"
        if not self.status["running"]:
            return "stopped"
        return "starting" if self.status["starting"] else "running"

    @property
    def note(self) -> str:
        """The state in words, with its age."""
        words = {"new": "never started", "damaged": "its status file is damaged"}
        said = words.get(self.state, self.state)
        if self.state in ("stopped", "finished"):
            said += f" {age(time.time() - self._last_word())}"
        elif self.state == "running":
            said += f", last round {age(self.status.get('age'))}"
        return f"{said}; made Byzantine: {self.misbehave}" if self.misbehave else said

    def _last_word(self) -> float:
        said = (self.status.get(key) for key in ("time", "round_time"))
        return max(filter(is_number, said), default=0.0)

    def alarms(self) -> list[str]:
        """What somebody should look into."""
        found = []
        why = unhealthy(self.status, _LONGEST_SILENCE) if self.status else ""
        if self.state == "damaged":
            found.append(f"Peer {self.name}: its status file is damaged.")
        elif why:
            found.append(f"Peer {self.name}: {self.note if self.state == 'stopped' else why}.")
        found += [
            f"Peer {self.name} has a proof that {name} signed two models for one round."
            for name in _of(self.status, "convicted", list)
        ]
        for origin in (neighbour.name for neighbour in self.config.neighbours):
            silent = _of(self.status, "ages").get(origin)
            if self.state == "running" and self.health(origin)[0] == "rejected":
                seen = _of(_of(self.status, "reasons"), origin)
                why = counts({reason: seen[reason] for reason in seen if reason in VIOLATIONS})
                found.append(f"Peer {self.name} rejects or ignores what {origin} sends: {why}.")
            elif self.state == "running" and is_number(silent) and silent > _LONGEST_SILENCE:
                found.append(f"Peer {self.name} used a message of {origin} last {age(silent)}.")
        if self.tail.damaged:
            found.append(
                f"Peer {self.name}: {counted(self.tail.damaged, 'line')} of its records cannot be read."
            )
        return found

    def health(self, origin: str) -> tuple[str, str]:
        """What came from a neighbour in the last round: good, clipped, absent, rejected or off; in words."""
        last = self.tail.last
        if self.state not in ("running", "finished") or not last:
            return "off", "–"
        reason = _of(last, "reasons").get(origin)
        if reason is not None:
            return ("rejected" if reason in _REFUSED else "absent"), text(reason)
        other = _of(last, "other_rounds").get(origin)
        said = "used" if other is None else f"used, of round {text(other)}"
        if origin in _of(last, "clipped_to"):
            return "clipped", f"{said}, clipped"
        return "good", said

    def row(self) -> list[Cell]:
        """Of the table of peers."""
        status, last = self.status, self.tail.last
        tones = {"running": "good", "finished": "good", "stopped": "bad", "damaged": "bad"}
        seconds, deadline = (number(last.get(key), 2) for key in ("seconds", "deadline"))
        rejected = status.get("rejected", 0)
        proofs, suspicions = status.get("equivocations", 0), status.get("suspicions", 0)
        evidence = f"{proofs} proved" if proofs else f"{suspicions} suspected" if suspicions else "none"
        return [
            self.name,
            (text(self.note), tones.get(self.state, "warn")),
            f"{status.get('round', 0)} of {status.get('rounds', self.config.rounds)}",
            score_text(self.metric, status.get("score")),
            number(status.get("neighbour_distance")),
            percent(last.get("clipped")),
            str(status.get("missing", 0)),
            (str(rejected), "bad") if rejected else "0",
            f"{seconds} of {deadline} s" if last else "–",
            (evidence, "bad") if proofs else evidence,
        ]

    def links_table(self) -> dict[str, Any]:
        ages, reasons, last = _of(self.status, "ages"), _of(self.status, "reasons"), self.tail.last
        rows: list[list[Cell]] = []
        for origin in (neighbour.name for neighbour in self.config.neighbours):
            health, words = self.health(origin)
            tone = {"rejected": "bad", "absent": "warn", "clipped": "warn", "good": "good"}.get(health, "")
            distance, missed = number(_of(last, "distances").get(origin)), counts(reasons.get(origin))
            rows.append([origin, (words, tone), age(ages.get(origin)), distance, missed or "none"])
        columns = ["From", "In the last round", "Last used", "Distance", "Did not count so far"]
        return table(f"What peer {text(self.name)} receives", columns, rows)

    def rounds_table(self) -> dict[str, Any]:
        rows: list[list[Cell]] = []
        for record in reversed(self.tail.recent):
            reasons = _of(record, "reasons")
            why = text(", ".join(f"{name}: {reason}" for name, reason in reasons.items()))
            bad = any(reason in _REFUSED for reason in reasons.values())
            others = _of(record, "other_rounds")
            rows.append(
                [
                    str(record["round"]),
                    score_text(metric_of(record), score_of(record)),
                    number(record.get("neighbour_distance")),
                    percent(record.get("clipped")),
                    (why, "bad" if bad else "warn") if why else "–",
                    text(", ".join(f"{name}: round {of}" for name, of in others.items())) or "–",
                    f"{number(record.get('seconds'), 2)} of {number(record.get('deadline'), 2)} s",
                ]
            )
        columns = ["Round", metric_title(self.metric), "Distance²", "Clipped", "Missing, and why"]
        columns += ["Of another round", "Exchange"]
        return table(f"The last rounds of peer {text(self.name)}", columns, rows)

    def proofs(self) -> list[str]:
        """Files of evidence, the first few."""
        return sorted(path.name for path in (self.path / "evidence").glob("*.json"))[:_FILES]


def _facts(peers: Sequence[WatchedPeer]) -> list[str]:
    states = [peer.state for peer in peers]
    said = [f"{states.count(state)} {word}" for state, word in _STATES.items() if state in states]
    rounds = [int(peer.status.get("round", 0)) for peer in peers]
    wanted = max(int(peer.status.get("rounds", peer.config.rounds)) for peer in peers)
    where = f"{min(rounds)}" if min(rounds) == max(rounds) else f"{min(rounds)} to {max(rounds)}"
    rule = peers[0].config.rule
    radius = f" with radius {text(rule['radius'])}" if "radius" in rule else ""
    return [
        f"{counted(len(peers), 'peer')}: {', '.join(said)}.",
        f"Rounds done: {where} of {wanted}.",
        f"Rule: {text(rule.get('name', 'clipped-gossip'))}{radius}.",
    ]


_STATES = {
    "running": "running",
    "starting": "starting",
    "finished": "finished",
    "stopped": "stopped",
    "new": "never started",
    "damaged": "with a damaged status file",
}


def _peers_table(peers: Sequence[WatchedPeer]) -> dict[str, Any]:
    columns = ["Peer", "State", "Rounds", metric_title(peers[0].metric), "Distance²", "Clipped", "Missing"]
    return table(
        "Peers",
        [*columns, "Rejected", "Exchange", "Evidence"],
        [peer.row() for peer in peers],
        "Distance² is the mean squared distance to the models received in the last round; clipped, the part "
        "of those that was clipped. Missing and rejected are counted since the start. Exchange: how long it "
        "took in the last round, of what it may take.",
    )


def _evidence_table(peers: Sequence[WatchedPeer]) -> list[dict[str, Any]]:
    rows: list[list[Cell]] = [
        [peer.name, name, f"clippedgossip peer evidence {peer.path / 'evidence' / name}"]
        for peer in peers
        for name in peer.proofs()
    ]
    note = "Each file proves that somebody signed two different models for one round."
    return [table("Evidence", ["Found by", "File", "Check it with"], rows, note)] if rows else []


def _measure(record: Mapping[str, Any]) -> dict[str, object]:
    seconds, deadline = record.get("seconds"), record.get("deadline")
    return {
        **{name: record.get(name) for name in ("clipped", "missing", "rejected")},
        "score": score_of(record),
        "distance": record.get("neighbour_distance"),
        "deadline": seconds / deadline if is_number(seconds) and is_number(deadline) and deadline else None,
    }


def _of(record: Mapping[str, Any], key: str, kind: type = dict) -> Any:
    """What a file says; nothing where that is not of the kind it should be."""
    value = record.get(key)
    return value if isinstance(value, kind) else kind()


def _name(said: object) -> str:
    """A folder's name inside `runs`; nothing that leads elsewhere."""
    return said if isinstance(said, str) and said not in ("", ".", "..") and "/" not in said else ""
