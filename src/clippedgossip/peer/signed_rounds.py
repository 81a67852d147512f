"""The highest round that a peer may have signed, on disk before the message is served.

A peer that is killed and goes on from an older checkpoint does some rounds twice, with other numbers. If it
signed them twice, it would look like a Byzantine peer. So that no round waits for the disk, some rounds are
written down before they come; a peer that is killed does not serve these either.
"""

import contextlib
import hashlib
import os
import struct
import threading
import zlib
from pathlib import Path

from clippedgossip.errors import PeerError
from clippedgossip.files import sync_folder, write_atomic
from clippedgossip.peer.peer_folder import remedy

_SLOT = struct.Struct(">qI")
AHEAD = 4
"""Rounds that are written down before they come."""


class SignedRounds:
    """One small file of two slots that are written in turn, each with a checksum: a torn write destroys at
    most the newer one, whose message was not served yet. A new file has −1 in both, and is there as a whole
    or not at all: one that is empty or full of zeros has lost what it said."""

    def __init__(self, folder: Path | None, run: str) -> None:
        """Without a folder nothing is kept."""
        self.highest = self.before = -1
        """What is on disk now, and what was at the start: rounds up to that are not signed again."""
        self._signed = -1
        self._writes = 0
        self._lock = threading.Lock()
        self._file: int | None = None
        if folder is None:
            return
        path = signed_file(folder, run)
        try:
            if not path.exists():  # the room is taken now, not when the disk is full
                path.parent.mkdir(parents=True, exist_ok=True)
                sync_folder(folder)
                write_atomic(path, 2 * _slot(-1))
            self._file = os.open(path, os.O_RDWR)
            found = os.pread(self._file, 2 * _SLOT.size, 0)
        except OSError as error:
            raise PeerError(
                f"cannot write {path}: {error.strerror}; a peer must record what it signs\n{remedy(error)}"
            ) from None
        rounds = [_read(found[: _SLOT.size]), _read(found[_SLOT.size :])]
        known = [round for round in rounds if round is not None]
        if not known:
            os.close(self._file)
            raise PeerError(
                f"{path} is damaged: which rounds this peer has signed is not known\n"
                "remove it, and start in a round that this peer has not done yet (ask a neighbour): "
                f"clippedgossip peer start {folder} --no-resume --enter ROUND"
            )
        self.highest = self.before = max(known)
        self._writes = 1 + rounds.index(self.highest)

    def add(self, round: int) -> None:
        """Before the message of this round is served. Raises OSError."""
        with self._lock:
            if round > self.highest:
                self._write(round)
            self._signed = round

    def write_ahead(self, last: int) -> None:
        """The next rounds, but none after `last`. A disk that is full is the matter of `add`."""
        with self._lock, contextlib.suppress(OSError):
            if self._signed == self.highest < last:
                self._write(min(self._signed + AHEAD, last))

    def _write(self, round: int) -> None:
        if self._file is not None:
            os.pwrite(self._file, _slot(round), _SLOT.size * (self._writes % 2))
            os.fdatasync(self._file)
            self._writes += 1
        self.highest = round

    def close(self) -> None:
        """Takes back what was written ahead: a peer that ends by itself knows what it has signed."""
        with self._lock:
            if self._file is None:
                return
            with contextlib.suppress(OSError):
                if self.before < self._signed < self.highest:
                    self._write(self._signed)
                    self._write(self._signed)
            os.close(self._file)
            self._file = None


def signed_file(folder: Path, run: str) -> Path:
    """Where a peer writes down what it signs in a run."""
    return folder / "signed" / hashlib.sha256(run.encode()).hexdigest()[:12]


def _slot(round: int) -> bytes:
    return _SLOT.pack(round, zlib.crc32(struct.pack(">q", round)) or 1)


def _read(slot: bytes) -> int | None:
    if len(slot) < _SLOT.size:
        return None
    round: int = _SLOT.unpack(slot)[0]
    return round if slot == _slot(round) else None
