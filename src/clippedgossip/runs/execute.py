"""Run a config in a folder on disk: lock, records, checkpoints, resuming, summary."""

import math
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from clippedgossip.devices import find_device
from clippedgossip.errors import MiscompiledError, RunError, UserError, warn_user
from clippedgossip.files import canonical
from clippedgossip.network.network import DRAWN, Network
from clippedgossip.own import blamed
from clippedgossip.records import ACCURACY, Round, RunDirectory
from clippedgossip.runs.config import RunConfig
from clippedgossip.settings import Training
from clippedgossip.simulate.engine import train_together
from clippedgossip.simulate.setup import Setup, kept_bytes
from clippedgossip.simulate.state import Moment, State

CHECKPOINT_EVERY = 30.0  # seconds
DISK = 5e8  # bytes of checkpoints that are written in a second, until it is known
OnRound = Callable[[RunConfig, Moment], None]
Engine = Callable[..., Iterator[list[Moment]]]


class Diverged(RunError):
    """A model or loss is no longer finite. The run is over; its summary says so and gives its last record."""

    def __init__(self, message: str, run: RunDirectory) -> None:
        super().__init__(message)
        self.run = run


def execute(
    config: RunConfig,
    root: Path | str,
    *,
    resume: bool = True,
    on_round: OnRound | None = None,
    checkpoint_every: float = CHECKPOINT_EVERY,
    keep: bool = False,
    engine: Engine | None = None,
) -> RunDirectory:
    """Run a config in its folder under `root`. A finished run is not repeated; a stopped run resumes.

    `resume=False` deletes what is there and starts again. `keep` keeps the last checkpoint, which holds the
    trained models. `engine` replaces `train_together`, for example by an engine over many processes. For a
    run that diverged this raises `Diverged`, also when it is called again.
    """
    attempt = Attempt.open(config, root)
    if not attempt.run.finished or not resume:
        with attempt.run.lock():
            if not resume:
                attempt.run.clear()
            if not attempt.run.finished:  # another process may have finished it meanwhile
                run_together(
                    [attempt], on_round=on_round, checkpoint_every=checkpoint_every, keep=keep, engine=engine
                )
    why = attempt.run.diverged
    if why is not None:
        raise Diverged(why, attempt.run)
    return attempt.run


def run_together(
    attempts: Sequence["Attempt"],
    *,
    on_round: OnRound | None = None,
    checkpoint_every: float = CHECKPOINT_EVERY,
    keep: bool = False,
    engine: Engine | None = None,
) -> None:
    """Run several configs of one shape in one stack, each in its folder, to the end. Hold their locks.

    An error is written into every folder before it is raised. A run that diverges ends; the others continue.
    If something was compiled or captured wrongly, the runs start again from the beginning without it.
    """
    started = time.monotonic()
    with _failures_written(attempts), _out_of_memory(), _interrupts(deferred=engine is None) as interrupted:
        while True:
            recorder = Recorder(attempts, on_round, checkpoint_every, keep)
            try:
                # A deque of length 0 keeps nothing: a moment holds the stack, and a second one may not fit.
                deque(recorder.rounds(started, interrupted, engine or train_together), maxlen=0)
                return
            except MiscompiledError as error:
                warn_user(str(error))
            for attempt in attempts:
                attempt.start_again()


def rounds_in_folder(attempt: "Attempt") -> Iterator[Moment]:
    """Train one run in its folder; yields after every round. Whoever stops asking leaves a checkpoint."""
    with attempt.run.lock(), _failures_written([attempt]), _out_of_memory():
        recorder = Recorder([attempt], None, CHECKPOINT_EVERY, keep=True)
        with closing(recorder.rounds(time.monotonic(), [], train_together)) as rounds:
            for (moment,) in rounds:
                yield moment


