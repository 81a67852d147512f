"""Things of the user's own by `module:Name`: found, checked, digested, and blamed by file."""

import json
from dataclasses import fields
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import networkx as nx
import pytest

from clippedgossip import Network, own, settings, simulate, train
from clippedgossip.cli import main
from clippedgossip.cli.networks import load_graph
from clippedgossip.errors import ConfigError, DataError, RunError
from clippedgossip.export.figure_files import write_figures
from clippedgossip.graphs.generators import NETWORK
from clippedgossip.peer.peer_config import load
from clippedgossip.peer.peer_mixing import describe_rule, rule_of
from clippedgossip.records import RunDirectory, run_name
from clippedgossip.rules import make_rule
from clippedgossip.runs.config import NetworkConfig, RunConfig, load_config
from clippedgossip.runs.execute import execute
from clippedgossip.settings import DataConfig
from clippedgossip.simulate.setup import Setup
from clippedgossip.tasks.datasets import DATASET
from tests.report.pages import write_run

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "own" / "own.toml"

CODE = """
from dataclasses import dataclass
import networkx as nx
import torch
from torch import nn
from clippedgossip.attacks import FreeAttack
from clippedgossip.rules import Gossip, Radius
from clippedgossip.tasks import DataSet
from helping import SIZE


@dataclass(frozen=True)
class Keep(Gossip):
    often: int = 1
    def mix(self, inbox):
        if int(inbox.context.round) >= self.often > 1:
            raise ValueError("often enough")
        return super().mix(inbox)


class Refuses(Gossip):
    def __init__(self):
        raise KeyError("never")


@dataclass(frozen=True)
class Shrinking(Radius):
    start: float
    def __call__(self, near):
        return torch.full_like(near.weights[:, :1], self.start / (1 + int(near.context.round)))


@dataclass(frozen=True)
class Echo(FreeAttack):
    trains = True
    def messages(self, view):
        return view.byzantine_models[view.sender_rows]


def wheel(nodes: int = 6, seed: int = 0):
    return nx.wheel_graph(nodes)


class Net(nn.Module):
    def __init__(self, shape, classes, width: int = SIZE):
        super().__init__()
        self.inner = nn.Sequential(nn.Flatten(), nn.Linear(4, width), nn.ReLU(), nn.Linear(width, classes))
    def forward(self, x):
        return self.inner(x)


def blobs(count: int = 60, gap: float = 2.0):
    y = torch.arange(count) % 3
    x = torch.randn(count, 4, generator=torch.Generator().manual_seed(0)) + gap * y[:, None]
    return DataSet.of(x, y, x[:30], y[:30], name="blobs")


def thirds(labels, nodes, skip: int = 0):
    return [range(skip + node, len(labels), nodes) for node in range(nodes)]


@dataclass(frozen=True)
class Shift:
    classes: int
    by: int = 1
    def __call__(self, x, y, round):
        return x, (y + self.by) % self.classes


number = 3
"""

DRAWING = """
import random
import networkx as nx
import numpy as np
import torch
from clippedgossip.tasks import DataSet

def graph():
    return nx.relabel_nodes(nx.path_graph(9), dict(enumerate(random.sample(range(9), 9))))

def data():
    x, y = torch.randn(90, 4), torch.from_numpy(np.random.randint(0, 2, 90))
    return DataSet.of(x[:60], y[:60], x[60:], y[60:], classes=2)

def shares(labels, nodes):
    return torch.randperm(len(labels)).tensor_split(nodes)
"""

UNSEEDED = {
    "graph": "\ndef graph():\n    draw = np.random.default_rng()\n"
    "    return nx.Graph([(i, int(draw.integers(i))) for i in range(1, 9)])\n",
    "data": "\ndef data():\n    y = torch.from_numpy(np.random.default_rng().integers(0, 2, 90))\n"
    "    return DataSet.of(torch.ones(60, 4), y[:60], torch.ones(30, 4), y[60:], classes=2)\n",
    "shares": "\ndef shares(labels, nodes):\n"
    "    return np.array_split(np.random.default_rng().permutation(len(labels)), nodes)\n",
}
"""The same without the seed of the run."""

