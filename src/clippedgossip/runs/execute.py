"""A config becomes a run on disk: locked, recorded, checkpointed, resumed, summed up."""

import gc
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from clippedgossip.devices import find_device
from clippedgossip.errors import MiscompiledError, RunError, UserError
from clippedgossip.network import Network
from clippedgossip.records import Lock, Round, RunDirectory, canonical, run_name
from clippedgossip.runs.build import build
from clippedgossip.runs.config import RunConfig
from clippedgossip.simulate.engine import train_together
from clippedgossip.simulate.setup import Setup
from clippedgossip.simulate.state import Moment, State

DRAWN = 200  # nodes, at most: beyond, a picture takes longer than it tells
OnRound = Callable[[RunConfig, Moment], None]
Engine = Callable[..., Iterator[list[Moment]]]


class Diverged(RunError):
    """A model or loss is no longer a number. The run is over; its summary says so, and how it stood then."""

    def __init__(self, message: str, run: RunDirectory) -> None:
        super().__init__(message)
        self.run = run


@dataclass(frozen=True, kw_only=True)
class Cadence:
    """When to write a checkpoint: after so many rounds or seconds, whichever comes first; where writing one
    takes long, only after twenty times as long."""

    rounds: int | None = None
    seconds: float | None = 30.0

    def due(self, rounds: int, seconds: float, cost: float = 0.0) -> bool:
        return (self.rounds is not None and rounds >= self.rounds) or (
            self.seconds is not None and seconds >= max(self.seconds, 20 * cost)
        )


def execute(
    config: RunConfig,
    root: Path | str,
    *,
    resume: bool = True,
    on_round: OnRound | None = None,
    cadence: Cadence | None = None,
    keep: bool = False,
    engine: Engine | None = None,
) -> RunDirectory:
    """Run a config into its folder under `root`; a run that is finished is found, one that stopped goes on.

    `resume=False` forgets what is there. `keep` leaves the last checkpoint, the trained models. `engine` is
    taken in place of `train_together`, such as one over many processes. A run that diverged raises,
    now and whenever it is asked for again.
    """
    attempt = Attempt.open(config, root)
    if not attempt.run.finished or not resume:
        with attempt.run.lock():
            if not resume:
                attempt.run.clear()
            if not attempt.run.finished:  # another process may have been faster
                carry_out([attempt], on_round=on_round, cadence=cadence, keep=keep, engine=engine)
    why = attempt.run.diverged
    if why is not None:
        raise Diverged(why, attempt.run)
    return attempt.run


@dataclass(eq=False)
class Attempt:
    """One run in the hands of this process."""

    config: RunConfig
    run: RunDirectory
    device: str
    began: int = 0
    """The round of the checkpoint it goes on from."""
    diverged: str | None = None

    @classmethod
    def of(cls, config: RunConfig, root: Path | str) -> "Attempt":
        """The run of a config, whether it is there yet or not."""
        run = RunDirectory(Path(root) / run_name(config.to_mapping(), config.label))
        return cls(config, run, str(find_device(config.device)))

    @classmethod
    def open(cls, config: RunConfig, root: Path | str) -> "Attempt":
        """The same with its folder made."""
        attempt = cls.of(config, root)
        attempt.make()
        return attempt

    def make(self) -> None:
        config = self.config
        RunDirectory.open(self.run.path.parent, config.to_mapping(), config.label, device=self.device)

    def draw(self, network: Network) -> None:
        """Leave a picture of a network that is small enough for one."""
        if network.n <= DRAWN and not self.run.drawing_path.exists():
            self.run.write_drawing(_picture(canonical(self.config.network.to_mapping()), network))

    def stands_at(self) -> int:
        """The round of its checkpoint; 0 without one."""
        return _round(self.run.checkpoint_path)

    def checkpoint(self) -> State | None:
        """The state to go on from; records after it are forgotten. Without one, the run starts again."""
        state = _read(self.run.checkpoint_path)
        if state is not None:
            training = self.config.training.build()
            wanted = max((r for r in range(1, state.round + 1) if training.evaluates(r)), default=None)
            if self.run.truncate_to(state.round) == wanted:
                self.began = state.round
                return state
        self.run.clear()
        return None

    def take(self, moment: Moment, setup: Setup) -> None:
        """Write down a round that was evaluated; end a run that has no numbers left."""
        record = moment.record
        if record is None:
            return
        self.run.append(record)
        if not all(math.isfinite(x) for x in (record.loss, record.consensus_distance) if x is not None):
            self.diverged = _blame(moment, setup)

    def fail(self, error: Exception) -> None:
        reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        self.run.write_failure(reason)


def carry_out(
    attempts: Sequence[Attempt],
    *,
    on_round: OnRound | None = None,
    cadence: Cadence | None = None,
    keep: bool = False,
    engine: Engine | None = None,
) -> None:
    """Train to the end, several runs of one shape in step. Call it with the locks held.

    What fails says why in its folder and raises; a run that diverges is over, the others go on.
    """
    cadence = cadence or Cadence()
    started = time.monotonic()
    try:
        with _out_of_memory():
            _train_rightly(attempts, on_round, cadence, keep, engine or train_together)
    except Exception as error:  # whatever it is, the folder says why before it goes on
        for attempt in attempts:
            attempt.fail(error)
        raise
    seconds = time.monotonic() - started
    for attempt in attempts:
        attempt.run.write_summary(summarise(attempt, seconds))
        if not keep:
            attempt.run.checkpoint_path.unlink(missing_ok=True)