class Recorder:
    """Writes records, and checkpoints when they are due, of runs in one stack."""

    def __init__(
        self, attempts: Sequence["Attempt"], on_round: OnRound | None, checkpoint_every: float, keep: bool
    ) -> None:
        self.attempts, self.on_round, self.keep = attempts, on_round, keep
        self.checkpoint_every = checkpoint_every
        self.saved_at, self.cost = time.monotonic(), 0.0
        for attempt in attempts:
            attempt.run.failure_path.unlink(missing_ok=True)

    def rounds(
        self, started: float, interrupted: list[int], train: Engine
    ) -> Generator[list[Moment], None, None]:
        """Train to the end; yields after every round, when it is written."""
        setups = [attempt.setup() for attempt in self.attempts]
        self.cost = sum(map(checkpoint_bytes, setups)) / DISK
        states = _states(self.attempts)
        for moments in train(setups, device=self.attempts[0].device, states=states):
            stop = bool(interrupted)  # Ctrl-C from here on is for the next round
            live = self.write(moments, setups, checkpoint=stop)
            if stop:
                raise KeyboardInterrupt
            last = not live or moments[0].round == self.attempts[0].training.rounds
            if last:
                self.end(time.monotonic() - started)
            try:
                yield moments
            except GeneratorExit:
                if not last:
                    self.write_checkpoints(moments)
                raise
            if last:
                return
            del moments  # they hold the stack: a second one may not fit beside it
        self.end(time.monotonic() - started)  # stopped between the last checkpoint and the summary

    def end(self, seconds: float) -> None:
        """Write what says that the runs are finished."""
        for attempt in self.attempts:
            attempt.run.write_summary(summarise(attempt, seconds))
            if not self.keep:
                attempt.run.checkpoint_path.unlink(missing_ok=True)

    def write(self, moments: Sequence[Moment], setups: Sequence[Setup], *, checkpoint: bool) -> bool:
        """Write what is due after a round, and a checkpoint if asked; returns whether a run goes on."""
        for attempt, moment, setup in zip(self.attempts, moments, setups, strict=True):
            if attempt.diverged is None:
                attempt.write(moment, setup)
                if self.on_round is not None:
                    self.on_round(attempt.config, moment)
        live = any(attempt.diverged is None for attempt in self.attempts)
        if live and (checkpoint or self._checkpoint_due(moments[0].round)):
            self.write_checkpoints(moments)
        return live

    def write_checkpoints(self, moments: Sequence[Moment]) -> None:
        """Of the runs that have not diverged."""
        began = time.monotonic()
        for attempt, moment in zip(self.attempts, moments, strict=True):
            if attempt.diverged is None:
                with attempt.run.writing_checkpoint() as path:
                    moment.state().save(path)
        self.saved_at = time.monotonic()
        self.cost = self.saved_at - began

    def _checkpoint_due(self, round: int) -> bool:
        """If writing one takes long, at least twenty times as long passes before it."""
        if round == self.attempts[0].training.rounds:
            return self.keep
        return time.monotonic() - self.saved_at >= max(self.checkpoint_every, 20 * self.cost)