TABLE: dict[str, Any] = {
    "network": {"name": "mine:wheel", "nodes": 7, "byzantine": [3]},
    "data": {"name": "mine:blobs", "gap": 3, "partition": {"name": "mine:thirds", "skip": 1}}
    | {"poison": {"name": "mine:Shift", "by": 2}},
    "model": {"name": "mine:Net", "width": 5},
    "rule": {"name": "clipped-gossip", "radius": {"name": "mine:Shrinking", "start": 2}},
    "attack": "mine:Echo",
    "training": {"rounds": 4, "batch": 4, "evaluate_every": 1},
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    (tmp_path / "mine.py").write_text(CODE)
    (tmp_path / "helping.py").write_text("SIZE = 3\n")
    return tmp_path


def config(folder: Path, **changes: Any) -> RunConfig:
    return RunConfig.from_mapping(TABLE | changes, folder=folder)


def test_what_own_functions_draw_comes_from_the_seed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "drawing.py").write_text(DRAWING)

    def made(seed: int) -> tuple[list[Any], Any, list[int]]:
        settings._own_data.cache_clear()
        of_mine = {"name": "drawing:data", "partition": "drawing:shares"}
        table = TABLE | {"network": "drawing:graph", "data": of_mine, "model": "linear", "seed": seed}
        setup = RunConfig.from_mapping(table, folder=folder).build()
        return sorted(setup.network.to_networkx().edges), setup.task.data.train_x, setup.task.table.tolist()

    (edges, x, rows), again, other = map(made, (1, 1, 2))
    assert edges == again[0] != other[0]
    assert rows == again[2] != other[2]
    assert x.equal(again[1])
    assert x.equal(other[1])
    monkeypatch.chdir(folder)
    assert edges == sorted(load_graph("drawing:graph", {}, seed=1).edges)


@pytest.mark.parametrize("what", ["graph", "data", "shares"])
def test_a_run_does_not_resume_with_what_no_seed_gives_again(folder: Path, what: str) -> None:
    text = DRAWING.replace(f"def {what}(", f"def seeded_{what}(") + UNSEEDED[what]
    (folder / "unseeded.py").write_text(text)
    of_mine = {"name": "unseeded:data", "partition": "unseeded:shares"}
    table = TABLE | {"network": "unseeded:graph", "data": of_mine, "model": "linear", "attack": "none"}
    config = RunConfig.from_mapping(table, folder=folder)

    def setup() -> Setup:
        settings._own_data.cache_clear()
        return config.build()

    first = setup()
    state = next(iter(simulate.train(first))).state()
    assert len(list(simulate.train(first, state=state))) == 3
    with pytest.raises(RunError, match=r"other shares or other labels\n.*`seed`"):
        next(iter(simulate.train(setup(), state=state)))


