"""Runs on disk: the record of a round, and the folder of a run, whose name contains the hash of its config.

Records contain no time, no host and no path, so two runs of one config have the same bytes.
"""

import dataclasses
import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, Self, get_type_hints

import clippedgossip
import clippedgossip.files as files
from clippedgossip.decode import from_json, value
from clippedgossip.errors import DataError, RunError, UserError

FORMAT = "2"  # format of a run's folder. Version 0.1 wrote no format; its folders are read
ACCURACY = "accuracy"
State = Literal["new", "running", "stopped", "failed", "diverged", "finished"]


@dataclass(frozen=True, kw_only=True)
class Round:
    """One round of a simulated or a real network. A field that was not measured is None."""

    round: int  # how many rounds are done
    accuracy: Mapping[str, float | None] | None = None
    """Test accuracy, in [0, 1], of the model averaged over a group of regular nodes:
    {"all": …, "clique A": …}."""
    mean_accuracy: float | None = None  # mean of the accuracies of single regular nodes
    worst_accuracy: float | None = None  # lowest accuracy of a single regular node
    loss: float | None = None  # of training, the mean over regular nodes
    consensus_distance: float | None = None
    """Ξ: mean squared distance of the regular models to their mean. Only a simulation can know it."""
    neighbour_distance: float | None = None
    """A peer's: mean squared distance of its model to those it received."""
    clipped: float | None = None
    """Fraction of the received messages that were clipped, from the first round on."""
    clipped_edges: Sequence[Sequence[Any]] | None = None
    """[sender, receiver, fraction] of every edge with clipped messages, the most clipped first. Only the last
    record of a simulated run has it."""
    components: Sequence[Sequence[Any]] | None = None
    """The regular nodes in the components into which their models fall, the largest first. This and the next
    three are there where `training.evaluate_components` asks for them."""
    component_gap: float | None = None
    """The smallest distance between models of two components. None if there is one component."""
    within_components: float | None = None
    """Ξ within: mean squared distance of the regular models to the mean of their component."""
    between_components: float | None = None  # Ξ between: Ξ less Ξ within
    lr: float | None = None  # η of the round
    peer: str | None = None  # whose record it is, of a real network
    missing: int | None = None  # neighbours whose message did not count in this round
    rejected: int | None = None  # those of them that sent something no regular peer sends
    extra: Mapping[str, Any] = field(default_factory=dict)  # further entries, kept as they are

    @property
    def metric(self) -> str:
        """What the models were tested by; the fields of metrics other than accuracy are in `extra`."""
        return str(self.extra.get("metric", ACCURACY))

    @property
    def higher_is_better(self) -> bool:
        return not self.extra.get("lower_is_better", False)

    @property
    def score(self) -> Mapping[str, float | None]:
        """The metric of the model averaged over a group of regular nodes: {"all": …, "clique A": …}."""
        found = self._of_metric("")
        return found if isinstance(found, Mapping) else {}

    @property
    def mean_score(self) -> float | None:
        """Mean of the metric over single regular nodes."""
        found: float | None = self._of_metric("mean_")
        return found

    @property
    def worst_score(self) -> float | None:
        """The metric of the worst regular node."""
        found: float | None = self._of_metric("worst_")
        return found

    def _of_metric(self, which: str) -> Any:
        name = which + self.metric
        return getattr(self, name) if self.metric == ACCURACY else self.extra.get(name)

    @property
    def metrics(self) -> dict[str, Any]:
        """What was measured, by name, such as `metrics["accuracy"]["all"]` and `metrics["loss"]`."""
        return {name: value for name, value in self.to_json().items() if name not in ("round", "peer")}

    def to_json(self) -> dict[str, Any]:
        """A flat mapping in the order of the fields, without those that are None."""
        flat = {name: getattr(self, name) for name in _FIELDS}
        return {name: value for name, value in flat.items() if value is not None} | dict(self.extra)

    def to_row(self) -> dict[str, Any]:
        """A row of a table: `accuracy` is that of all regular nodes, `accuracy clique A` that of a group."""
        metric = self.metric
        scores = {metric if name == "all" else f"{metric} {name}": v for name, v in self.score.items()}
        left_out = ("round", metric, "metric", "lower_is_better", "clipped_edges", "components")
        rest = {key: value for key, value in self.to_json().items() if key not in left_out}
        return {"round": self.round, **scores, **rest}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        number = record.get("round")
        if not isinstance(number, int) or isinstance(number, bool):
            raise RunError(f"a record's 'round' is {number!r}; it must be a whole number")
        if "peer" in record and "consensus_distance" in record:  # as version 0.1 called a peer's distance
            record = {**record, "neighbour_distance": record["consensus_distance"]}
            record = {name: value for name, value in record.items() if name != "consensus_distance"}
        known = {name: _typed(name, record[name], _HINTS[name]) for name in _FIELDS if name in record}
        for edge in known.get("clipped_edges") or ():
            if len(edge) != 3 or not isinstance(edge[2], int | float):
                raise RunError(f"a record's clipped_edges has {edge!r}; it must be [from, to, fraction]")
        extra = {name: found for name, found in record.items() if name not in _FIELDS}
        if (metric := extra.get("metric", ACCURACY)) != ACCURACY:
            metric = _typed("metric", metric, str)
            for which in ("", "mean_", "worst_"):
                name = which + metric
                if name in extra:
                    extra[name] = _typed(name, extra[name], _HINTS[which + ACCURACY])
        return cls(**known, extra=extra)


