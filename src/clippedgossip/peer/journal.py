"""What a peer tells of itself, `peer start` or a user's own loop alike: status file, metrics and records."""

import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from clippedgossip.decode import from_json
from clippedgossip.errors import ClippedGossipError, first_line
from clippedgossip.files import canonical
from clippedgossip.peer.node import Node
from clippedgossip.peer.peer_config import Config
from clippedgossip.peer.peer_mixing import Mixed
from clippedgossip.peer.telemetry import Metrics, bounded_logger, write_starting, write_status
from clippedgossip.records import ACCURACY, Round, RunDirectory, scored
from clippedgossip.report.grouping import flattened

log = bounded_logger(__name__)
_STATUS_EVERY = 0.25
FAR = 100
"""Messages of a neighbour that are clipped much, one after the other, until the log says so."""


class Journal:
    """Counts the rounds of one peer and reports them. A report that fails never stops the peer."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.score: float | None = None
        self.metric, self.higher_is_better = ACCURACY, True
        """What the learner evaluates by, and whether more is better; `score` is its last value."""
        self.resumed: int | None = None
        self.missing = self.rejected = 0
        self.clipped: int | None = None
        """How many messages were clipped; None where the rule clips none."""
        self.finite = True
        """Whether the peer's own model is."""
        self.round_time: float | None = None
        """When the last round ended (Unix time)."""
        self.overrun = 0.0
        """By how much an exchange exceeded its deadline, at worst."""
        self.checkpoint_time: float | None = None
        self.checkpoint_errors = 0
        self.status: dict[str, Any] = {}
        """What was told last."""
        self._metrics = Metrics(lambda: self.status)
        self._metrics_address = ""
        self._records: Records | None = None
        self._status_at = 0.0
        self._began = time.monotonic()
        self._word_at = self._began + 10
        self._last: Mixed | None = None
        self._heard = False
        self._names: list[str] = []
        """The neighbours of the last round that is recorded."""
        self._far: Counter[str] = Counter()
        """How many messages of a neighbour in a row were clipped to less than half of their distance."""

    def begin(self) -> None:
        """Serves the metrics; the neighbours are yet to be greeted."""
        try:
            self._metrics_address = self._metrics_address or str(self._metrics.serve(self.config.metrics))
        except OSError as error:
            log.error("no metrics", extra={"address": str(self.config.metrics), "why": str(error)})
        write_starting(self.config, metrics=self._metrics_address)

    def written(self) -> list[Path]:
        """Where an earlier start of this run has left records."""
        return [path] if (path := Records(self.config).path) else []

    def go_on_from(self, round: int) -> None:
        """Forgets the records of what will be done again; counts what did not count in the others."""
        if round and (changes := _changes(self.config)):
            log.warning("the config is not what it was in the rounds before", extra={"changes": changes})
        self._records = Records(self.config)
        self._records.go_back_to(round)
        self.missing, self.rejected = self._records.not_counted()

    def add(self, report: Mixed, node: Node, *, evaluated: bool = False) -> None:
        """A round is over; `evaluated` when the score is that of its model."""
        self._last, self.round_time = report, time.time()
        self._heard |= bool(report.rounds)
        self.missing += len(report.missing)
        self.rejected += report.rejected
        if report.clipped is not None:
            self.clipped = (self.clipped or 0) + report.clipped
        self.overrun = max(self.overrun, report.seconds - report.deadline)
        self._metrics.seconds.observe(report.seconds)
        self._tell_of_clipping(report)
        self.finite = report.finite
        if not report.finite:
            why = "its lr is too large, or there are such numbers in its data; neighbours use no such message"
            log.error("the model of this peer is not finite", extra={"round": report.round, "why": why})
        names = list(node.neighbours)
        if self._records is not None:
            more: dict[str, Any] = {} if names == self._names else {"neighbours": names}
            score = self.score if evaluated else None
            groups = None if score is None else {"all": score}
            scores = scored(self.metric, groups, mean=score, higher_is_better=self.higher_is_better)
            self._records.write(report, more, scores)
        self._names = names
        if time.monotonic() - self._status_at >= _STATUS_EVERY:
            self._tell(node, node.round)
        if (now := time.monotonic()) >= self._word_at:  # after 10, 20, 40, … seconds, then every ten minutes
            self._word_at = now + min(now - self._began, 600)
            told = {"round": node.round, "rounds": self.config.rounds, "metric": self.metric}
            log.info("progress", extra={**told, "score": self.score})

    def _tell_of_clipping(self, report: Mixed) -> None:
        """Neighbours that learn otherwise are clipped in every round, and nobody learns from the other."""
        for name, distance in report.distances.items():
            share = (report.clipped_to or {}).get(name, 1.0)
            self._far[name] = self._far[name] + 1 if share < 0.5 else 0
            if self._far[name] == FAR:
                told = {"neighbour": name, "distance": _short(distance), "radius": _short(share * distance)}
                why = "its lr, local_steps or data differ, the radius is too small, or it is Byzantine"
                what = f"its last {FAR} messages were clipped to less than half of their distance"
                log.warning(what, extra={**told, "why": why})

    def end(self, node: Node | None, round: int) -> None:
        """Reports the end; the metrics are served until `close`."""
        finished = round >= self.config.rounds
        self._tell(node, round, finished=finished, ended=True)
        if self._last is not None and not self._heard:
            log.warning("no message of any neighbour was used in this start: the peer trained alone")
        if finished and self._records is not None:
            summary = {self.metric: self.score, "missing": self.missing, "rejected": self.rejected}
            self._records.finish(**summary)

    def close(self) -> None:
        self._metrics.close()

    def _tell(self, node: Node | None, round: int, *, finished: bool = False, ended: bool = False) -> None:
        self._status_at = time.monotonic()
        last, near = self._last, node.neighbours if node else {}
        self.status = {
            "peer": self.config.name,
            "round": round,
            "rounds": self.config.rounds,
            "metric": self.metric,
            "score": self.score,
            "finite": self.finite,
            "higher_is_better": self.higher_is_better,
            "neighbour_distance": last.neighbour_distance if last else None,
            "round_time": self.round_time,
            "deadline": last.deadline if last else None,
            "exchanged": {name: peer.exchanged for name, peer in near.items()},
            "links": {name: last is not None and name not in last.missing for name in near},
            "messages": {name: peer.messages for name, peer in near.items()},
            "sent_bytes": {name: node.outbox.callers[name].sent for name in near} if node else {},
            "received_bytes": {name: peer.received for name, peer in near.items()},
            "backoff": {name: peer.backoff for name, peer in near.items()},
            "reasons": {
                name: {reason.value: count for reason, count in peer.reputation.missing.items()}
                for name, peer in near.items()
            },
            "clipped": self.clipped,
            "missing": self.missing,
            "rejected": self.rejected,
            "equivocations": node.evidence.proofs if node else 0,
            "suspicions": node.evidence.suspicions if node else 0,
            "convicted": node.convicted if node else [],
            "overrun": self.overrun,
            "refused_calls": node.outbox.flooded if node else 0,
            "checkpoint_time": self.checkpoint_time,
            "checkpoint_errors": self.checkpoint_errors,
            "resumed": self.resumed,
            "metrics": self._metrics_address,
            "records": self._records.path.name if self._records and self._records.path else None,
            "finished": finished,
            "ended": ended,
        }
        write_status(self.config.folder, self.status)


