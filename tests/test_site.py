"""The site: what is public is documented, each rule and attack has a whole page, notebooks run, it builds."""

import ast
import dataclasses
import inspect
import json
import re
import shlex
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any

import pytest

from clippedgossip.attacks import ATTACKS
from clippedgossip.cli import main
from clippedgossip.records import Round
from clippedgossip.rules import RULES

ROOT = Path(__file__).parents[1]
SITE = ROOT / "docs" / "site"
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.py"))


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("grpc", reason="no extra peer: pip install 'clippedgossip[peer]'")
    monkeypatch.syspath_prepend(SITE)
    import reference

    return reference


def test_every_public_name_has_a_docstring(reference: Any) -> None:
    public = list(reference.public())
    assert len(public) > 100
    assert not [
        f"{place}.{name}" for place, name, thing in public if not reference.document_of(place, name, thing)
    ]


def test_every_public_method_has_a_docstring(reference: Any) -> None:
    undocumented = []
    for _, name, thing in reference.public():
        if not isinstance(thing, type):
            continue
        fields = (
            {entry.name for entry in dataclasses.fields(thing)} if dataclasses.is_dataclass(thing) else set()
        )
        for word, member in vars(thing).items():
            shown = inspect.isfunction(member) or isinstance(member, property | classmethod | staticmethod)
            if (
                shown
                and word not in fields
                and not word.startswith("_")
                and not inspect.getdoc(getattr(thing, word))
            ):
                undocumented.append(f"{name}.{word}")
    assert not undocumented


def test_every_adapter_and_its_methods_have_docstrings(reference: Any) -> None:
    adapters = list(reference.adapters())
    assert len(adapters) > 6
    for place, made in adapters:
        methods = [entry for entry in made.body if isinstance(entry, ast.FunctionDef)]
        public = [made, *(entry for entry in methods if not entry.name.startswith("_"))]
        assert not [f"{place}.{entry.name}" for entry in public if not ast.get_docstring(entry)]


def test_every_key_of_a_config_and_field_of_a_record_is_described(reference: Any) -> None:
    from clippedgossip.peer import Config
    from clippedgossip.peer.peer_config import Deadlines, Limits, Neighbour, Wire
    from clippedgossip.runs.config import NetworkConfig, RunConfig
    from clippedgossip.settings import DataConfig, TrainingConfig

    for kind in (
        RunConfig,
        NetworkConfig,
        DataConfig,
        TrainingConfig,
        Config,
        Deadlines,
        Limits,
        Neighbour,
        Wire,
        Round,
    ):
        said = reference.attribute_documents(kind)
        names = (
            [entry.name for entry in dataclasses.fields(Round)] if kind is Round else reference.keys_of(kind)
        )
        assert not [name for name in names if not said.get(name)], kind.__name__
        for name in () if kind is Round else names:
            words = reference.kind_of(typing.get_type_hints(kind, include_extras=True)[name])
            for part in words.split(" or "):
                assert re.fullmatch(r"`[\w.-]+`|[a-z :]+", part), f"{name}: {words}"


def test_a_default_is_written_as_a_config_has_it(reference: Any) -> None:
    from clippedgossip.settings import DataConfig

    entry = reference.keys_of(DataConfig)["augment"]
    assert reference.default_of(entry) == "`false`"


@pytest.mark.parametrize("thing", [*RULES.values(), *ATTACKS.values()], ids=lambda thing: thing.__name__)
def test_a_docstring_has_all_parts_of_a_page(thing: type) -> None:
    parts = re.findall(r"^(Needs|Fails|Cost|Origin): \S", inspect.getdoc(thing) or "", re.M)
    assert parts == ["Needs", "Fails", *(["Cost"] if thing in RULES.values() else []), "Origin"]


def test_a_page_begins_no_sentence_with_the_capital_of_a_symbol(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SITE)
    import cards

    for name, thing in {**RULES, **ATTACKS}.items():
        text = cards._page(name, thing, "", "")
        assert set(re.findall("[Α-Ω]", text)) <= set(inspect.getdoc(thing) or ""), name  # ρ is not Ρ


def test_a_sentence_does_not_end_after_an_abbreviation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SITE)
    import cards

    for name, thing in {**RULES, **ATTACKS}.items():
        first = cards.first_sentence(cards.sections(thing)[""])
        assert not re.search(r"\b(eq|fig|al)$", first), name
        assert first.count("(") == first.count(")"), name


@pytest.mark.parametrize("rule", ["clipped-gossip", "bucketing"])
def test_the_command_of_a_page_gives_its_number(
    rule: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(SITE)
    import cards

    for network in cards.NETWORKS:
        with pytest.raises(SystemExit, match="0"):
            main([*shlex.split(cards.command(network, rule, "alie"))[1:], "--json"])
        assert json.loads(capsys.readouterr().out)["error"] == cards.error_of(network, rule, "alie")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(notebook: Path, tmp_path: Path) -> None:
    jupytext = pytest.importorskip("jupytext", reason="no extra docs: pip install 'clippedgossip[docs]'")
    nbclient = pytest.importorskip("nbclient")
    made = jupytext.read(notebook)
    client = nbclient.NotebookClient(made, timeout=500, kernel_name="python3")
    client.execute(cwd=str(tmp_path))
    cells = [cell for cell in made.cells if cell.cell_type == "code"]
    assert any("text/html" in output.get("data", {}) for cell in cells for output in cell.outputs)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_site_builds_and_asks_no_other_host_for_anything(tmp_path: Path) -> None:
    pytest.importorskip("furo", reason="no extra docs: pip install 'clippedgossip[docs]'")
    command = [sys.executable, str(SITE / "build.py"), "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    html = tmp_path / "html"
    assert (html / "searchindex.js").exists()
    for name in RULES:
        assert "<svg" in (html / "docs" / "rules" / f"{name}.html").read_text()
    loaded = re.compile(
        r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"(?:https?:)?//|<link\b[^>]*\bhref=\"(?:https?:)?//"
    )
    pages = list(html.rglob("*.html"))
    assert len(pages) > 60
    assert not [page.name for page in pages if loaded.search(page.read_text())]
    sheets = [
        page.name for page in html.rglob("*.css") if re.search(r"url\([\"']?(https?:)?//", page.read_text())
    ]
    assert not sheets