def scored(
    metric: str,
    score: Mapping[str, float | None] | None,
    *,
    mean: float | None = None,
    worst: float | None = None,
    higher_is_better: bool = True,
) -> dict[str, Any]:
    """The arguments of a `Round` that hold a metric: of all groups, and of single nodes."""
    found = {metric: score, f"mean_{metric}": mean, f"worst_{metric}": worst}
    if metric == ACCURACY:
        return found
    there = {name: value for name, value in found.items() if value is not None}
    return {"extra": {"metric": metric, **there} | ({} if higher_is_better else {"lower_is_better": True})}


_FIELDS = tuple(entry.name for entry in dataclasses.fields(Round) if entry.name != "extra")
_HINTS = get_type_hints(Round)


def _typed(name: str, found: Any, hint: Any) -> Any:
    """An entry of a record, which somebody else may have written."""
    try:
        checked = value(hint, found, (name,))
        return found if isinstance(found, list) else checked
    except UserError as error:
        raise RunError(f"a record's {error}") from error


BESIDE = (
    "metric", "lower_is_better", "reasons", "distances", "clipped_to", "seconds", "deadline", "other_rounds",
    "neighbours", "groups", "last_round", "rounds", "resumed_from", "device", "tier", "diverged", "models",
    "run", "state", "name", "seed", "network", "data", "model", "rule", "attack", "training", "given",
    "misbehave", "node", "nodes", "task", "wire", "learner",
)  # fmt: skip
"""What else stands in records (also of peers), in summaries and in tables, which have a config's keys."""


def refuse_metric(name: object, *, higher_is_better: bool = True) -> None:
    """Refuse a metric by whose name records or tables call something else, also in the name of a file."""
    if not isinstance(name, str) or not name.strip():
        raise DataError(f"the name of a metric is {name!r}\ngive a word, such as 'error'")
    if name == ACCURACY and not higher_is_better:
        raise DataError(
            "metric 'accuracy' is said to be better if it is lower; it is the share of right answers\n"
            "give it another name, such as 'error'"
        )
    first = re.sub(r"\W", "_", name.partition(".")[0].lower())
    if first != ACCURACY and first in {*_FIELDS, *BESIDE}:
        raise DataError(
            f"a metric has the name {name!r}, by which records and tables call something else\n"
            f"give it another: rename the function, or mean_metric('own {name}', …)"
            + (". metric='loss' is the task's own loss of the test set" if first == "loss" else "")
        )


def run_name(config: Mapping[str, Any], prefix: str) -> str:
    """`prefix-<12 hex digits of the config's hash>`."""
    return f"{prefix}-{sha256(files.canonical(config).encode()).hexdigest()[:12]}"


_writing = partial(
    files.writing,
    fix="free space or give another folder, then run the same command again: nothing written is lost",
)


