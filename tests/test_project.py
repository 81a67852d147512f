"""What surrounds the code: one version, declared dependencies, the same linters everywhere."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions, version
from pathlib import Path

import clippedgossip

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = {
    line.split("==")[0].lower().replace("_", "-"): line.split("==")[1]
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if line[:1] != "#"
}


def _named(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=!~;\[ ]", line)[0].lower() for line in requirements}


def test_the_version_stands_in_one_place() -> None:
    assert "version" not in PROJECT
    assert PROJECT["dynamic"] == ["version"]
    assert version("clippedgossip") == clippedgossip.__version__
    cited = re.findall(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert cited == [clippedgossip.__version__]


def test_everything_imported_is_declared() -> None:
    """What another package happens to bring may be gone tomorrow.

    Triton belongs to PyTorch's CUDA build. What an extra installs need not be here.
    """
    imported: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imported.add((node.module or "").partition(".")[0])
    foreign = imported - sys.stdlib_module_names - {"clippedgossip", "triton"}
    owners = packages_distributions()
    extras = PROJECT["optional-dependencies"]
    ours = (lines for name, lines in extras.items() if name not in ("test", "lint"))
    declared = _named([*PROJECT["dependencies"], *(line for lines in ours for line in lines)])
    undeclared = {
        name
        for name in foreign
        if not {owner.lower().replace("_", "-") for owner in owners.get(name, [name])} & declared
    }
    assert not undeclared


def test_the_lowest_versions_are_those_that_were_tried() -> None:
    lines = (ROOT / "constraints-lowest.txt").read_text().splitlines()
    tried = {line.replace("==", ">=") for line in lines if line[:1] != "#"}
    extras = PROJECT["optional-dependencies"]
    declared = {
        line.split(",")[0]
        for line in [*PROJECT["dependencies"], *extras["peer"], *extras["sweep"], *extras["watch"]]
    }
    assert tried == declared - {"torch>=2.6"}


def test_every_module_imported_by_name_is_declared() -> None:
    """`import_module("x")` hides a dependency from the test above."""
    named = re.compile(r"import_module\(\"(?!clippedgossip)(\w+)")
    found = {name for path in (ROOT / "src").rglob("*.py") for name in named.findall(path.read_text())}
    assert not found


def test_pre_commit_runs_the_linters_of_make_at_the_pinned_versions() -> None:
    text = (ROOT / ".pre-commit-config.yaml").read_text()
    pinned = dict(re.findall(r"\[([\w-]+)==([\w.]+)\]", text))
    assert pinned
    assert pinned == {name: PINS[name] for name in pinned}
    recipe = (ROOT / "Makefile").read_text().partition("\nlint:")[2].partition("\n\n")[0]
    commands = re.findall(r"\$\(BIN\)/([\w-]+)", recipe)
    assert len(commands) >= 5
    assert all(command in text for command in commands)


def test_hosted_ci_tries_the_declared_pythons() -> None:
    text = (ROOT / ".github" / "workflows" / "test.yml").read_text()
    tried = re.search(r"python: \[(.*)\]", text)
    assert tried
    declared = [line.rpartition(":: ")[2] for line in PROJECT["classifiers"] if ":: Python :: 3." in line]
    assert re.findall(r'"([\d.]+)"', tried[1]) == declared
    assert "run: make test" in text


def test_no_address_is_made_up() -> None:
    """The project has no address of its own yet. The paper has one, and it is the same everywhere."""
    assert list(PROJECT["urls"]) == ["Paper"]
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"url: {PROJECT['urls']['Paper']}\n" in citation
    assert "repository-code" not in citation
