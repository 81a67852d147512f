"""What the documents say is so: examples run, commands parse, links lead somewhere, nothing is left out."""

import re
import runpy
import shlex
from pathlib import Path

import pytest
import typer

from clippedgossip.attacks import ATTACKS
from clippedgossip.cli import networks
from clippedgossip.cli.app import COMMANDS, app
from clippedgossip.paper import EXPERIMENTS
from clippedgossip.rules import RULES

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
PLACEHOLDER = re.compile(r"[A-Z]{2}|…|<")
QUOTED = [
    line
    for document in DOCUMENTS
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", document.read_text(), re.M | re.S)
    for line in block.splitlines()
    if language in ("", "sh") and line.startswith("clippedgossip ") and not PLACEHOLDER.search(line)
]


TUTORIALS = [f"docs/tutorials/{name}.md" for name in ("first-network", "own-model", "own-rule")]


@pytest.mark.parametrize(
    "document",
    [
        "README.md",
        "docs/adapters.md",
        "docs/python.md",
        *(pytest.param(name, marks=pytest.mark.slow) for name in (*TUTORIALS, "docs/explanation/network.md")),
    ],
)
def test_blocks_print_what_the_document_says(
    document: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Words and whole numbers must agree. Accuracies may differ by 15 points: another CPU rounds otherwise,
    training amplifies that, and gossip that an attack drives apart ends anywhere near chance."""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(
        r"(<!-- not run.*?-->\n)?```python\n(.*?)```\n(?:```\n(.*?)```\n)?",
        (ROOT / document).read_text(),
        re.S,
    )
    names: dict[str, object] = {}
    ran = 0
    for skipped, code, output in blocks:
        if skipped:
            continue
        exec(code, names)
        ran += 1
        said = capsys.readouterr().out
        for here, there in zip(_words(said), _words(output), strict=True):
            if DECIMAL.match(there):
                trained = re.search(r"\brun\b|cg.compare", code)
                slack = (0.15 if float(there) <= 1 else 15) if trained else 0.01 * float(there)
                assert float(here) == pytest.approx(float(there), abs=slack), f"{said}\n{code}"
            else:
                assert here == there, f"{said}\n{code}"
    assert ran


DECIMAL = re.compile(r"\d+\.\d+(e[+-]?\d+)?$")


def _words(text: str) -> list[str]:
    """Words and numbers; without the ± of a mean over few seeds."""
    return re.findall(r"[^\s%(),:─]+", re.sub(r"± *[\d.]+", "", text))


@pytest.mark.parametrize("line", QUOTED)
def test_a_quoted_command_parses(line: str) -> None:
    words = shlex.split(re.sub(r"\s#.*", "", line))[1:]
    command = typer.main.get_command(app)
    while isinstance(command, typer.core.TyperGroup):
        command = command.commands[words.pop(0) if words[0] in command.commands else "run"]
    context = command.make_context(command.name, words)
    if context.args:  # the network's own options
        networks.parse_options(context, context.params["network"])  # type: ignore[arg-type] # a click Context


def test_the_results_say_what_their_files_hold() -> None:
    place = ROOT / "docs" / "results"
    made = runpy.run_path(str(place / "tables.py"))
    assert (place / "README.md").read_text().endswith(made["MARK"] + made["tables"]())


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        linked = document.parent / path if path else document
        assert linked.exists(), target
        assert not anchor or linked.suffix != ".md" or anchor in _anchors(linked), target


def _anchors(document: Path) -> set[str]:
    """What a link may name behind `#`: the headings, in lower case, without punctuation, with dashes."""
    text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.M | re.S)
    headings = re.findall(r"^#+ +(.*?) *$", text, re.M)
    words = (re.sub(r"[^\w\- ]", "", re.sub(r"\]\(.*?\)", "", heading)) for heading in headings)
    return {word.lower().replace(" ", "-") for word in words}


def test_the_readme_names_every_command_rule_attack_and_figure() -> None:
    rows = {
        cell for line in README.splitlines() if line.startswith("|") for cell in re.findall(r"`(.+?)`", line)
    }
    assert not (RULES.keys() | ATTACKS.keys()) - rows
    assert not {f"clippedgossip reproduce {name}" for name in EXPERIMENTS} - rows
    assert not {command for command in COMMANDS if not any(f"gossip {command} " in row + " " for row in rows)}