def test_own_data_by_name_from_python(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    for data in ("mine:blobs", {"name": "mine:blobs", "count": 90}):
        run = train(
            Network(nx.path_graph(3)), data, "linear", rounds=1, batch=4, device="cpu", progress=False
        )
        assert run.setup.task.data.name == "blobs"
        assert run.setup.task.data.count == (60 if data == "mine:blobs" else 90)


def test_everything_can_be_ones_own(folder: Path) -> None:
    mine = config(folder)
    setup = mine.build()
    assert setup.network.n == 7
    assert setup.task.data.name == "blobs"
    assert type(setup.task.module).__name__ == "Net"
    assert setup.task.nodes.tolist() == [0, 1, 2, 4, 5, 6, 3]
    assert int(setup.task.table[0, 0]) == 1
    assert type(setup.task.poison).__name__ == "Shift"
    assert mine.label == "wheel-clipped-gossip-Echo"
    done = execute(mine, folder / "runs")
    assert [r["round"] for r in done.records()] == [1, 2, 3, 4]
    again = RunConfig.from_mapping(json.loads(done.config_path.read_text()), folder=folder)
    assert again.to_mapping() == mine.to_mapping()
    assert again.build().task.initial().equal(setup.task.initial())


@pytest.mark.parametrize("file", ["mine.py", "helping.py"])
def test_edited_code_is_another_run(folder: Path, file: str) -> None:
    before = config(folder)
    other = folder / "other.py"
    other.write_text("nothing = 0\n")
    assert config(folder).to_mapping() == before.to_mapping()
    (folder / file).write_text((folder / file).read_text().replace("SIZE = 3", "SIZE = 4") + "\nmore = 1\n")
    after = config(folder)
    assert run_name(after.to_mapping(), "") != run_name(before.to_mapping(), "")
    with pytest.raises(ConfigError, match=r"mine.py is not the code of this config"):
        before.rule.build()


def test_folders_have_modules_of_one_name(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    there = tmp_path_factory.mktemp("there")
    (there / "mine.py").write_text("from clippedgossip.rules import Median as Keep\n")
    table = {"name": "mine:Keep"}
    assert type(config(folder, rule=table).rule.build()).__name__ == "Keep"
    network = {"name": "ring"}
    other = RunConfig.from_mapping(
        {"network": network, "rule": table, "data": "digits", "model": "linear"}, folder=there
    )
    assert type(other.rule.build()).__name__ == "Median"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("objects:prety", r"did you mean 'pretty'\?\nknown: pretty$"),
        ("mine:Kep", r"is not in .*mine\.py: unknown name 'Kep'; did you mean 'Keep'"),
        ("mine:dataclasses", r"\nknown: (?!.*(dataclass,|LinearRule))"),  # what it imports is no choice
        ("minn:Keep", r"there is no module 'minn'\n.*beside the config"),
        ("mine:", "write package.module:Name"),
        ("mine:number", r"mine\.py is an int and no rule\nmake it a subclass of clippedgossip.rules.Rule"),
        ("mine:Echo", r"mine\.py is a class and no rule\n"),
        ("mine:Refuses", r"mine\.py raised KeyError: 'never'\nsee .*mine\.py, line 23"),
        ("broken:Rule", r"raised SyntaxError.*\nsee .*broken\.py, line 1"),
        ("crashing:Rule", r"raised ZeroDivisionError: .*\nsee .*crashing\.py, line 1"),
        ("deep:Rule", r"raised RuntimeError: .*\nsee .*deep\.py, line 2"),  # not the line of PyTorch
        ("python:Rule", r"raised JSONDecodeError: .*\nsee .*python\.py, line 2"),
    ],
)
def test_what_is_wrong_is_said_with_its_file(folder: Path, name: str, says: str) -> None:
    (folder / "broken.py").write_text("def\n")
    (folder / "crashing.py").write_text("1 / 0\n")
    (folder / "deep.py").write_text("import torch\ntorch.nn.Linear(2, 3)(torch.ones(5))\n")
    (folder / "python.py").write_text("import json\njson.loads('{')\n")
    (folder / "objects.py").write_text(
        "from functools import partial\nfrom json import dumps\npretty = partial(dumps, indent=1)\n"
    )
    with pytest.raises(ConfigError, match=says) as caught:
        config(folder, rule=name)
    assert len(str(caught.value).splitlines()) <= 2


@pytest.mark.parametrize("kind", ["network", "data", "model", "rule", "attack", "partition", "poison"])
@pytest.mark.parametrize("taken", ["name", "code"])
def test_a_parameter_cannot_have_the_name_of_a_key(folder: Path, kind: str, taken: str) -> None:
    (folder / "taking.py").write_text(f"def make(a=0, b=0, {taken}=3):\n    pass\n")
    parts = {"partition": "data", "poison": "data"}
    change: dict[str, Any] = {kind: "taking:make"}
    if kind in parts:
        change = {"data": TABLE["data"] | change}
    with pytest.raises(ConfigError, match=rf"taking\.py has a parameter called '{taken}'.*\nrename"):
        config(folder, **change)


def test_the_keys_of_a_section_are_no_parameters(folder: Path) -> None:
    assert {"name", *DATASET.reserved} == {entry.name for entry in fields(DataConfig) if not entry.metadata}
    assert {"name", "seed", "parameters", "folder", *NETWORK.reserved} == {
        entry.name for entry in fields(NetworkConfig)
    }
    (folder / "taking.py").write_text("def make(samples=3):\n    pass\n")
    with pytest.raises(ConfigError, match="has a parameter called 'samples'"):
        config(folder, data="taking:make")


POISONS = {
    "return x, y + 3": r"makes labels from \d+ to \d+ of torch.int64 in round 0\n.*from 0 to 2",
    "return x, y - int(round == 9)": r"makes labels from -1 to \d of torch.int64 in round 9\n",
    "return x, y.float()": r"makes \[torch.float32, .* and labels torch.int64\n.*dtypes",
    "return x[:1], y": r"makes \[\(1, .* of inputs .*\n.*same shapes",
    "return x": r"makes a Tensor of inputs .*\n.*same shapes",
}


