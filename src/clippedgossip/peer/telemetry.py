"""Seeing a peer: structured logs, Prometheus metrics on loopback, and a status file for `peer status`."""

import contextlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clippedgossip.decode import from_json
from clippedgossip.files import to_line
from clippedgossip.peer.peer_config import Address, Config
from clippedgossip.peer.peer_folder import in_use

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from clippedgossip.peer.metrics_server import MetricsServer

STATUS_FILE = "status.json"
_LARGEST_LOG = 10 << 20
_LARGEST_STATUS = 8 << 20
_STANDARD = set(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class RateLimit(logging.Filter):
    """Lets a few records of a kind through, then one in a while, which says how many were left out: nobody
    can fill the log. A kind is a message about a neighbour."""

    def __init__(self, few: int = 10, pause: float = 60.0) -> None:
        super().__init__()
        self._few, self._pause = few, pause
        self._kinds: dict[tuple[str, str], tuple[int, float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        kind = (str(record.msg), str(record.__dict__.get("neighbour", record.__dict__.get("sender", ""))))
        passed, since, left_out = self._kinds.get(kind, (0, 0.0, 0))
        now = time.monotonic()
        if passed >= self._few and now - since < self._pause:
            self._kinds[kind] = (passed, since, left_out + 1)
            return False
        if now - since >= self._pause:
            passed = 0 if not left_out else self._few
        if left_out:
            record.left_out = left_out
        self._kinds[kind] = (passed + 1, now if passed == 0 or left_out else since, 0)
        return True


def bounded_logger(name: str) -> logging.Logger:
    """A logger whose records of one kind are few, whatever neighbours do."""
    logger = logging.getLogger(name)
    if not any(isinstance(known, RateLimit) for known in logger.filters):
        logger.addFilter(RateLimit())
    return logger


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {k: v for k, v in record.__dict__.items() if k not in _STANDARD}
        line: dict[str, Any] = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **fields,
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_to(path: Path | None) -> None:
    """Logs to a file of bounded size, or to standard error."""
    from logging.handlers import RotatingFileHandler

    handler: logging.Handler = logging.StreamHandler()
    if path is not None:
        handler = RotatingFileHandler(path, maxBytes=_LARGEST_LOG, backupCount=1, delay=True)
    handler.setFormatter(JsonLines())
    logger = logging.getLogger("clippedgossip")
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.INFO)
    logging.raiseExceptions = False  # a full disk must not fill standard error


class Metrics:
    """The Prometheus endpoint of one peer: its status, found out when it is asked for; nothing is served
    before `serve`."""

    def __init__(self, status: Callable[[], Mapping[str, Any]]) -> None:
        from prometheus_client import CollectorRegistry, Histogram, ProcessCollector

        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)  # memory, files, time of the start
        self._status = status
        self.registry.register(self)
        self.seconds = Histogram(
            "exchange_seconds", "Duration of the exchange", namespace="clippedgossip", registry=self.registry
        )
        self._server: MetricsServer | None = None

    def collect(self) -> Iterator["Metric"]:
        """What Prometheus asks for."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        status = self._status()
        for kind, metrics in ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS)):
            for name, (key, words) in metrics.items():
                by_neighbour = key in _BY_NEIGHBOUR
                family = kind(f"clippedgossip_{name}", words, labels=["neighbour"] if by_neighbour else [])
                values = status.get(key, {}) if by_neighbour else {"": status.get(key)}
                for neighbour, value in values.items():
                    family.add_metric([neighbour] if by_neighbour else [], value or 0)
                yield family
        missing = CounterMetricFamily(
            "clippedgossip_missing", "Messages that did not count", labels=["neighbour", "reason"]
        )
        for neighbour, counts in status.get("reasons", {}).items():
            for reason, count in counts.items():
                missing.add_metric([neighbour, reason], count)
        yield missing
        score = GaugeMetricFamily(
            "clippedgossip_score", "The metric of the task, on the test set", labels=["metric", "better"]
        )
        if status.get("score") is not None:
            better = "higher" if status["higher_is_better"] else "lower"
            score.add_metric([status["metric"], better], status["score"])
        yield score

    def serve(self, address: Address) -> Address:
        """Listens; with port 0 a free one is taken."""
        from clippedgossip.peer.metrics_server import MetricsServer

        self._server = MetricsServer(address, self.registry)
        return Address(address.host, self._server.port)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()


_GAUGES = {
    "round": ("round", "The round this peer is in"),
    "neighbour_distance": ("neighbour_distance", "Mean squared distance to what was received"),
    "deadline_seconds": ("deadline", "What a round waits at most"),
    "last_round_timestamp_seconds": ("round_time", "When the last round ended"),
    "last_checkpoint_timestamp_seconds": ("checkpoint_time", "When a checkpoint was written last"),
    "suspicions": ("suspicions", "Contradictions between two starts of a peer"),
    "equivocations": ("equivocations", "Contradictions proved"),
    "calls_refused": ("refused_calls", "Calls above the rate limit"),
    "link_up": ("links", "Whether the neighbour was heard this round"),
    "last_exchange_timestamp_seconds": ("exchanged", "When a message was used last"),
    "backoff_seconds": ("backoff", "How long the neighbour is still ignored for violations"),
}
"""Prometheus's name -> the key of the status, and what it is."""
_COUNTERS = {
    "clipped": ("clipped", "Messages beyond the clipping radius"),
    "checkpoint_errors": ("checkpoint_errors", "Checkpoints that failed"),
    "messages": ("messages", "Messages that were mixed"),
    "sent_bytes": ("sent_bytes", "Bytes of messages sent"),
    "received_bytes": ("received_bytes", "Bytes of messages received"),
}
_BY_NEIGHBOUR = ("links", "exchanged", "backoff", "messages", "sent_bytes", "received_bytes")


def write_status(folder: Path, status: Mapping[str, Any]) -> None:
    """Where this peer stands, for whoever looks; a full disk is no reason to stop."""
    content = {"pid": os.getpid(), "time": time.time(), **status}
    path = folder / STATUS_FILE
    # Not `write_atomic`: it waits for the disk, many times a second, for what is about now.
    try:
        temporary = path.with_name(f".{STATUS_FILE}.tmp")
        temporary.write_text(to_line(content))
        temporary.replace(path)
    except OSError as error:
        bounded_logger(__name__).error("status is not written", extra={"why": str(error)})


def write_starting(config: Config, *, metrics: str = "") -> None:
    """The first word, before anything that takes long."""
    write_status(config.folder, {"peer": config.name, "round": 0, "starting": True, "metrics": metrics})


@contextlib.contextmanager
def starting(config: Config) -> Iterator[None]:
    """Says so. What was said before is put back if the block fails before the first round: a start that is
    refused changes nothing."""
    path = config.folder / STATUS_FILE
    before = path.read_bytes() if path.is_file() else None
    write_starting(config)
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            if not (_said(config.folder) or {}).get("starting"):
                pass
            elif before is None:
                path.unlink()
            else:
                path.write_bytes(before)
        raise


def _said(folder: Path) -> dict[str, Any] | None:
    try:
        with (folder / STATUS_FILE).open("rb") as file:
            status = from_json(file.read(_LARGEST_STATUS))
    except (OSError, ValueError):
        return None
    return status if isinstance(status, dict) else None


def read_status(folder: Path) -> dict[str, Any] | None:
    """The last status written, as far as it is sound, with what is about now found out anew: `running`, and
    `age` and `ages`, seconds since the last round and since the last exchange with each neighbour. None where
    there is none."""
    status = _said(folder)
    if status is None:
        return None
    status = {key: value for key, value in status.items() if _sound(key, value)}
    status.setdefault("peer", folder.name)
    ended = status.get("finished") or status.get("ended")
    status["running"] = not ended and in_use(folder)
    status["starting"] = bool(status.get("starting")) and status["running"]
    now = time.time()
    if status.get("round_time") is not None:
        status["age"] = max(now - status["round_time"], 0.0)
    exchanged = status.get("exchanged", {})
    status["ages"] = {
        name: None if then is None else max(now - then, 0.0) for name, then in exchanged.items()
    }
    return status


def unhealthy(status: Mapping[str, Any] | None, longest: float) -> str:
    """Why a peer is not well, in words; empty where it is. `longest` is how many seconds may pass without a
    round, and without a message of any neighbour."""
    if status is None:
        return "it was never started"
    if status.get("finite") is False:
        return "its model is not finite"
    if status.get("finished"):
        return ""
    if not status["running"]:
        return "it does not run"
    if status["starting"]:
        return "" if time.time() - status.get("time", 0.0) <= longest else "it has been starting for too long"
    age = status.get("age")
    if age is None or age > longest:
        return "no round has ended yet" if age is None else f"its last round ended {age:.0f} s ago"
    ages = [age for age in status["ages"].values() if age is not None]
    if min(ages, default=longest + 1) > longest:
        return f"no neighbour was heard for {min(ages):.0f} s" if ages else "no neighbour was heard yet"
    return ""


_KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("pid", "round", "rounds", "missing", "rejected"), (int,)),
    **dict.fromkeys(("equivocations", "suspicions", "refused_calls", "checkpoint_errors"), (int,)),
    **dict.fromkeys(("time", "overrun"), (int, float)),
    **dict.fromkeys(("score", "neighbour_distance", "round_time"), (int, float, type(None))),
    **dict.fromkeys(("links", "reasons", "exchanged", "messages"), (dict,)),
    **dict.fromkeys(("peer", "metrics", "metric", "misbehave"), (str,)),
    "clipped": (int, type(None)),
    "records": (str, type(None)),
    "convicted": (list,),
    "finite": (bool,),
}
_VALUES: dict[str, tuple[type, ...]] = {
    "exchanged": (int, float, type(None)),
    "links": (bool,),
    "messages": (int,),
    "reasons": (dict,),
}


def _sound(key: str, value: object) -> bool:
    """Whether a part of a status is of its kind; the file may be damaged."""
    if not isinstance(value, _KINDS.get(key, (object,))):
        return False
    kinds = _VALUES.get(key, (object,))
    return not isinstance(value, dict) or all(isinstance(each, kinds) for each in value.values())
