"""What can be done to a network of peers, and how it came through."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Fault(StrEnum):
    """Everything that is done to the network; every member really fires."""

    NONE = "none"
    KILL = "SIGKILL and restart"
    STOP = "SIGSTOP for three deadlines"
    RESET = "connection reset in mid-message"
    GARBAGE_BYTES = "garbage bytes on the port"
    NO_CERTIFICATE = "TLS client without certificate"
    FOREIGN_CERTIFICATE = "TLS client with a foreign certificate"
    OVERSIZE = "10 GB announced"
    DRIP = "one byte a second"
    REPLAY = "duplicate and replayed rounds"
    EQUIVOCATION = "two models for one round"
    FALSE_ROUND = "claims to be in round 10⁹"
    NAN = "NaN"
    WRONG_SHAPE = "wrong shape"
    GARBAGE = "garbage messages"
    CONNECTION_FLOOD = "flood of connections"
    MESSAGE_FLOOD = "flood of messages"
    FULL_DISK = "full disk for checkpoints"
    CLOCK_JUMP = "clock jumps by a year"
    PARTITION = "partition that heals"
    HALF_OPEN = "connections whose state is lost"
    MAINTENANCE = "all but one killed, restarted 12 s later"
    HELLO_FLOOD = "flood of wrong hellos"
    STALL_LATER = "40 good rounds, then far ahead and silent"
    GZIP_BOMB = "messages that gRPC would unpack to 64 MB"
    DAMAGED_CHECKPOINT = "SIGKILL, newest checkpoint torn, restart"
    RESTORED_BACKUP = "SIGKILL, restored from a backup, restart"
    SECOND_START = "a second start beside it, with --no-resume"
    MEMBERS = "a neighbour removed and added again, a key changed"


MISBEHAVIOURS = {
    Fault.OVERSIZE: "oversize",
    Fault.DRIP: "stalling",
    Fault.REPLAY: "replay",
    Fault.EQUIVOCATION: "equivocation",
    Fault.FALSE_ROUND: "false-round",
    Fault.NAN: "non-finite",
    Fault.WRONG_SHAPE: "wrong-shape",
    Fault.GARBAGE: "garbage",
    Fault.MESSAGE_FLOOD: "flooding",
    Fault.HELLO_FLOOD: "hello-flooding",
    Fault.STALL_LATER: "late-stalling",
    Fault.GZIP_BOMB: "gzip-bomb",
}


@dataclass(frozen=True, kw_only=True)
class Result:
    """How the regular peers came through."""

    fault: Fault
    fired: bool
    """Whether the fault left its trace: it was not skipped or too late."""
    ended_badly: tuple[str, ...]
    """Who ended with another exit code than it should have."""
    fell_out: tuple[str, ...]
    """Links between regular peers that were no longer used at the end."""
    convicted: tuple[str, ...]
    """Regular peers against whom there is a proof: nobody, it must be."""
    accuracy: float
    """Mean over the regular peers."""
    worst: float
    rounds: int
    """Of the regular peer that got least far."""
    missing: int
    rejected: int
    overrun: float
    """By how many seconds an exchange exceeded its deadline, at worst."""
    growth: float
    """Memory: by how many MB a regular peer kept growing, at worst."""
    peak: float
    """Memory: the most MB a regular peer ever held."""
    seconds: float


def table(results: Sequence[Result]) -> str:
    """The results as a Markdown table."""
    base = next((r.accuracy for r in results if r.fault is Fault.NONE), None)
    rows = [
        {
            "fault": r.fault.value if r.fired else f"{r.fault.value} (did not fire)",
            "ended badly": ", ".join(r.ended_badly) or "none",
            "links lost": ", ".join(r.fell_out) or "none",
            "convicted": ", ".join(r.convicted) or "none",
            "rounds": str(r.rounds),
            "accuracy": f"{100 * r.accuracy:.1f} %",
            "change": "" if base is None else f"{100 * (r.accuracy - base):+.1f}",
            "missing": str(r.missing),
            "rejected": str(r.rejected),
            "overrun s": f"{max(r.overrun, 0):.2f}",
            "grew MB": f"{r.growth:.1f}",
            "peak MB": f"{r.peak:.0f}",
        }
        for r in results
    ]
    head, *body = (f"| {' | '.join(line)} |" for line in (rows[0], *(row.values() for row in rows)))
    return "\n".join([head, "|---" * len(rows[0]) + "|", *body])


def page(results: Sequence[Result], *, network: str, peers: int, rounds: int) -> str:
    """The results as a page of the documentation."""
    return f"""# Faults

A {network} of {peers} real processes learns `digits` for {rounds} rounds on {os.cpu_count()} cores. Each
process sends at most 500 kB/s, so that faults come in mid-run on any machine. Each row injects one fault.
This command writes the page:

    clippedgossip peer drill --network {network} --peers {peers} --rounds {rounds} --out docs/faults.md

A fault counts only if it left a trace: messages that regular peers count as missing, with the reason, bytes
that a proxy cut or swallowed, a refused handshake, a checkpoint that failed, or a stored proof. Outsiders
call the port every three seconds until the end.

Two models for one round can be proved only if two regular neighbours of the Byzantine peer are neighbours of
each other. So this fault uses a ring with chords (i to i ± 1 and i ± 2) whose peers have `witness = true`. It
counts if the Byzantine peer is convicted and nobody else is.

- `ended badly`: regular peers with a wrong exit code. The right one is 0, or 1 for the
  peer whose disk is full.
- `links lost`: links between regular peers without a message in the last 10 seconds in which both did rounds.
- `convicted`: regular peers that were convicted.
- `accuracy`: the mean over the regular peers. `change` is its difference, in points, to the
  run without a fault.
- `overrun s`: the longest time by which an exchange exceeded its deadline. If a process was stopped, the
  time of the stop is included.
- `grew MB`: memory of the regular process that grew most. After its first rounds its time is cut into four
  parts, and the smallest growth of a part is multiplied by four: a leak counts, a cache that fills once
  does not.
- `peak MB`: the largest memory of a regular process.

{table(results)}
"""
