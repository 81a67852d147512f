"""A whole peer: learn, exchange, mix, remember; until its rounds are done or it is told to stop."""

import contextlib
import hashlib
import logging
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Any

from clippedgossip.errors import ClippedGossipError, PeerError
from clippedgossip.peer import checkpoint, identity
from clippedgossip.peer.checkpoint import Checkpoint
from clippedgossip.peer.config import Config
from clippedgossip.peer.gossip import Gossip
from clippedgossip.peer.learner import Learner, make_learner
from clippedgossip.peer.mixing import Losses, Mixed, rule_of, without_losses
from clippedgossip.peer.node import Node
from clippedgossip.peer.telemetry import Metrics, write_status
from clippedgossip.records import Round, RunDirectory
from clippedgossip.rules.losses import needs_losses

log = logging.getLogger(__name__)
_STATUS_EVERY = 0.25


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a peer ended."""

    peer: str
    rounds: int
    accuracy: float | None
    missing: int
    rejected: int
    resumed: int | None = None
    """The round it went on from."""


class PeerRun:
    """The training loop of one peer process."""

    def __init__(self, config: Config, *, learner: Learner | None = None, resume: bool = True) -> None:
        """With `resume`, goes on from the checkpoint of its run, if there is one; else deletes it."""
        self.config = config
        self.resume = resume
        self.learner = learner or make_learner(config)
        self.losses: Losses | None = getattr(self.learner, "losses", None)
        if self.losses is None and needs_losses(rule_of(config)):
            raise PeerError(without_losses(config))
        self.accuracy: float | None = None
        self.missing = self.rejected = self.clipped = 0
        self.overrun = 0.0
        """By how much an exchange exceeded its deadline, at worst."""
        self.resumed: int | None = None
        self._stop = False
        self._status_at = 0.0
        self._last: Mixed | None = None
        self._metrics = Metrics(config.name)
        self._metrics_address = ""
        self._records = Records(config)
        self._checkpoints = (
            config.folder / "checkpoints" / hashlib.sha256(config.run.encode()).hexdigest()[:12]
        )

    def stop(self) -> None:
        """Ends after the current round."""
        self._stop = True

    def run(self) -> Outcome:
        config = self.config
        me = identity.load(config.folder)
        first = self._resume()
        self._records.go_back_to(first)
        self._serve_metrics()
        gossip = Gossip(config, me, node=_node_kind(config), round=first)
        try:
            if first < config.rounds:
                gossip.start(self.learner.length)
            while gossip.round < config.rounds and not self._stop:
                self._round(gossip)
            self._evaluate()
            self._checkpoint(gossip.round)
            self._status(gossip, None, finished=gossip.round >= config.rounds)
            if gossip.round >= config.rounds:
                self._records.finish(accuracy=self.accuracy, missing=self.missing, rejected=self.rejected)
        finally:
            gossip.close(linger=not self._stop)
            self._metrics.close()
        return Outcome(
            peer=config.name,
            rounds=gossip.round,
            accuracy=self.accuracy,
            missing=self.missing,
            rejected=self.rejected,
            resumed=self.resumed,
        )

    def _round(self, gossip: Gossip) -> None:
        round = gossip.round
        mixed, report = gossip.mix_vector(self.learner.step(round), losses=self.losses)
        self.learner.load(mixed)
        self.missing += len(report.missing)
        self.rejected += report.rejected
        self.clipped += report.clipped or 0
        self.overrun = max(self.overrun, report.seconds - report.deadline)
        due = (round + 1) % self.config.evaluate_every == 0
        if due:
            self._evaluate()
        if (round + 1) % self.config.checkpoint_every == 0:
            self._checkpoint(gossip.round)
        self._records.write(report, self.accuracy if due else None)
        self._measure(gossip, report)
        self._status(gossip, report)

    def _evaluate(self) -> None:
        self.accuracy = self.learner.evaluate()

    def _resume(self) -> int:
        if not self.resume:
            shutil.rmtree(self._checkpoints, ignore_errors=True)
        found = checkpoint.load(self._checkpoints, self.config.run)
        if found is None:
            return 0
        self.learner.restore(found.tensors)
        self.resumed = found.round
        log.info("resumed", extra={"round": found.round})
        return found.round

    def _checkpoint(self, round: int) -> None:
        state = Checkpoint(run=self.config.run, round=round, tensors=self.learner.state())
        try:
            checkpoint.save(state, self._checkpoints)
        except OSError as error:
            self._metrics.checkpoint_errors.inc()
            log.error("checkpoint failed", extra={"round": round, "why": str(error)})

    def _serve_metrics(self) -> None:
        try:
            self._metrics_address = str(self._metrics.serve(self.config.metrics))
        except OSError as error:
            log.error("no metrics", extra={"address": str(self.config.metrics), "why": str(error)})

    def _measure(self, gossip: Gossip, report: Mixed) -> None:
        metrics = self._metrics
        metrics.round.set(gossip.round)
        metrics.accuracy.set(self.accuracy if self.accuracy is not None else float("nan"))
        metrics.distance.set(report.consensus_distance or 0.0)
        metrics.deadline.set(report.deadline)
        metrics.seconds.observe(report.seconds)
        metrics.clipped.inc(report.clipped or 0)
        for name in (neighbour.name for neighbour in self.config.neighbours):
            metrics.up.labels(name).set(name not in report.missing)
        for name, reason in report.missing.items():
            metrics.missing.labels(name, reason.value).inc()
        if gossip.node is not None:
            metrics.evidence.set(gossip.node.evidence.found)
            metrics.flooded.set(gossip.node.outbox.flooded)

    def _status(self, gossip: Gossip, report: Mixed | None, *, finished: bool = False) -> None:
        now = time.monotonic()
        if report is not None and now - self._status_at < _STATUS_EVERY:
            return
        self._status_at = now
        report = self._last = report or self._last
        links = {n.name: report is None or n.name not in report.missing for n in self.config.neighbours}
        reasons: dict[str, dict[str, int]] = {}
        node = gossip.node
        for name, peer in node.peers.items() if node else ():
            reasons[name] = {reason.value: count for reason, count in peer.standing.missing.items()}
        status: dict[str, Any] = {
            "peer": self.config.name,
            "round": gossip.round,
            "rounds": self.config.rounds,
            "accuracy": self.accuracy,
            "consensus_distance": report.consensus_distance if report else None,
            "links": links,
            "clipped": self.clipped,
            "missing": self.missing,
            "rejected": self.rejected,
            "reasons": reasons,
            "equivocations": node.evidence.found if node else 0,
            "overrun": self.overrun,
            "refused_calls": node.outbox.flooded if node else 0,
            "resumed": self.resumed,
            "metrics": self._metrics_address,
            "finished": finished,
        }
        write_status(self.config.folder, status)


class Records:
    """Rounds in the same form as simulated runs, so that `clippedgossip report` draws them."""

    def __init__(self, config: Config) -> None:
        self._peer = config.name
        self._run: RunDirectory | None = None
        with contextlib.suppress(ClippedGossipError, OSError):
            self._run = RunDirectory.open(config.folder / "runs", _facts(config), config.name)

    def go_back_to(self, round: int) -> None:
        """Forgets what will be done again."""
        if self._run is not None:
            with contextlib.suppress(ClippedGossipError, OSError):
                self._run.truncate_to(round - 1)

    def finish(self, **summary: float | None) -> None:
        """The run's last word."""
        if self._run is not None:
            with contextlib.suppress(ClippedGossipError, OSError):
                self._run.write_summary(summary)

    def write(self, report: Mixed, accuracy: float | None) -> None:
        degree = len(report.distances)
        clipped = None if report.clipped is None or not degree else report.clipped / degree
        record = Round(
            round=report.round,
            accuracy=None if accuracy is None else {"all": accuracy},
            mean_accuracy=accuracy,
            consensus_distance=report.consensus_distance,
            clipped=clipped,
            peer=self._peer,
            missing=len(report.missing),
            rejected=report.rejected,
            extra={"reasons": {name: reason.value for name, reason in report.missing.items()}},
        )
        if self._run is not None:
            with contextlib.suppress(ClippedGossipError, OSError):
                self._run.append(record)


def _facts(config: Config) -> dict[str, Any]:
    """What identifies a run of a peer: no paths, no addresses."""
    keys = ("name", "run", "rounds", "seed", "evaluate_every", "misbehave")
    return {
        **{key: getattr(config, key) for key in keys},
        "task": dict(config.task),
        "training": asdict(config.training),
        "rule": dict(config.rule),
        "wire": asdict(config.wire),
        "neighbours": [neighbour.name for neighbour in config.neighbours],
    }


def run_peer(config: Config, *, resume: bool = True) -> Outcome:
    """Runs one peer in this process until it is done, or SIGINT or SIGTERM asks it to stop."""
    peer = PeerRun(config, resume=resume)

    def stop(number: int, frame: FrameType | None) -> None:
        peer.stop()

    previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return peer.run()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _node_kind(config: Config) -> Callable[..., Node]:
    if not config.misbehave:
        return Node
    from clippedgossip.peer.misbehave import Liar

    return Liar