class Records:
    """Rounds in the same form as simulated runs, so that `clippedgossip report` draws them."""

    def __init__(self, config: Config) -> None:
        self._peer = config.name
        self._run: RunDirectory | None = None
        with _or_log():
            runs = config.folder / "runs"
            self._run = RunDirectory.open(runs, _begun(runs, _facts(config)), config.name)

    @property
    def path(self) -> Path | None:
        return self._run.path if self._run is not None else None

    def go_back_to(self, round: int) -> None:
        """Forgets what will be done again, and that the run has ended: `finish` says so."""
        self._try(lambda run: run.truncate_to(round - 1))
        self._try(lambda run: run.summary_path.unlink(missing_ok=True))

    def not_counted(self) -> tuple[int, int]:
        """How many messages were missing in the rounds before, and how many of them rejected."""
        found: Counter[str] = Counter()

        def count(run: RunDirectory) -> None:
            for record in run.records():
                for name in ("missing", "rejected"):
                    number = record.get(name)
                    found[name] += number if isinstance(number, int) else 0

        self._try(count)
        return found["missing"], found["rejected"]

    def finish(self, **summary: float | None) -> None:
        """Writes how the run ended."""
        self._try(lambda run: run.write_summary(summary))

    def write(self, report: Mixed, more: Mapping[str, Any], scores: Mapping[str, Any]) -> None:
        degree = len(report.distances)
        clipped = None if report.clipped is None or not degree else report.clipped / degree
        record = Round(
            round=report.round,
            neighbour_distance=report.neighbour_distance,
            clipped=clipped,
            peer=self._peer,
            missing=len(report.missing),
            rejected=report.rejected,
            **{**scores, "extra": {**_extra(report), **more, **scores.get("extra", {})}},
        )
        self._try(lambda run: run.append(record))

    def _try(self, act: Callable[[RunDirectory], object]) -> None:
        if self._run is not None:
            with _or_log():
                act(self._run)


