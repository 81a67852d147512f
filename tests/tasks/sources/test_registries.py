"""Packages that hold data sets."""

import os
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from clippedgossip.errors import DataError
from clippedgossip.tasks.datasets import load_spec
from clippedgossip.tasks.sources.catalog import Package
from clippedgossip.tasks.sources.fetch import fetch_spec
from tests.tasks.sources.tiny_data import IDX, check_idx, digest, idx_spec, kept, tar, write


def deb(files: dict[str, bytes]) -> bytes:
    def member(name: str, content: bytes) -> bytes:
        header = f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode()
        return header + content + b"\n" * (len(content) % 2)

    return b"!<arch>\n" + member("debian-binary", b"2.0\n") + member("data.tar.gz", tar(files))


def client(folder: Path, name: str, does: str) -> None:
    folder.mkdir(exist_ok=True)
    script = folder / name
    script.write_text(f"#!/bin/sh\n{does}\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)


@pytest.mark.parametrize(("kind", "program"), [("npm", "npm"), ("apt", "apt-get")])
def test_a_package_is_downloaded_and_unpacked(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, kind: str, program: str
) -> None:
    inside = {f"usr/share/{name}": data for name, data in IDX.items()}
    content, ending = (tar(inside), "tgz") if kind == "npm" else (deb(inside), "deb")
    archive = write(tmp_path / "registry", {f"thing-1.{ending}": content}) / f"thing-1.{ending}"
    client(tmp_path / "bin", program, f'cp "{archive}" .')
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    package = Package(
        client="npm" if kind == "npm" else "apt", name="thing", version="1", sha256=digest(content)
    )
    done = fetch_spec(idx_spec(packages=(package,)))
    assert set(done.origins.values()) == {f"{kind} package thing 1"}
    assert kept(cache) == set(IDX)
    assert not list((cache / "tiny").glob(".package*"))
    check_idx(load_spec(idx_spec()))


def test_a_wheel_comes_through_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = write(tmp_path / "wheels", {}) / "thing-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in IDX.items():
            archive.writestr(f"thing/data/{name.replace('-idx', '.idx')}", data)
        archive.writestr("thing/__init__.py", "raise SystemExit('never imported')")
        archive.writestr("thing-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n")
        archive.writestr("thing-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("thing-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    package = Package(client="pip", name="thing", version="1.0", sha256=digest(wheel.read_bytes()))
    fetch_spec(idx_spec(packages=(package,)))
    check_idx(load_spec(idx_spec()))


def test_a_registry_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = write(tmp_path / "registry", {"thing-1.tgz": tar(IDX)}) / "thing-1.tgz"
    client(tmp_path / "bin", "npm", f'cp "{archive}" .')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}/bin")
    packages = (
        Package(client="npm", name="thing", version="1", sha256="f" * 64),
        Package(client="npm", name="thing", version="2", sha256=digest(archive.read_bytes())[::-1]),
    )
    with pytest.raises(DataError, match=r"npm package thing 1: thing-1.tgz: wrong digest") as error:
        fetch_spec(idx_spec(packages=packages))
    assert len(str(error.value).splitlines()) == 4
    (tmp_path / "bin" / "npm").unlink()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(DataError, match="npm is not installed"):
        fetch_spec(idx_spec(packages=packages[:1]))


NPM = Package(client="npm", name="thing", version="1")


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError('<pip "
            "object at 0x7f>: Failed to establish a new connection: No route to host')': /simple/thing/\n"
            "ERROR: No matching distribution found for thing==1",
            "NewConnectionError('Failed to establish a new connection: No route to host')",
        ),
        (
            "npm error errno EAI_AGAIN\n"
            "npm error request to https://registry/thing failed, reason: getaddrinfo EAI_AGAIN registry\n"
            "npm error A complete log of this run can be found in: /home/me/.npm/_logs/debug.log",
            "getaddrinfo EAI_AGAIN registry",
        ),
        (
            "npm error code E404\nnpm error A complete log of this run can be found in: x",
            "npm error code E404",
        ),
        (
            f"E: Failed to fetch http://{'x' * 200}  no network",
            f"E: Failed to fetch http://{'x' * 200} no network",
        ),
        ("", "no file came"),
    ],
    ids=["pip", "npm", "npm without a reason", "apt", "nothing"],
)
def test_why_a_client_failed_is_said_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, reason: str
) -> None:
    (tmp_path / "said").write_text(said)
    client(tmp_path / "bin", "npm", f'cat "{tmp_path / "said"}" >&2; exit 1')
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    with pytest.raises(DataError) as error:
        fetch_spec(idx_spec(packages=(NPM,)))
    assert f"  npm package thing 1: npm failed: {reason}\n" in str(error.value)


def test_what_a_client_has_so_far_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = write(tmp_path, {"thing-1.tgz": tar(IDX)}) / "thing-1.tgz"
    arrives = f'printf 1234567 > "$TMPDIR/part"; sleep 1; cp "{archive}" .'
    client(tmp_path / "bin", "npm", arrives)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    seen: list[tuple[str, int, int | None]] = []
    fetch_spec(idx_spec(packages=(NPM,)), progress=lambda *event: seen.append(event))
    size = archive.stat().st_size
    assert (seen[0], seen[-1]) == (("npm thing", 0, None), ("npm thing", size, size))
    assert ("npm thing", 7, None) in seen


def test_a_client_that_takes_too_long_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client(tmp_path / "bin", "npm", "exec sleep 60")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    monkeypatch.setattr("clippedgossip.tasks.sources.registries.LIMIT", 0.3)
    with pytest.raises(DataError, match=r"npm package thing 1: stopped after 0.3 s"):
        fetch_spec(idx_spec(packages=(NPM,)))


@pytest.mark.parametrize("whole", [True, False])
def test_a_package_that_a_killed_fetch_left_is_used_if_whole(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    package = tar(IDX)
    archive = write(tmp_path, {"thing-1.tgz": package}) / "thing-1.tgz"
    write(cache / "tiny" / ".package-x.tmp", {"thing-1.tgz": package if whole else package[:500]})
    client(tmp_path / "bin", "npm", f'cp "{archive}" .')
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    done = fetch_spec(idx_spec(packages=(NPM,)))
    assert set(done.origins.values()) == {"package of an earlier fetch" if whole else "npm package thing 1"}
    assert done.troubles == ()
    assert not list((cache / "tiny").glob(".*.tmp"))
    check_idx(load_spec(idx_spec()))


AFTER_PIP = """
import os
os.environ["PIP_NO_INDEX"] = "1"
from pathlib import Path
from clippedgossip.errors import DataError
from clippedgossip.tasks.sources.catalog import Package
from clippedgossip.tasks.sources.registries import retrieve
try:
    retrieve(Package(client="pip", name="thing", version="1"), Path("."), lambda *_: None)
except DataError as error:
    assert "No matching distribution" in str(error), error
else:
    raise AssertionError("nothing has this name")
import setuptools  # as torch.compile does
"""


def test_setuptools_can_be_imported_after_pip_was_used(tmp_path: Path) -> None:
    """Before Python 3.12, `find_spec("pip")` would make setuptools refuse to be imported."""
    done = subprocess.run([sys.executable, "-c", AFTER_PIP], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
