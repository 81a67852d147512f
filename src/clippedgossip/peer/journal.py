"""What a peer tells of itself, `peer start` or a user's own loop alike: status file, metrics and records."""

import contextlib
import json
import logging
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clippedgossip.errors import ClippedGossipError
from clippedgossip.files import canonical
from clippedgossip.peer.node import Node
from clippedgossip.peer.peer_config import Config
from clippedgossip.peer.peer_mixing import Mixed
from clippedgossip.peer.telemetry import Metrics, write_starting, write_status
from clippedgossip.records import ACCURACY, Round, RunDirectory, scored

if TYPE_CHECKING:
    from prometheus_client import Counter

log = logging.getLogger(__name__)
_STATUS_EVERY = 0.25


class Journal:
    """Counts the rounds of one peer and reports them. A report that fails never stops the peer."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.accuracy: float | None = None
        self.metric = (ACCURACY, True)
        """What the learner evaluates by, and whether more is better; `accuracy` holds its value."""
        self.resumed: int | None = None
        self.missing = self.rejected = self.clipped = 0
        self.round_time: float | None = None
        """When the last round ended (Unix time)."""
        self.overrun = 0.0
        """By how much an exchange exceeded its deadline, at worst."""
        self.metrics = Metrics()
        self._metrics_address = ""
        self._records: Records | None = None
        self._status_at = 0.0
        self._last: Mixed | None = None
        self._counted: dict[tuple[Counter, str], int] = {}
        self._names: list[str] = []
        """The neighbours of the last round that is recorded."""

    def begin(self) -> None:
        """Serves the metrics; the neighbours are yet to be greeted."""
        try:
            self._metrics_address = self._metrics_address or str(self.metrics.serve(self.config.metrics))
        except OSError as error:
            log.error("no metrics", extra={"address": str(self.config.metrics), "why": str(error)})
        write_starting(self.config, metrics=self._metrics_address)

    def written(self) -> list[Path]:
        """Where an earlier start of this run has left records."""
        path = Records(self.config).path
        return [] if path is None else [path]

    def go_on_from(self, round: int) -> None:
        """Forgets the records of what will be done again."""
        self._records = Records(self.config)
        self._records.metric, self._records.higher_is_better = self.metric
        self._records.go_back_to(round)

    def add(self, report: Mixed, node: Node, *, evaluated: bool = False) -> None:
        """A round is over; `evaluated` when the accuracy is that of its model."""
        self._last, self.round_time = report, time.time()
        self.missing += len(report.missing)
        self.rejected += report.rejected
        self.clipped += report.clipped or 0
        self.overrun = max(self.overrun, report.seconds - report.deadline)
        names = list(node.neighbours)
        if self._records is not None:
            changed = {} if names == self._names else {"neighbours": names}
            self._records.write(report, self.accuracy if evaluated else None, **changed)
        for gone in {*self._names} - {*names}:
            self.metrics.forget(gone)
        self._names = names
        self._measure(report, node)
        if time.monotonic() - self._status_at >= _STATUS_EVERY:
            self._status(node, node.round)

    def end(self, node: Node | None, round: int) -> None:
        """Reports the end; the metrics are served until `close`."""
        finished = round >= self.config.rounds
        self._status(node, round, finished=finished, ended=True)
        if finished and self._records is not None:
            self._records.finish(accuracy=self.accuracy, missing=self.missing, rejected=self.rejected)

    def close(self) -> None:
        self.metrics.close()

    def _measure(self, report: Mixed, node: Node) -> None:
        metrics = self.metrics
        metrics.round.set(node.round)
        metrics.round_time.set_to_current_time()
        metrics.accuracy.set(self.accuracy if self.accuracy is not None else float("nan"))
        metrics.distance.set(report.neighbour_distance or 0.0)
        metrics.deadline.set(report.deadline)
        metrics.seconds.observe(report.seconds)
        metrics.clipped.inc(report.clipped or 0)
        for name, peer in node.neighbours.items():
            metrics.up.labels(name).set(name not in report.missing)
            metrics.exchange_time.labels(name).set(peer.exchanged or 0.0)
            metrics.backoff.labels(name).set(peer.backoff)
            metrics.messages.labels(name).inc(name not in report.missing)
            self._count(metrics.sent, name, node.outbox.callers[name].sent)
            self._count(metrics.received, name, peer.received)
        for name, reason in report.missing.items():
            metrics.missing.labels(name, reason.value).inc()
        metrics.evidence.set(node.evidence.proofs)
        metrics.suspicions.set(node.evidence.suspicions)
        metrics.flooded.set(node.outbox.flooded)

    def _count(self, counter: "Counter", name: str, total: int) -> None:
        """Raises a counter of Prometheus, which only knows increments, to `total`."""
        before = self._counted.get((counter, name), 0)
        counter.labels(name).inc(total - before if total >= before else total)  # less: it was added again
        self._counted[counter, name] = total

    def _status(self, node: Node | None, round: int, *, finished: bool = False, ended: bool = False) -> None:
        self._status_at = time.monotonic()
        last = self._last
        reasons: dict[str, dict[str, int]] = {}
        exchanged: dict[str, float | None] = {}
        for name, peer in node.neighbours.items() if node else ():
            reasons[name] = {reason.value: count for reason, count in peer.reputation.missing.items()}
            exchanged[name] = peer.exchanged
        status: dict[str, Any] = {
            "peer": self.config.name,
            "round": round,
            "rounds": self.config.rounds,
            "accuracy": self.accuracy,
            "neighbour_distance": last.neighbour_distance if last else None,
            "round_time": self.round_time,
            "exchanged": exchanged,
            "links": {name: last is not None and name not in last.missing for name in exchanged},
            "clipped": self.clipped,
            "missing": self.missing,
            "rejected": self.rejected,
            "reasons": reasons,
            "equivocations": node.evidence.proofs if node else 0,
            "suspicions": node.evidence.suspicions if node else 0,
            "convicted": node.convicted if node else [],
            "overrun": self.overrun,
            "refused_calls": node.outbox.flooded if node else 0,
            "resumed": self.resumed,
            "metrics": self._metrics_address,
            "records": self._records.path.name if self._records and self._records.path else None,
            "finished": finished,
            "ended": ended,
        }
        write_status(self.config.folder, status)


class Records:
    """Rounds in the same form as simulated runs, so that `clippedgossip report` draws them."""

    def __init__(self, config: Config) -> None:
        self._peer = config.name
        self.metric, self.higher_is_better = ACCURACY, True
        self._run: RunDirectory | None = None
        with contextlib.suppress(ClippedGossipError, OSError):
            runs = config.folder / "runs"
            self._run = RunDirectory.open(runs, _begun(runs, _facts(config)), config.name)

    @property
    def path(self) -> Path | None:
        return self._run.path if self._run is not None else None

    def go_back_to(self, round: int) -> None:
        """Forgets what will be done again."""
        self._try(lambda run: run.truncate_to(round - 1))

    def finish(self, **summary: float | None) -> None:
        """Writes how the run ended."""
        self._try(lambda run: run.write_summary(summary))

    def write(self, report: Mixed, accuracy: float | None, **more: Any) -> None:
        degree = len(report.distances)
        clipped = None if report.clipped is None or not degree else report.clipped / degree
        groups = None if accuracy is None else {"all": accuracy}
        scores = scored(self.metric, groups, mean=accuracy, higher_is_better=self.higher_is_better)
        record = Round(
            round=report.round,
            neighbour_distance=report.neighbour_distance,
            clipped=clipped,
            peer=self._peer,
            missing=len(report.missing),
            rejected=report.rejected,
            **(scores | {"extra": _extra(report) | more | scores.get("extra", {})}),
        )
        self._try(lambda run: run.append(record))

    def _try(self, act: Callable[[RunDirectory], object]) -> None:
        if self._run is not None:
            with contextlib.suppress(ClippedGossipError, OSError):
                act(self._run)


def _extra(report: Mixed) -> dict[str, Any]:
    """Whose message was missing and why, how far the others were, and whose was of another round; what the
    exchange took, and might have taken."""
    extra: dict[str, Any] = {
        "reasons": {name: reason.value for name, reason in report.missing.items()},
        "distances": {name: float(f"{distance:.6g}") for name, distance in report.distances.items()},
        "seconds": round(report.seconds, 4),
        "deadline": round(report.deadline, 4),
    }
    others = {name: round for name, round in report.rounds.items() if round != report.round}
    return extra | ({"other_rounds": others} if others else {})


def _begun(runs: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """The facts as they were when the run began: neighbours come and go, and the run stays one run."""
    for path in sorted(runs.glob("*/config.json")):
        with contextlib.suppress(OSError, ValueError):
            known = json.loads(path.read_text())
            now = json.loads(canonical(facts))
            if known == now | {"neighbours": known.get("neighbours")}:
                return facts | {"neighbours": known["neighbours"]}
    return facts


def _facts(config: Config) -> dict[str, Any]:
    """What identifies a run of a peer: no paths, no addresses."""
    training = config.training.to_mapping()
    facts = {key: getattr(config, key) for key in ("name", "run", "seed", "misbehave")} | {
        "rule": dict(config.rule),
        "wire": asdict(config.wire),
        "neighbours": [neighbour.name for neighbour in config.neighbours],
    }
    if config.former_task:  # the words of version 0.1, so that its records are found
        top = {key: training[key] for key in ("rounds", "evaluate_every")}
        step = {key: training[key] for key in _FORMER_TRAINING}
        return facts | top | {"task": dict(config.former_task), "training": step}
    places = {key: getattr(config, key) for key in ("node", "nodes", "groups") if getattr(config, key)}
    learner = {"learner": dict(config.learner)} if config.learner else {}
    named = {"data": config.data.to_mapping(), "model": config.model.to_mapping()}
    return facts | places | learner | named | {"training": training}


_FORMER_TRAINING = ("batch", "lr", "lr_drops", "lr_factor", "momentum", "momentum_form")