@contextlib.contextmanager
def _or_log() -> Iterator[None]:
    try:
        yield
    except (ClippedGossipError, OSError) as error:
        log.error("records are not written", extra={"why": first_line(error)})


def _extra(report: Mixed) -> dict[str, Any]:
    """Whose message was missing and why, how far the others were, which were clipped and to what share, and
    whose was of another round; what the exchange took, and might have taken."""
    extra: dict[str, Any] = {
        "reasons": {name: reason.value for name, reason in report.missing.items()},
        "distances": {name: float(f"{distance:.6g}") for name, distance in report.distances.items()},
        "seconds": round(report.seconds, 4),
        "deadline": round(report.deadline, 4),
    }
    if report.clipped_to:
        extra["clipped_to"] = {name: _short(share) for name, share in report.clipped_to.items()}
    others = {name: round for name, round in report.rounds.items() if round != report.round}
    return extra | ({"other_rounds": others} if others else {})


def _short(number: float) -> float:
    return float(f"{number:.3g}")


def _begun(runs: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """The facts as they were when the run began: neighbours come and go, `--rounds` makes it longer, and the
    run stays one run."""
    now, found = json.loads(canonical(facts)), []
    for path in sorted(runs.glob("*/config.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            known = from_json(path.read_text())
            training = now["training"] | {k: v for k, v in known["training"].items() if k == "rounds"}
            if known == now | {"neighbours": known["neighbours"], "training": training}:
                found.append(known)
    return min(found, key=lambda known: known["training"] != now["training"], default=facts)


def _changes(config: Config) -> list[str]:
    """What differs from the config by which the last records of the run were written."""
    now = flattened(json.loads(canonical(_facts(config))))
    found = []
    for path in (config.folder / "runs").glob("*/records.jsonl"):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            before = flattened(from_json(path.with_name("config.json").read_text()))
            if before.get("run") == config.run:
                found.append((path.stat().st_mtime_ns, before))
    before = max(found, key=lambda one: one[0], default=(0, now))[1]
    keys = sorted({*before, *now} - {"neighbours", "training.rounds"})
    return [
        f"{key} is {now.get(key, 'not set')}, was {before.get(key, 'not set')}"
        for key in keys
        if before.get(key) != now.get(key)
    ]


def _facts(config: Config) -> dict[str, Any]:
    """What identifies a run of a peer: no paths, no addresses."""
    facts = {key: getattr(config, key) for key in ("name", "run", "seed", "misbehave")} | {
        "rule": dict(config.rule),
        "wire": asdict(config.wire),
        "neighbours": [neighbour.name for neighbour in config.neighbours],
    }
    places = {key: getattr(config, key) for key in ("node", "nodes", "groups") if getattr(config, key)}
    learner = {"learner": dict(config.learner)} if config.learner else {}
    named = {"data": config.data.to_mapping(), "model": config.model.to_mapping()}
    return facts | places | learner | named | {"training": config.training.to_mapping()}
