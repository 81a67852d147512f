"""A whole peer: learn, exchange, mix, remember; until its rounds are done or it is told to stop."""

import hashlib
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from clippedgossip.errors import PeerError, first_line
from clippedgossip.files import Lock
from clippedgossip.peer import checkpoint, identity
from clippedgossip.peer.checkpoint import Checkpoint
from clippedgossip.peer.journal import Journal
from clippedgossip.peer.learner import Learner, make_learner
from clippedgossip.peer.node import Node
from clippedgossip.peer.peer_config import Config
from clippedgossip.peer.peer_folder import set_aside, take
from clippedgossip.peer.peer_mixing import Losses, rule_of, without_losses
from clippedgossip.peer.session import Peer
from clippedgossip.peer.signed_rounds import signed_file
from clippedgossip.peer.telemetry import bounded_logger, starting
from clippedgossip.records import ACCURACY, refuse_metric

log = bounded_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class PeerOutcome:
    """How a peer ended."""

    peer: str
    rounds: int
    metric: str
    """What the learner evaluates by, such as accuracy; `score` is its value."""
    score: float | None
    missing: int
    rejected: int
    resumed: int | None = None
    """The round it went on from."""
    saved: bool = True
    """Whether its last model is on disk."""


class PeerRun:
    """The training loop of one peer process."""

    def __init__(
        self,
        config: Config,
        *,
        learner: Learner | None = None,
        resume: bool = True,
        enter: int | None = None,
    ) -> None:
        """With `resume`, goes on from the checkpoint of its run, if there is one; else sets it aside. With
        `enter`, a first start begins in that round, from the neighbours' models. The caller holds the lock of
        the folder (`peer_folder.take`)."""
        if enter is not None and not 0 <= enter < config.rounds:
            raise PeerError(
                f"--enter is {enter}; the run has {config.rounds} rounds\n"
                f"name one of them, 0 to {config.rounds - 1}: about the one that the neighbours are in"
            )
        self.config = config
        self.resume = resume
        self.enter = enter
        self.learner = learner or make_learner(config)
        self.losses: Losses | None = getattr(self.learner, "losses", None)
        if self.losses is None and rule_of(config).needs_losses:
            raise PeerError(without_losses(config))
        self.journal = Journal(config)
        self.journal.metric = getattr(self.learner, "metric", ACCURACY)
        self.journal.higher_is_better = getattr(self.learner, "higher_is_better", True)
        refuse_metric(self.journal.metric, higher_is_better=self.journal.higher_is_better)
        self._stop = False
        self._session: Peer | None = None
        self._checkpoints = (
            config.folder / "checkpoints" / hashlib.sha256(config.run.encode()).hexdigest()[:12]
        )

    def stop(self) -> None:
        """Ends after the current round, or at once while it waits for its neighbours to come."""
        self._stop = True
        if self._session is not None:
            self._session.hurry()

    def run(self) -> PeerOutcome:
        config = self.config
        me = identity.load(config.folder)
        first = self._resume()
        journal = self.journal
        journal.begin()
        self._session = session = Peer(config, me, node=_node_kind(config), round=first, journal=journal)
        try:
            if first < config.rounds and not self._stop:
                names = getattr(self.learner, "tensors", ())
                node = session.start(self.learner.length, names)
                if self.enter is not None and journal.resumed is None:
                    self.learner.load(session.first_vector(self.learner.length, names))
                self._begin_records(first)  # now, because a start that is refused changes nothing
                while node.round < config.rounds and not self._stop:
                    self._round(session, node)
            else:
                self._begin_records(first)
            self._evaluate()
            saved = self._checkpoint(session.round)
            journal.end(session.node, session.round)
        finally:
            session.close(linger=not self._stop)
            journal.close()
        return PeerOutcome(
            peer=config.name,
            rounds=session.round,
            metric=journal.metric,
            score=journal.score,
            missing=journal.missing,
            rejected=journal.rejected,
            resumed=journal.resumed,
            saved=saved,
        )

    def _round(self, session: Peer, node: Node) -> None:
        round = node.round
        session.make_room()
        mixed, report = session.mix_vector(self.learner.step(round), losses=self.losses)
        self.learner.load(mixed)
        self.journal.finite = report.finite
        due = (round + 1) % self.config.training.evaluate_every == 0
        if due:
            self._evaluate()
        if (round + 1) % self.config.checkpoint_every == 0:
            self._checkpoint(node.round)
        self.journal.add(report, node, evaluated=due)

    def _evaluate(self) -> None:
        self.journal.score = self.learner.evaluate()

    def _begin_records(self, first: int) -> None:
        """Sets an earlier start aside, where it is not resumed, and forgets what will be done again."""
        if not self.resume:
            aside = set_aside(self.config.folder, [self._checkpoints, *self.journal.written()])
            if aside is not None:
                log.info("old state was set aside", extra={"path": str(aside)})
        self.journal.go_on_from(first)

    def _resume(self) -> int:
        found = checkpoint.load(self._checkpoints, self.config.run) if self.resume else None
        if found is None:
            return self.enter or 0
        try:
            self.learner.restore(found.tensors)
        except (KeyError, ValueError, RuntimeError) as error:
            raise PeerError(
                f"the checkpoint of round {found.round} is of another model: {first_line(error)[:200]}\n"
                "take the model back that it was made with, or start anew: --no-resume sets it aside"
            ) from error
        self.journal.resumed = found.round
        signed = signed_file(self.config.folder, self.config.run)
        if not signed.exists():
            said = "the rounds that this peer has signed are not known; to sign one again is a suspicion"
            log.warning(said, extra={"round": found.round, "missing": str(signed)})
        log.info("resumed", extra={"round": found.round})
        return found.round

    def _checkpoint(self, round: int) -> bool:
        if not self.journal.finite:  # the checkpoints before it are worth more
            return self._failed(round, "the model is not finite")
        state = Checkpoint(run=self.config.run, round=round, tensors=self.learner.state())
        try:
            checkpoint.save(state, self._checkpoints)
        except OSError as error:
            return self._failed(round, str(error))
        self.journal.checkpoint_time = time.time()
        return True

    def _failed(self, round: int, why: str) -> bool:
        self.journal.checkpoint_errors += 1
        log.error("checkpoint failed", extra={"round": round, "why": why})
        return False


def run_peer(
    config: Config,
    *,
    resume: bool = True,
    enter: int | None = None,
    ready: Callable[[], None] = lambda: None,
    lock: Lock | None = None,
) -> PeerOutcome:
    """Runs one peer in this process until it is done, or SIGINT, SIGTERM or SIGHUP asks it to stop. Calls
    `ready` before it begins. `lock` is that of the folder, where the caller holds it already."""
    with lock or take(config.folder), starting(config):
        peer = PeerRun(config, resume=resume, enter=enter)
        stopping = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as it is under nohup
            stopping.append(signal.SIGHUP)
        previous = {number: signal.signal(number, lambda *_: peer.stop()) for number in stopping}
        try:
            ready()
            return peer.run()
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


def _node_kind(config: Config) -> Callable[..., Node]:
    if not config.misbehave:
        return Node
    from clippedgossip.peer.drill.byzantine_peer import ByzantinePeer

    return ByzantinePeer
