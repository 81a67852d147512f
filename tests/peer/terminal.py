"""A command at a terminal of its own, where Ctrl-C reaches every process in the foreground."""

import contextlib
import fcntl
import os
import pty
import signal
import subprocess
import termios
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self


def _sit_down() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(
        signal.SIGINT, signal.SIG_DFL
    )  # tests in the background of a shell inherit that it is ignored


class Terminal:
    """Leaves nobody behind, whatever happens."""

    def __init__(self, command: Sequence[str], **environment: str) -> None:
        self.said = ""
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, **environment},
            start_new_session=True,
            preexec_fn=_sit_down,
        )
        os.close(slave)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def interrupt(self) -> None:
        """Presses Ctrl-C."""
        os.write(self._master, b"\x03")

    def interrupt_again(self) -> None:
        """Presses it once more, as the impatient do, while the command is ending and ignores it."""
        while not self._deaf():
            time.sleep(0.01)
        self.process.send_signal(signal.SIGSTOP)  # or it might come to its end in between
        if self._deaf():
            self.interrupt()
        self.process.send_signal(signal.SIGCONT)

    def _deaf(self) -> bool:
        """Whether the command ignores Ctrl-C, or has ended."""
        if self.process.poll() is not None:
            return True
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        (ignored,) = (line for line in lines if line.startswith("SigIgn"))
        return bool(int(ignored.split()[1], 16) & 1 << signal.SIGINT - 1)

    def ended(self, patience: float = 100.0) -> int:
        """The exit code, once it has ended; nobody may be left then."""
        until = time.monotonic() + patience
        code = self.process.wait(patience)
        while self.left() and time.monotonic() < until:  # helpers of multiprocessing see it a moment later
            time.sleep(0.05)
        assert not self.left()
        self._reader.join(patience)
        return code

    def left(self) -> list[int]:
        """The processes of this terminal's session that still run."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
            except OSError:
                continue
            if int(session) == self.process.pid and state != "Z":
                found.append(int(stat.parent.name))
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for pid in self.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(5)
        os.close(self._master)

    def _read(self) -> None:
        try:
            while data := os.read(self._master, 4096):
                self.said += data.decode(errors="replace")
        except OSError:  # nobody has the other end any more
            return
