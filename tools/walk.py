"""Count the files of the package that a command walks through: those in which a function runs.

    tools/walk.py run examples/ring.toml             from the arguments to the first record
    tools/walk.py reproduce dumbbell --length 0.01   to the claims on disk, before anything is drawn

A file that is only imported is counted apart. All is done in this process, in a temporary folder.
"""

import contextlib
import inspect
import sys
import tempfile
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import clippedgossip

SOURCE = Path(clippedgossip.__file__).parent
ENDS = {"run": ("records.py", "records.jsonl"), "reproduce": ("paper/base.py", "claims.json")}
"""A command's walk ends when a function of this file returns and this file is on disk."""


class Walk:
    """Which files were imported, and in which of them a function ran, until the end of the walk."""

    def __init__(self, folder: Path, command: str) -> None:
        self.folder = folder
        writer, self.written = ENDS[command]
        self.writer = str(SOURCE / writer)
        self.imported: set[str] = set()
        self.ran: set[str] = set()
        self._seen: set[CodeType] = set()
        self._done = False

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if self._done:
            sys.setprofile(None)
        elif event == "call" and code not in self._seen:
            self._seen.add(code)
            if code.co_filename.startswith(str(SOURCE)):
                self._note(code)
        elif event == "return" and code.co_filename == self.writer:
            self._done = any(path.stat().st_size for path in self.folder.glob(f"**/{self.written}"))

    def _note(self, code: CodeType) -> None:
        name = Path(code.co_filename).relative_to(SOURCE).as_posix()
        if code.co_name == "<module>":
            self.imported.add(name)
        elif code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<"):
            self.ran.add(name)  # a function: neither the body of a class nor a comprehension of a module


def walk(arguments: list[str]) -> Walk:
    """Run the command in a temporary folder, and look on."""
    from clippedgossip.cli import main

    arguments = [str(Path(word).resolve()) if Path(word).is_file() else word for word in arguments]
    if arguments[0] == "reproduce":
        arguments += ["--workers", "1"]
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        seen = Walk(Path(folder), arguments[0])
        threading.setprofile(seen)
        sys.setprofile(seen)
        try:
            main(arguments)
        except SystemExit as end:
            if end.code not in (0, 1):  # 1: a claim does not hold, as is to be expected of a short run
                raise
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    return seen


def report() -> None:
    with contextlib.redirect_stdout(sys.stderr):
        seen = walk(sys.argv[1:])
    print(*sorted(seen.ran), sep="\n")
    print(f"{len(seen.ran)} files in which a function runs, {len(seen.imported - seen.ran)} only imported")


if __name__ == "__main__":
    report()