@pytest.mark.parametrize("body", POISONS)
def test_a_poison_is_tried_before_the_first_round(folder: Path, body: str) -> None:
    (folder / "bad.py").write_text(f"class Bad:\n    def __call__(self, x, y, round):\n        {body}\n")
    with pytest.raises(DataError, match=r"poison Bad of .*bad\.py " + POISONS[body]):
        config(folder, data=TABLE["data"] | {"poison": "bad:Bad"}).build()


def test_a_poison_that_goes_wrong_late_is_named(folder: Path) -> None:
    late = "class Late:\n    def __call__(self, x, y, round):\n        return x, y + 9 * (round > 40)\n"
    (folder / "late.py").write_text(late)
    training = {"rounds": 50, "batch": 2}
    mine = config(folder, data=TABLE["data"] | {"poison": "late:Late"}, model="linear", training=training)
    with pytest.raises((IndexError, RuntimeError)) as caught:
        execute(mine, folder / "runs")
    assert f"raised where Late of {folder / 'late.py'} is used" in str(own.blamed(caught.value))


def test_a_rule_that_raises_in_a_round_loses_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = [f"[{key}]\n" + "\n".join(f"{k} = {v}" for k, v in part.items()) for key, part in PLAIN.items()]
    (folder / "run.toml").write_text("\n".join(text))
    with pytest.raises(SystemExit, match="2"):
        main(["run", str(folder / "run.toml"), "--out", str(folder / "runs"), "--device", "cpu"])
    said = capsys.readouterr().err
    assert said.startswith("error: ValueError: often enough\nraised by ")
    assert "mine.py, line 17" in said
    (run,) = (RunDirectory(path) for path in (folder / "runs").iterdir())
    assert [r["round"] for r in run.records()] == [1, 2]
    assert "often enough" in str(run.failure)


PLAIN: dict[str, dict[str, Any]] = {
    "network": {"name": '"ring"', "nodes": 4},
    "data": {"name": '"digits"', "samples": 60, "test_samples": 20},
    "model": {"name": '"linear"'},
    "rule": {"name": '"mine:Keep"', "often": 2},
    "training": {"rounds": 4, "evaluate_every": 1, "batch": 4},
}


WRONG = """
import torch
from dataclasses import dataclass
from clippedgossip.attacks import FreeAttack
from clippedgossip.rules import LinearRule, Radius

@dataclass(frozen=True)
class Short(LinearRule):
    def coefficients(self, near): return torch.zeros(3)

@dataclass(frozen=True)
class NoArgument(LinearRule):
    def coefficients(self): return torch.zeros(3)

@dataclass(frozen=True)
class Wide(Radius):
    def __call__(self, near): return torch.zeros(3, 1, 7)

class Nothing:
    def __call__(self, x, y, round): return None

class OneArgument:
    def __call__(self, x): return x

@dataclass(frozen=True)
class Rows(FreeAttack):
    def messages(self, view): return torch.zeros(3)

@dataclass(frozen=True)
class Nobody(FreeAttack):
    def messages(self, view): return None
"""


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("rule=wrong:Short", "raised where Short of"),
        ("rule=wrong:NoArgument", "raised where NoArgument of"),
        ("rule={name='clipped-gossip', radius='wrong:Wide'}", "raised where Wide of"),
        ("data.poison=wrong:Nothing", "poison Nothing of"),
        ("data.poison=wrong:OneArgument", "raised where OneArgument of"),
        ("attack=wrong:Rows", "the messages of Rows are torch.float32 of shape (3,)"),
        ("attack=wrong:Nobody", "the messages of Nobody are NoneType"),
    ],
)
def test_what_it_returns_wrongly_is_said_in_two_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: str, says: str
) -> None:
    (tmp_path / "wrong.py").write_text(WRONG)
    config = tmp_path / "run.toml"
    config.write_text(
        'network = {name = "complete", nodes = 5, byzantine = [4]}\ndata = {name = "digits", samples = 50}\n'
        'model = "linear"\nrule = "gossip"\nattack = "none"\ntraining = {rounds = 2, batch = 4}\n'
    )
    with pytest.raises(SystemExit) as end:
        main(["run", str(config), "--out", str(tmp_path / "runs"), change])
    said = capsys.readouterr().err
    assert (end.value.code, said.count("\n")) == (2, 2), said
    assert says in said
    assert "wrong.py" in said or "messages of" in said