class _InFolder:
    """The path of a file of a run."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, run: "RunDirectory", kind: object = None) -> Path:
        return run.path / self.name


@dataclass(frozen=True)
class RunDirectory:
    """A run on disk. The process that runs it holds its lock. Others may read it meanwhile."""

    path: Path

    @classmethod
    def open(cls, root: Path | str, config: Mapping[str, Any], label: str, *, device: str = "cpu") -> Self:
        """Find the run of this config under `root`, or create it."""
        run = cls(Path(root) / run_name(config, label))
        text = files.canonical(config)
        with _writing(run.path):
            run.path.mkdir(parents=True, exist_ok=True)
            if not run.config_path.exists():
                files.write_atomic(run.config_path, text)
            if not run.environment_path.exists():
                files.write_atomic(run.environment_path, files.to_text(environment(device)))
        files.refuse_newer(run.environment.get("format", 1), FORMAT, run.path)
        if run.config_path.read_text(encoding="utf-8") != text:
            raise RunError(
                f"{run.config_path} was changed after the run began\ndelete {run.path} to run it again"
            )
        return run

    @classmethod
    def existing(cls, path: Path | str) -> Self:
        """A run that exists and has records. Otherwise an error says what is missing."""
        run = cls(Path(path))
        wanted = {file.name: file.is_file() for file in (run.config_path, run.records_path)}
        if not run.path.is_dir():
            what = "is not a folder" if run.path.exists() else "does not exist"
            raise RunError(f"{run.path} {what}; a run is a folder with {' and '.join(wanted)}")
        if not wanted[run.config_path.name]:
            missing = " and ".join(name for name, there in wanted.items() if not there)
            raise RunError(f"{run.path} is not a run: it has no {missing}\ngive a folder that a run wrote")
        files.refuse_newer(run.environment.get("format", 1), FORMAT, run.path)
        if not wanted[run.records_path.name] or next(run.records(), None) is None:
            raise RunError(f"{run.path} has no records yet\nstart the run, or wait for its first round")
        return run

    config_path = _InFolder("config.json")
    records_path = _InFolder("records.jsonl")
    environment_path = _InFolder("environment.json")
    checkpoint_path = _InFolder("checkpoint.safetensors")
    drawing_path = _InFolder("network.svg")  # a drawing of the network, if there is one. `report` shows it
    summary_path = _InFolder("summary.json")
    failure_path = _InFolder("failure.json")
    lock_path = _InFolder("lock")

    @property
    def config(self) -> dict[str, Any]:
        return _read_object(self.config_path)

    @property
    def environment(self) -> dict[str, Any]:
        return _read_object(self.environment_path) if self.environment_path.exists() else {}

    @property
    def summary(self) -> dict[str, Any] | None:
        return _read_object(self.summary_path) if self.finished else None

    @property
    def failure(self) -> str | None:
        """Why the last attempt ended early, if it was able to write it down."""
        return str(_read_object(self.failure_path).get("error")) if self.failure_path.exists() else None

    @property
    def diverged(self) -> str | None:
        """Why a finished run ended before its last round. None if it did not."""
        why = (self.summary or {}).get("diverged")
        return None if why is None else str(why)

    @property
    def finished(self) -> bool:
        return self.summary_path.exists()

    @property
    def running(self) -> bool:
        return files.Lock.is_held(self.lock_path)

    @property
    def state(self) -> State:
        if self.finished:
            return "finished" if self.diverged is None else "diverged"
        if self.running:
            return "running"
        if self.failure is not None:
            return "failed"
        return "stopped" if self.records_path.exists() else "new"

    def try_lock(self) -> files.Lock | None:
        """The lock of this run, or None while another process holds it."""
        with _writing(self.lock_path):
            lock = files.Lock.take(self.lock_path)
            if lock is not None:
                for path in (self.checkpoint_path, self.summary_path, self.failure_path):
                    for leftover in files.leftovers(path):
                        leftover.unlink(missing_ok=True)
        return lock

    def lock(self) -> files.Lock:
        """The lock of this run: `with run.lock(): …`."""
        lock = self.try_lock()
        if lock is None:
            raise RunError(
                f"{self.path} is being run by another process, or by a run of this one that has not ended\n"
                "wait for it, or stop it first: run.finish(), or del run"
            )
        return lock

    def append(self, *records: Mapping[str, Any] | Round) -> None:
        """Write whole lines. If the operating system does not take all of them, none stays."""
        contents = [record.to_json() if isinstance(record, Round) else record for record in records]
        lines = "".join(map(files.to_line, contents)).encode()
        with _writing(self.records_path), self.records_path.open("a+b", buffering=0) as file:
            size = _cut_torn_line(file.fileno())
            try:
                written = 0
                while written < len(lines):
                    written += os.write(file.fileno(), lines[written:])
            except OSError:
                with suppress(OSError):
                    os.ftruncate(file.fileno(), size)
                raise

    def sync(self) -> None:
        """Flush the records to the disk."""
        if self.records_path.exists():
            with _writing(self.records_path), self.records_path.open("rb") as file:
                os.fsync(file.fileno())

    def records(self) -> Iterator[dict[str, Any]]:
        """All whole records. An incomplete last line, left by a killed process, is skipped."""
        for record, _ in self._lines():
            yield record

    def rounds(self) -> Iterator[Round]:
        """The records as `Round`s."""
        for record in self.records():
            try:
                yield Round.from_json(record)
            except RunError as error:
                raise RunError(f"{self.records_path}: {error}\n{_spoilt(self.records_path)}") from error

    def truncate_to(self, round: int) -> int | None:
        """Delete every record after `round`, and an incomplete last line, to resume from a checkpoint.
        Returns the last round that is kept. A run cannot resume from a later checkpoint."""
        if not self.records_path.exists():
            return None
        end, last = 0, None
        for record, after in self._lines():
            number = record.get("round")
            if isinstance(number, int):
                if number > round:
                    break
                last = number
            end = after
        with _writing(self.records_path):
            if end < self.records_path.stat().st_size:
                self.summary_path.unlink(missing_ok=True)
                os.truncate(self.records_path, end)
                self.sync()
        return last

    @contextmanager
    def writing_checkpoint(self) -> Iterator[Path]:
        """A path that becomes the checkpoint if the block raises nothing. Records are on disk before it."""
        self.sync()
        with _writing(self.checkpoint_path), files.replacing(self.checkpoint_path) as temporary:
            yield temporary

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Mark the run as finished. The summary is on disk as a whole or not at all."""
        self.sync()
        with _writing(self.summary_path):
            files.write_atomic(self.summary_path, files.to_text(summary))
            self.failure_path.unlink(missing_ok=True)

    def write_drawing(self, svg: str) -> None:
        """Write a drawing of the network into the folder."""
        with _writing(self.drawing_path):
            files.write_atomic(self.drawing_path, svg)

    def write_failure(self, error: BaseException | str) -> None:
        """Write why this attempt ended. If that fails too, the error itself still reaches the user."""
        with suppress(OSError):
            files.write_atomic(self.failure_path, files.to_text({"error": str(error)}))

    def clear(self) -> None:
        """Delete records, checkpoint and summary, to start again. The caller must hold the lock."""
        with _writing(self.path):
            for path in (self.summary_path, self.failure_path, self.checkpoint_path, self.records_path):
                path.unlink(missing_ok=True)
            files.sync_folder(self.path)

    def _lines(self) -> Iterator[tuple[dict[str, Any], int]]:
        """Each record with the offset just after its line."""
        if not self.records_path.exists():
            return
        end = 0
        with self.records_path.open("rb") as file:
            for number, line in enumerate(file, 1):
                record = _parse(line)
                end += len(line)
                if record is not None:
                    yield record, end
                elif file.readline():  # not the last line, so it was not a killed process
                    raise RunError(
                        f"{self.records_path}, line {number} is not a record\n{_spoilt(self.records_path)}"
                    )


