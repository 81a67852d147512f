"""Signed headers of the last rounds, and the proof when two of them contradict each other."""

import base64
import contextlib
import json
import os
from pathlib import Path

from clippedgossip.errors import PeerError
from clippedgossip.peer import wire
from clippedgossip.peer import wire_pb2 as pb
from clippedgossip.peer.identity import Certificate, format_fingerprint, read_certificate

_ROUNDS = 4
_MOST_FILES = 1000


class Evidence:
    """Remembers what each sender signed for the last rounds; writes down a contradiction."""

    def __init__(self, folder: Path | None) -> None:
        self.found = 0
        self._folder = folder
        self._headers: dict[tuple[bytes, int], pb.Header] = {}

    def of_round(self, round: int) -> list[pb.Header]:
        """The headers held for a round, to show to a neighbour that asks."""
        return [header for (_, held), header in self._headers.items() if held == round]

    def see(self, header: pb.Header, certificate: Certificate) -> bool:
        """Notes a header whose signature was verified. False: the sender signed another one before."""
        key = (header.sender, header.round)
        first = self._headers.setdefault(key, header)
        newest = max(round for sender, round in self._headers if sender == header.sender)
        for old in [k for k in self._headers if k[0] == header.sender and k[1] <= newest - _ROUNDS]:
            del self._headers[old]
        if first.run != header.run or first.digest == header.digest:
            return True
        self.found += 1
        if self._folder is not None and self.found <= _MOST_FILES:
            with contextlib.suppress(OSError):
                _write(self._folder, first, header, certificate)
        return False


def verify(path: Path) -> str:
    """Checks a file of evidence; anyone can. Returns whom it convicts."""
    try:
        data = json.loads(path.read_text())
        certificate = read_certificate(data["certificate"].encode())
        first, second = (pb.Header.FromString(base64.b64decode(text)) for text in data["headers"])
    except Exception as error:  # whatever a stranger's file may contain
        raise PeerError(f"{path} is not evidence: {type(error).__name__}") from None
    if not (wire.verify_header(first, certificate) and wire.verify_header(second, certificate)):
        raise PeerError(f"{path}: a signature is wrong; it proves nothing")
    if (first.run, first.round) != (second.run, second.round) or first.digest == second.digest:
        raise PeerError(f"{path}: the two headers do not contradict each other; it proves nothing")
    return format_fingerprint(certificate.fingerprint)


def _write(folder: Path, first: pb.Header, second: pb.Header, certificate: Certificate) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{certificate.fingerprint.hex()[:16]}-{first.round}.json"
    content = {
        "run": first.run,
        "round": first.round,
        "sender": format_fingerprint(certificate.fingerprint),
        "certificate": certificate.pem.decode(),
        "headers": [base64.b64encode(h.SerializeToString()).decode() for h in (first, second)],
    }
    temporary = path.with_suffix(".part")
    temporary.write_text(json.dumps(content, indent=1))
    os.replace(temporary, path)
