"""The public names, frozen: to change one is to decide to, here. What the documents name is public."""

import ast
import re
import runpy
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import clippedgossip as cg
from clippedgossip.cli.networks import catalogue

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("**/*.md")]
PUBLIC = {
    "clippedgossip": """
        Network Peer Setup Training __version__ attacks audit compare consensus errors graphs plot
        results rules simulate step tasks theory train
    """,
    "clippedgossip.attacks": """
        ALIE ATTACKS Attack BitFlipping Dissensus FreeAttack Gaussian IPM LabelFlipping
        LinearAttack LocalAttack Mimic NoAttack NonFinite Silence SpectralHeterogeneity Tuned View ZeroSum
        make_attack
    """,
    "clippedgossip.audit": """
        Audit Cut Placement Suggestion audit suggest_edges weakest_cut worst_placement
    """,
    "clippedgossip.export": """
        FORMATS Plot data_frame plot results write_figures write_tables
    """,
    "clippedgossip.facade": """
        Comparison RecordedRun TrainingRun compare train
    """,
    "clippedgossip.graphs": """
        GENERATORS Parameter add_pendants build byzantine_nodes complete consensus_chain dumbbell
        erdos_renyi exponential find_nodes grid hub_dumbbell hypercube line parameters random_nodes
        random_regular random_tree read_graph ring scale_free small_world star torus two_worlds
    """,
    "clippedgossip.rules": """
        Adaptive Balance Bucketing CSPlus CenteredClipping ClippedGossip Context CoordinateRule
        Fixed GTS GeometricMedian Gossip IOS Inbox Krum LinearRule Local MDA MeaMed Median Mozi MultiKrum
        NNA NNM Neighborhood Oracle Quantile RULES Radius Rule TrimmedMean WeightedMedian WeightedTrimmedMean
        make_rule
    """,
    "clippedgossip.simulate": """
        ConsensusRound Moment Setup State Training consensus train train_together
    """,
    "clippedgossip.tasks": """
        DataSet Fetched FlipLabels LOSSES Loss METRICS MODELS Metric ParameterLayout Poison Quadratic
        RotateLabels SCHEMES Task Trigger Workers build cache_dir crop_flip fetch flatten load make_task
        mean_metric of_module partition quadratic unflatten
    """,
}


@pytest.mark.parametrize("module", PUBLIC)
def test_the_public_names_are_these_and_all_are_there(module: str) -> None:
    found = import_module(module)
    assert sorted(found.__all__) == PUBLIC[module].split()
    assert all(hasattr(found, name) for name in found.__all__)


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import sys, clippedgossip; sys.exit(bool({'torch', 'numpy', 'networkx'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Netwrok'"):
        _ = cg.Netwrok
    assert {"Network", "train"} <= set(dir(cg))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_a_documented_symbol_is_public(document: Path) -> None:
    text = document.read_text()
    for dotted in re.findall(r"\bcg\.([A-Za-z_.]+[A-Za-z])", text):
        found: object = cg
        for name in dotted.split("."):
            public = getattr(found, "__all__", None)
            assert public is None or name in public, f"cg.{dotted}"
            found = getattr(found, name)
    for module, names in re.findall(r"^from (clippedgossip[\w.]*) import \(?([\w, ]+)", text, re.M):
        for name in names.replace(" ", "").split(","):
            assert has_public(module, name), f"{module}.{name}"


def has_public(module: str, name: str) -> bool:
    """Whether the module has this public name; its source tells, where it needs a library that is absent."""
    try:
        found = import_module(module)
    except ModuleNotFoundError:
        spec = find_spec(module)
        assert spec is not None
        assert spec.origin is not None
        tree = ast.parse(Path(spec.origin).read_text())
        defined = {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
        return name in defined and not name.startswith("_")
    return hasattr(found, name) and name in getattr(found, "__all__", [name])


def test_help_imports_nothing_heavy() -> None:
    """`--help` answers in less than half a second only if it imports none of these."""
    code = """
import sys
from typer.main import get_command
from clippedgossip.cli import main
from clippedgossip.cli.app import app
heavy = "torch numpy scipy networkx matplotlib pandas sklearn grpc google.protobuf cryptography".split()
def show(*command):
    try:
        main([*command, "--help"])
    except SystemExit:
        print(command, [name for name in heavy if name in sys.modules], file=sys.stderr)
show()
for name, command in get_command(app).commands.items():
    show(name)
    for inner in getattr(command, "commands", ()):
        show(name, inner)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    lines = done.stderr.splitlines()
    assert len(lines) > 20
    assert [line for line in lines if not line.endswith(" []")] == []


def test_a_small_run_imports_neither_scikit_learn_nor_the_compiler(tmp_path: Path) -> None:
    """They would take more time than the run. It is by a process of its own: others import them in tests."""
    code = """
import sys
from clippedgossip.runs.config import RunConfig
from clippedgossip.runs.execute import execute
config = dict(network={"name": "ring", "nodes": 3}, data={"name": "digits", "samples": 60}, model="mlp")
run = RunConfig.from_mapping(config | {"rule": "clipped-gossip", "training": {"rounds": 1}})
execute(run, sys.argv[1])
print([name for name in ("sklearn", "torch._dynamo", "torch._inductor") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_the_names_that_help_lists_are_the_present_ones() -> None:
    """If not: `python tools/catalogue.py`."""
    found = runpy.run_path(str(ROOT / "tools" / "catalogue.py"))["catalogue"]()
    assert {kind: catalogue(kind) for kind in found} == found