def _parse(line: bytes) -> dict[str, Any] | None:
    if not line.endswith(b"\n"):
        return None
    try:
        record = from_json(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _cut_torn_line(descriptor: int) -> int:
    """Cut off an incomplete last line. Returns the size of the file then."""
    size = os.lseek(descriptor, 0, os.SEEK_END)
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        size = os.pread(descriptor, size, 0).rfind(b"\n") + 1
        os.ftruncate(descriptor, size)
    return size


def _read_object(path: Path) -> dict[str, Any]:
    try:
        content = from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read {path}: {error}\n{_spoilt(path)}") from error
    if not isinstance(content, dict):
        raise RunError(f"{path} should hold one JSON object\n{_spoilt(path)}")
    return content


def _spoilt(path: Path) -> str:
    return f"leave {path.parent} out, or delete it and run it again"


def environment(device: str = "cpu") -> dict[str, str]:
    """What a result may depend on: versions, the kind of machine, the device. No name of host or user."""
    return {
        "format": FORMAT,
        "clippedgossip": clippedgossip.__version__,
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
        "platform": f"{platform.system()} {platform.machine()}",
        "device": _device_name(device),
    }


def _device_name(device: str) -> str:
    if device.startswith("cuda"):
        import torch

        if torch.cuda.is_available():
            return str(torch.cuda.get_device_name(device))
    return device
