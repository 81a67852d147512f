"""A lock that the operating system lets go of when its process ends, however it ends."""

import fcntl
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Self


class Lock:
    """Held until closed. The file stays: removing it would let two processes lock two files of one name."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    @classmethod
    def take(cls, path: Path) -> Self | None:
        """The lock on `path`, or None while another holds it."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            for _ in range(5):  # `is_held` holds a shared lock for an instant; that is no owner
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return cls(descriptor)
                except BlockingIOError:
                    time.sleep(0.02)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        return None

    @staticmethod
    def is_held(path: Path) -> bool:
        """Whether some process holds the lock on `path` now."""
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