@dataclass(eq=False)
class Attempt:
    """One run that this process trains."""

    config: RunConfig
    run: RunDirectory
    device: str
    training: Training
    began: int = 0  # the round of the checkpoint that it resumes from
    diverged: str | None = None
    tier: str = ""  # how the models are computed
    built: Setup | None = None  # its setup, between the question what it needs and its training

    @classmethod
    def of(cls, config: RunConfig, root: Path | str) -> "Attempt":
        """The run of a config; its folder may not exist yet."""
        return cls(config, config.run(root), str(find_device(config.device)), config.training.build())

    @classmethod
    def open(cls, config: RunConfig, root: Path | str) -> "Attempt":
        """The same, with its folder made."""
        attempt = cls.of(config, root)
        attempt.make()
        return attempt

    def make(self) -> None:
        """Make its folder."""
        config = self.config
        RunDirectory.open(self.run.path.parent, config.to_mapping(), config.label, device=self.device)

    def setup(self) -> Setup:
        """Its setup, which is the caller's now."""
        built, self.built = self.built, None
        return built or self.config.build()

    def checkpoint_round(self) -> int:
        """The round of its checkpoint; 0 without one."""
        try:
            with safe_open(str(self.run.checkpoint_path), framework="pt") as stored:
                return int((stored.metadata() or {})["round"])
        except (OSError, SafetensorError, KeyError, ValueError):
            return 0

    def checkpoint(self) -> State | None:
        """The state to resume from; records after it are deleted. Without a state, the run starts again."""
        state = self.kept()
        if state is not None:
            evaluated = filter(self.training.evaluates, range(1, state.round + 1))
            wanted = max(evaluated, default=None)
            if self.run.truncate_to(state.round) == wanted:
                self.began = state.round
                return state
        self.run.clear()
        return None

    def kept(self) -> State | None:
        """What its checkpoint holds; None if it is damaged: the config determines the run."""
        with suppress(RunError):
            return State.load(self.run.checkpoint_path) if self.run.checkpoint_path.exists() else None
        return None

    def write(self, moment: Moment, setup: Setup) -> None:
        """Write the record of a round that was evaluated; note if the run has diverged."""
        record, self.tier = moment.record, moment.tier
        if record is None:
            return
        self.run.append(record)
        self._draw(setup.network, record)
        self.diverged = self.diverged or divergence(moment, setup)

    def start_again(self) -> None:
        """Delete records and checkpoint."""
        self.run.clear()
        self.began, self.diverged = 0, None

    def _draw(self, network: Network, record: Round) -> None:
        """Draw a network that is small enough, once; after the last round, with the components it has."""
        seen = (record.components or ()) if record.round == self.training.rounds else ()
        if network.n <= DRAWN and (len(seen) > 1 or not self.run.drawing_path.exists()):
            key = canonical({**self.config.to_mapping()["network"], "components": seen})
            self.run.write_drawing(_DRAWINGS.get(key) or _DRAWINGS.setdefault(key, drawing(network, seen)))


_DRAWINGS: dict[str, str] = {}
"""Drawings by network: many runs have one network, and a drawing takes as long as many small rounds."""


def drawing(network: Network, components: Sequence[Sequence[Any]] = ()) -> str:
    """An SVG file of the network."""
    from clippedgossip.report.figures.canvas import standalone  # imports matplotlib, which takes a second
    from clippedgossip.report.network_drawing import network_svg

    return standalone(network_svg(network, components=components))


def checkpoint_bytes(setup: Setup) -> int:
    """Of one run's checkpoint: models, the optimizer's slots, and what is kept of earlier rounds."""
    size, copies = setup.task.layout.size, 1 + len(setup.training.optimizer.slots)
    return 4 * copies * len(setup.task.nodes) * size + kept_bytes(setup.network, size)


def _states(attempts: Sequence[Attempt]) -> list[State] | None:
    """The states that the runs resume from; all must be of one round."""
    states = [attempt.checkpoint() for attempt in attempts]
    if len({attempt.began for attempt in attempts}) > 1:
        raise RunError("runs in one stack must be at the same round; run them one by one")
    return [state for state in states if state is not None] or None


