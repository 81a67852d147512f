"""Signed headers of the last messages, and the proof when two of them contradict each other."""

import base64
import contextlib
import hashlib
import json
from collections import defaultdict, deque
from dataclasses import dataclass
from pathlib import Path

from clippedgossip.decode import from_json
from clippedgossip.errors import PeerError, first_line
from clippedgossip.files import write_atomic
from clippedgossip.peer import wire
from clippedgossip.peer import wire_pb2 as pb
from clippedgossip.peer.identity import Certificate, format_fingerprint, read_certificate
from clippedgossip.peer.telemetry import bounded_logger

log = bounded_logger(__name__)
_HELD = 64
"""Headers of each sender: two models for one round can be many rounds apart."""
_MOST_FILES = 10
"""Against each key in a run. One is enough, and those against one key must leave room for others."""
_LARGEST_FILE = 1 << 16


class Evidence:
    """Remembers what each sender signed last. A contradiction within one start of the sender is a proof, and
    is written down; between two starts it is a suspicion: a restored backup looks the same."""

    def __init__(self, folder: Path | None, run: str) -> None:
        """Proofs of this run that are in the folder already count."""
        self.proofs = self.suspicions = 0
        self.convicted: set[bytes] = set()
        """Fingerprints of those against whom there is a proof."""
        self._folder = folder
        self._run = run
        self._held: dict[bytes, deque[pb.Header]] = defaultdict(lambda: deque(maxlen=_HELD))
        for path in folder.glob("*.json") if folder is not None else ():
            with contextlib.suppress(PeerError):
                proof = verify(path)
                if proof.run == run:
                    self.proofs += 1
                    self.convicted.add(proof.fingerprint)

    def of_round(self, round: int) -> list[pb.Header]:
        """The headers held for a round, to show to a neighbour that asks."""
        return [header for held in self._held.values() for header in held if header.round == round]

    def see(self, header: pb.Header, certificate: Certificate, neighbour: str) -> bool:
        """Notes a header whose signature was verified. False: it contradicts one of the same start."""
        said = {"neighbour": neighbour, "sender": format_fingerprint(header.sender), "round": header.round}
        held = self._held[header.sender]
        same_round = [h for h in held if h.round == header.round]
        others = [h for h in same_round if h.digest != header.digest]
        if header.run != self._run or len(others) < len(same_round):  # seen before
            return not any(h.nonce == header.nonce for h in others)
        held.append(header)
        for other in others:
            if other.nonce == header.nonce:
                log.error("equivocation is proved", extra=said)
                self.proofs += 1
                self.convicted.add(certificate.fingerprint)
                try:
                    _write(self._folder, other, header, certificate)
                except OSError as error:
                    log.error("proof is not written", extra={"why": str(error)})
                return False
            self.suspicions += 1
            log.warning("suspicion: two models for one round, from two starts", extra=said)
        return True


@dataclass(frozen=True)
class Proof:
    """What a file of evidence proves."""

    fingerprint: bytes
    run: str
    round: int

    def __str__(self) -> str:
        return (
            f"The owner of {format_fingerprint(self.fingerprint)}\n"
            f"signed two different models for round {self.round} of run {self.run!r}, in one start.\n"
            "Both signatures are right. No regular peer does this: the owner of that key is Byzantine,\n"
            "or somebody else has the key."
        )


def verify(path: Path) -> Proof:
    """Checks a file of evidence; anyone can. Raises `PeerError` where it proves nothing."""
    why = ""
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST_FILE + 1)
        why = f"it is larger than {_LARGEST_FILE} bytes" if len(text) > _LARGEST_FILE else "it is not JSON"
        data = from_json(text)
        why = "it has no certificate, or not a peer's"
        certificate = read_certificate(data["certificate"].encode())
        why = "it does not have two headers of messages"
        first, second = (pb.Header.FromString(base64.b64decode(text)) for text in data["headers"])
    except Exception as error:  # whatever an outsider's file may contain
        why = why or getattr(error, "strerror", None) or first_line(error)
        raise PeerError(
            f"{path} is not evidence: {why}\ngive a file from the `evidence` folder of a peer of this version"
        ) from None
    if not (wire.verify_header(first, certificate) and wire.verify_header(second, certificate)):
        raise PeerError(f"{path}: a signature is wrong; it proves nothing")
    if (first.run, first.round) != (second.run, second.round) or first.digest == second.digest:
        raise PeerError(f"{path}: the two headers do not contradict each other; it proves nothing")
    if first.nonce != second.nonce:
        raise PeerError(
            f"{path}: the two headers are from two starts of the peer; that is a suspicion and no proof:\n"
            "a regular peer that was restored from a backup signs the same"
        )
    return Proof(certificate.fingerprint, first.run, first.round)


def _write(folder: Path | None, first: pb.Header, second: pb.Header, certificate: Certificate) -> None:
    mark = f"{certificate.fingerprint.hex()[:16]}-{hashlib.sha256(first.run.encode()).hexdigest()[:8]}"
    if folder is None or len([*folder.glob(f"{mark}-*.json")]) >= _MOST_FILES:
        return
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "run": first.run,
        "round": first.round,
        "sender": format_fingerprint(certificate.fingerprint),
        "certificate": certificate.pem.decode(),
        "headers": [base64.b64encode(h.SerializeToString()).decode() for h in (first, second)],
    }
    write_atomic(folder / f"{mark}-{first.round}.json", json.dumps(content, indent=1))