def test_a_module_named_like_one_of_python_is_refused(tmp_path: Path) -> None:
    """It would replace the one that everything else imports."""
    for name in ("json", "numpy"):
        (tmp_path / f"{name}.py").write_text("class Rule: pass\n")
        with pytest.raises(ConfigError, match=f"'{name}' is also a module of Python"):
            own.load(f"{name}:Rule", tmp_path)
    assert json.loads("1") == 1


def test_commands_look_in_the_current_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit, match="0"):
        main(["audit", "mine:wheel", "--nodes", "6", "--json"])
    assert json.loads(capsys.readouterr().out)["nodes"] == 6
    line = "consensus mine:wheel --rule mine:Keep --attack mine:Echo --rounds 2 --json"
    with pytest.raises(SystemExit, match="0"):
        main(line.split())
    assert json.loads(capsys.readouterr().out)["rule"] == "Keep(often=1)"


def test_a_network_of_peers_takes_the_code_along(folder: Path) -> None:
    text = [f"[{key}]\n" + "\n".join(f"{k} = {v}" for k, v in part.items()) for key, part in PLAIN.items()]
    (folder / "run.toml").write_text("\n".join(text))
    with pytest.raises(SystemExit, match="0"):
        main(["peer", "network", str(folder / "run.toml"), "--out", str(folder / "net")])
    peer = load(folder / "net" / "2")
    assert type(rule_of(peer)).__name__ == "Keep"
    assert (peer.folder / "helping.py").exists()
    before = describe_rule(peer)
    assert before.startswith("mine:Keep code=")


def test_packages_register_names(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("keep-it", "mine:Keep", "clippedgossip.rules")
    monkeypatch.setattr(
        "importlib.metadata.entry_points", lambda group: EntryPoints([entry]).select(group=group)
    )
    mine = config(folder, rule={"name": "keep-it", "often": 7})
    assert mine.rule.name == "keep-it"
    assert {"often", "code"} == mine.rule.parameters.keys()
    assert mine.label == "wheel-keep-it-Echo"
    assert repr(mine.rule.build()) == "Keep(often=7)"
    with pytest.raises(ConfigError, match="did you mean 'keep-it'"):
        config(folder, rule="keep-its")
    (folder / "crashing.py").write_text("1 / 0\n")
    for name, says in (
        ("absent:Rule", "no module 'absent'\n"),
        ("crashing:Rule", r"see .*crashing\.py, line 1"),
    ):
        entry = EntryPoint("keep-it", name, "clippedgossip.rules")
        with pytest.raises(ConfigError, match=f"rule 'keep-it' cannot be imported: (?s:.)*{says}"):
            config(folder, rule="keep-it")


def test_built_in_names_need_no_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: pytest.fail("looked up"))
    assert make_rule("median")


def test_the_example_runs(tmp_path: Path) -> None:
    loaded = load_config(EXAMPLE, ["training.rounds=20", "training.evaluate_every=10", "device=cpu"])
    done = execute(loaded, tmp_path)
    assert done.path.name.startswith("ring-DistanceWeighted-Stubborn-")
    assert [r["round"] for r in done.records()] == [10, 20]


def test_reading_results_runs_no_code_that_they_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder or a file of results may be somebody else's."""
    live_page = pytest.importorskip(
        "clippedgossip.watch.live_page", reason="pip install clippedgossip[watch]"
    )
    harm, runs, page = tmp_path / "harm", tmp_path / "runs", tmp_path / "page"
    network = {"name": "subprocess:getoutput", "cmd": f"touch {harm}"}
    with pytest.raises(ConfigError):  # a config of one's own does run it
        NetworkConfig.from_value(network).build()
    harm.unlink()
    run = write_run(runs)
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"network": network}))
    (run / "network.svg").write_text("<svg/>")
    kept = json.loads((ROOT / "docs" / "results" / "h200" / "weaker-topology.json").read_text())
    line = kept["lines"][0]
    line |= {"setting": "mine", "config": line["config"] | {"network": network}}
    (tmp_path / "results.json").write_text(json.dumps(kept))
    for command, code in (
        (f"report {runs} --out {page}", 0),
        (f"export {runs} --out {page}", 0),
        (f"reproduce weaker-topology --from {tmp_path} --out {tmp_path}", 2),
    ):
        with pytest.raises(SystemExit) as ended:
            main(command.split())
        assert (ended.value.code or 0) == code
    assert "reading results runs none" in capsys.readouterr().err
    write_figures(runs, tmp_path / "figures")
    live_page.watched_in([run]).state("")
    assert not harm.exists()