def summarise(attempt: Attempt, seconds: float) -> dict[str, Any]:
    """The summary: means over the last `evaluate_last` rounds; of a run that diverged, its last record."""
    training = attempt.training
    rounds = list(attempt.run.rounds())
    last = [r for r in rounds if r.round > training.rounds - training.evaluate_last]
    last = rounds[-1:] if attempt.diverged or not last else last
    metric = last[-1].metric
    groups = {name: _mean([r.score.get(name) for r in last]) for name in last[-1].score}
    scores = {f"mean_{metric}": "mean_score", f"worst_{metric}": "worst_score"}
    measures = scores | {name: name for name in MEASURES}
    named = {} if metric == ACCURACY else {"metric": metric}
    end = rounds[-1]
    return {
        **named,
        metric: groups.get("all"),
        "groups": groups,
        "last_round": {
            **named,
            metric: end.score.get("all"),
            "groups": dict(end.score),
            **{key: getattr(end, name) for key, name in measures.items()},
        },
        **{key: _mean([getattr(r, name) for r in last]) for key, name in measures.items()},
        "rounds": end.round,
        "resumed_from": attempt.began,
        "seconds": round(seconds, 3),
        "device": attempt.device,
        "tier": attempt.tier,
        **({} if attempt.diverged is None else {"diverged": attempt.diverged}),
    }


MEASURES = ("loss", "consensus_distance", "clipped")


def lock(attempt: Attempt, stack: ExitStack) -> bool:
    """Lock a run, unless it is finished or another process has locked it; returns whether it is locked. The
    stack unlocks it when it closes."""
    if attempt.run.finished:
        return False
    attempt.make()
    held = attempt.run.try_lock()
    if held is None:
        return False
    stack.enter_context(held)
    return not attempt.run.finished  # another process may have finished it just before


def divergence(moment: Moment, setup: Setup) -> str | None:
    """Why a run must end at this record, if its loss or models are no longer finite."""
    record = moment.record
    if record is None:
        return None
    measured = {"loss": record.loss, "consensus distance": record.consensus_distance}
    wrong = [name for name, value in measured.items() if value is not None and not math.isfinite(value)]
    if not wrong:
        return None
    models = moment.state().tensors["models"][: len(setup.network.regular)].double()
    broken = ~torch.isfinite(models).all(1)
    row = int(broken.int().argmax() if broken.any() else models.norm(dim=1).argmax())
    node = setup.network.labels[int(setup.network.regular[row])]
    what = f"node {node} holds"
    if not broken.any():
        verb = "is" if len(wrong) == 1 else "are"
        what = f"node {node} has the largest model, and the {' and the '.join(wrong)} {verb}"
    return (
        f"diverged by round {moment.round}: {what} NaN or infinity; what was recorded stays\n"
        "lower the learning rate, or take a rule that withstands the attack"
    )


@contextmanager
def _interrupts(*, deferred: bool) -> Iterator[list[int]]:
    """Ctrl-C is noted in the list that this gives, so that the round under way ends and its checkpoint is
    written. A second Ctrl-C interrupts at once. Where others handle Ctrl-C already, nothing changes."""
    noted: list[int] = []

    def note(number: int, frame: object) -> None:
        if noted:
            raise KeyboardInterrupt
        noted.append(number)
        os.write(2, b"\nstopping after this round; Ctrl-C again stops at once\n")

    main = threading.current_thread() is threading.main_thread()
    if not (deferred and main and signal.getsignal(signal.SIGINT) is signal.default_int_handler):
        yield noted
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def _failures_written(attempts: Sequence[Attempt]) -> Iterator[None]:
    """Write an error into the folder of every run before it is raised."""
    try:
        yield
    except Exception as error:  # whatever it is, the folder names it; then it is raised again
        reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        for attempt in attempts:
            attempt.run.write_failure(blamed(error) or reason)
        raise


@contextmanager
def _out_of_memory() -> Iterator[None]:
    """Raise an error of this package if there is no memory left."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        known = isinstance(error, torch.OutOfMemoryError | MemoryError)
        if not known and "DefaultCPUAllocator" not in str(error):  # PyTorch's message for a CPU
            raise
        reason = (str(error).splitlines() or ["no reason given"])[0].rpartition("DefaultCPUAllocator: ")[2]
        raise RunError(
            f"out of memory: {reason}\n"
            "use fewer workers, a smaller batch or model; `run --plan` prints the memory needed"
        ) from error


def _mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return math.fsum(there) / len(there) if there else None