def _train_rightly(
    attempts: Sequence[Attempt], on_round: OnRound | None, cadence: Cadence, keep: bool, engine: Engine
) -> None:
    """Start again, from nothing, if what was compiled or captured was wrong."""
    while True:
        try:
            return _train(attempts, on_round, cadence, keep, engine)
        except MiscompiledError as error:
            warnings.warn(str(error), RuntimeWarning, stacklevel=2)
        for attempt in attempts:
            attempt.run.clear()
            attempt.began, attempt.diverged = 0, None
        gc.collect()  # the stack that was wrong, so that the next one fits
        torch.cuda.empty_cache()


def _train(
    attempts: Sequence[Attempt], on_round: OnRound | None, cadence: Cadence, keep: bool, engine: Engine
) -> None:
    for attempt in attempts:
        attempt.run.failure_path.unlink(missing_ok=True)
    setups = [build(attempt.config) for attempt in attempts]
    states = _states(attempts)
    for attempt, setup in zip(attempts, setups, strict=True):
        attempt.draw(setup.network)
    saved_round, saved_at, cost = attempts[0].began, time.monotonic(), 0.0
    for moments in engine(setups, device=attempts[0].device, states=states):
        now = moments[0].round
        for attempt, moment, setup in zip(attempts, moments, setups, strict=True):
            if attempt.diverged is None:
                attempt.take(moment, setup)
                if on_round is not None:
                    on_round(attempt.config, moment)
        alive = [pair for pair in zip(attempts, moments, strict=True) if pair[0].diverged is None]
        if not alive:
            return
        last = now == attempts[0].config.training.rounds
        began = time.monotonic()
        if keep if last else cadence.due(now - saved_round, began - saved_at, cost):
            for attempt, moment in alive:
                with attempt.run.writing_checkpoint() as path:
                    moment.state().save(path)
            saved_round, saved_at = now, time.monotonic()
            cost = saved_at - began


_PICTURES: dict[str, str] = {}
"""Many runs of one process have one network, and drawing it takes as long as many of their rounds."""


def _picture(identity: str, network: Network) -> str:
    from clippedgossip.report.figures.canvas import standalone
    from clippedgossip.report.network_drawing import (
        network_svg,  # matplotlib, a second that a run found finished is spared
    )

    if identity not in _PICTURES:
        _PICTURES[identity] = standalone(network_svg(network))
    return _PICTURES[identity]


def _states(attempts: Sequence[Attempt]) -> list[State] | None:
    """Where the runs stand, which must be one round."""
    states = [attempt.checkpoint() for attempt in attempts]
    if len({attempt.began for attempt in attempts}) > 1:
        raise RunError("runs that go together must stand at one round; run them one by one")
    return [state for state in states if state is not None] or None


def summarise(attempt: Attempt, seconds: float) -> dict[str, Any]:
    """How the run ended: means over the last `evaluate_last` rounds; if it diverged, its last record."""
    training = attempt.config.training
    rounds = list(attempt.run.rounds())
    last = [r for r in rounds if r.round > training.rounds - training.evaluate_last]
    last = rounds[-1:] if attempt.diverged or not last else last  # it would have stayed as it ended
    groups = {name: _mean([(r.accuracy or {}).get(name) for r in last]) for name in last[-1].accuracy or {}}
    return {
        "accuracy": groups.get("all"),
        "groups": groups,
        **{name: _mean([_measure(r, name) for r in last]) for name in MEASURES},
        "rounds": rounds[-1].round,
        "resumed_from": attempt.began,
        "seconds": round(seconds, 3),
        "device": attempt.device,
        **({} if attempt.diverged is None else {"diverged": attempt.diverged}),
    }


MEASURES = ("mean_accuracy", "worst_accuracy", "loss", "consensus_distance", "clipped")


def lock_all(attempts: Sequence[Attempt], stack: ExitStack) -> list[Attempt]:
    """Those of the runs that no other process has; their locks are let go of when the stack closes."""
    mine = []
    for attempt in attempts:
        lock: Lock | None = None
        if not attempt.run.finished:
            attempt.make()
            lock = attempt.run.try_lock()
        if lock is not None:
            stack.enter_context(lock)
            if not attempt.run.finished:
                mine.append(attempt)
    return mine


def _read(path: Path) -> State | None:
    if not path.exists():
        return None
    try:
        return State.load(path)
    except RunError:  # the disk spoilt it: the run is determined by its config, so it can start again
        return None


def _round(path: Path) -> int:
    try:
        with safe_open(str(path), framework="pt") as stored:
            return int((stored.metadata() or {})["round"])
    except (OSError, SafetensorError, KeyError, ValueError):
        return 0


def _blame(moment: Moment, setup: Setup) -> str:
    models = moment.state().tensors["models"][: len(setup.network.regular)].double()
    broken = ~torch.isfinite(models).all(1)
    row = int(broken.int().argmax() if broken.any() else models.norm(dim=1).argmax())
    node = setup.network.labels[int(setup.network.regular[row])]
    what = f"node {node} holds" if broken.any() else f"node {node} strayed furthest, the loss is"
    return (
        f"diverged by round {moment.round}: {what} NaN or infinity; what was recorded stays\n"
        "lower training.lr, or take a rule that withstands the attack"
    )


@contextmanager
def _out_of_memory() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        known = isinstance(error, torch.OutOfMemoryError | MemoryError)
        if not known and "DefaultCPUAllocator" not in str(error):  # how PyTorch says it of a CPU
            raise
        reason = (str(error).splitlines() or ["no more to be had"])[0].rpartition("DefaultCPUAllocator: ")[2]
        raise RunError(
            f"out of memory: {reason}\n"
            "use fewer workers, a smaller batch or model; `run --plan` says what is needed"
        ) from error


def _measure(record: Round, name: str) -> float | None:
    value: float | None = getattr(record, name)
    return value


def _mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return math.fsum(there) / len(there) if there else None
