"""The wheel: built, opened, and its contents run away from the source tree."""

import subprocess
import sys
import tomllib
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "clippedgossip"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(wheel: Path) -> None:
    names = [name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name]
    here = {
        path.relative_to(SOURCE.parent).as_posix()
        for path in SOURCE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    examples = {
        f"clippedgossip/{path.relative_to(ROOT).as_posix()}"
        for path in (ROOT / "examples").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {"clippedgossip/examples/dumbbell.toml", "clippedgossip/examples/own/mine.py"} <= examples
    assert set(names) == here | examples
    data = ["py.typed", "report/page.css", "report/house.mplstyle", "peer/wire.proto", "peer/wire_pb2.py"]
    data += [f"watch/live.{kind}" for kind in ("html", "css", "js")]
    assert {f"clippedgossip/{name}" for name in data} <= here


def test_the_metadata_admits_ranges_and_the_constraints_pin_everything(wheel: Path) -> None:
    archive = ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = Parser().parsestr(archive.read(name).decode())
    assert metadata["License-Expression"] == "Apache-2.0"
    requirements = metadata.get_all("Requires-Dist") or []
    assert any(line.startswith("torch>=") for line in requirements)
    assert not any("==" in line.split(";")[0] for line in requirements)
    assert any(name.endswith("licenses/LICENSE") for name in archive.namelist())

    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line[:1] != "#"]
    assert "torch==2.13.0" in pins
    assert all(line.count("==") == 1 and "+" not in line for line in pins)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"]]
    for extra in project["optional-dependencies"].values():
        wanted += extra
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in pins}
    assert {line.split(">")[0].lower() for line in wanted} <= pinned


def test_the_wheel_runs_away_from_the_source_tree(wheel: Path, tmp_path: Path) -> None:
    ZipFile(wheel).extractall(tmp_path / "installed")
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path / "installed")!r})
import clippedgossip
assert clippedgossip.__file__.startswith({str(tmp_path)!r}), clippedgossip.__file__
from clippedgossip.cli import main
main(["consensus", "ring", "--nodes", "6", "--rounds", "3", "--out", "page.html"])
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "<svg" in (tmp_path / "page.html").read_text()
