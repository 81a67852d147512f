"""What the documents say is so: examples run, commands parse, links lead somewhere, nothing is left out."""

import re
import runpy
import shlex
from collections import Counter
from pathlib import Path

import pytest
import typer

from clippedgossip.attacks import ATTACKS
from clippedgossip.cli import main, networks
from clippedgossip.cli.app import COMMANDS, app
from clippedgossip.paper.base import EXPERIMENTS, load
from clippedgossip.paper.deviations import DEVIATIONS, with_deviations
from clippedgossip.paper.results import DISTANCE, Results
from clippedgossip.peer.local_network import free_ports
from clippedgossip.rules import RULES

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
PLACEHOLDER = re.compile(r"[A-Z]{2}|…|<")
QUOTED = dict.fromkeys(
    re.sub(r"\\\n *", "", line)
    for document in DOCUMENTS
    for line in re.findall(r"^(?: {4})?(clippedgossip (?:.*\\\n)*.*)", document.read_text(), re.M)
    if not PLACEHOLDER.search(line)
)
"""Commands, in fences or indented, without those that leave something to fill in."""
QUICK_COMMANDS = re.compile(
    r"clippedgossip (audit|consensus|run examples/|peer network|peer init|data list|sweep status examples/)"
)
FRIENDS = "ann,bea\nbea,cid\ncid,dee\ndee,ann\nann,cid\n"


BLOCK = re.compile(r"(<!-- run by \S+ -->\n)?```python\n(.*?)```\n(?:```\n(.*?)```\n)?", re.S)
WITH_CODE = {str(path.relative_to(ROOT)) for path in DOCUMENTS if BLOCK.search(path.read_text())}
WITH_CODE -= {"docs/export.md"}  # tests/export runs it
QUICK = {"CONTRIBUTING.md", "README.md", "docs/adapters.md", "docs/models.md", "docs/python.md"}
TAKEN_FOR_GRANTED = """
import torch
import clippedgossip as cg
from clippedgossip import simulate, tasks
network, module = cg.Network(cg.graphs.ring(nodes=4)), "linear"
data = tasks.load("digits")
shares = tasks.partition(data.train_y, 4, seed=0)
make_setup = lambda: cg.train(network, "digits", "linear", rule="median", rounds=2).setup
model = torch.nn.Linear(2, 1)
optimizer, batches, step = torch.optim.SGD(model.parameters(), lr=0.1), [0, 1], lambda model, batch: None
"""
"""Names that blocks of the how-to pages use without making them."""
ALONE = "[deadlines]\nleast = 0.1\nmost = 0.2\njoin = 0.2\nlinger = 0.1\n[data]"
COMMANDS_FIRST = {
    "docs/training.md": f"run {ROOT}/examples/ring.toml training.rounds=1 --keep",
    "docs/peers.md": "peer network ring --nodes 3 --out .",
    "docs/tutorials/to-peers.md": "peer network ring --nodes 3 --out .",
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to run in, as the only rank of a run."""
    monkeypatch.chdir(tmp_path)
    values = {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_ports(1)[0]}
    for name, value in values.items():
        monkeypatch.setenv(name, str(value))
    return tmp_path


@pytest.mark.parametrize(
    "document",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in sorted(WITH_CODE)],
)
def test_blocks_run_and_print_what_the_document_says(
    document: str, capsys: pytest.CaptureFixture[str], place: Path
) -> None:
    """Words and whole numbers must agree. Accuracies may differ by 15 points: another CPU rounds otherwise,
    training amplifies that, and gossip that an attack drives apart ends anywhere near chance."""
    if document in COMMANDS_FIRST:
        with pytest.raises(SystemExit, match="0"):
            main(shlex.split(COMMANDS_FIRST[document]))
        for peer in place.glob("0/peer.toml"):
            peer.write_text(peer.read_text().replace("[data]", ALONE))
            peer.parent.rename("ann")
        capsys.readouterr()
    names: dict[str, object] = {"__name__": "here"}
    exec(TAKEN_FOR_GRANTED, names)
    for skipped, code, output in BLOCK.findall((ROOT / document).read_text()):
        if skipped:
            assert (ROOT / skipped.split()[3]).exists()
            continue
        exec(code, names)
        said = capsys.readouterr().out
        for here, there in zip(_words(said), _words(output), strict=True) if output else ():
            if DECIMAL.match(there):
                trained = re.search(r"\brun\b|cg.compare", code)
                slack = (0.15 if float(there) <= 1 else 15) if trained else 0.01 * float(there)
                assert float(here) == pytest.approx(float(there), abs=slack), f"{said}\n{code}"
            else:
                assert here == there, f"{said}\n{code}"


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


@pytest.mark.parametrize("line", [*filter(QUICK_COMMANDS.match, QUOTED)])
def test_a_quoted_command_that_is_quick_succeeds(line: str, place: Path) -> None:
    """A run is only planned."""
    (place / "examples").symlink_to(ROOT / "examples")
    (place / "friends.csv").write_text(FRIENDS)
    words = shlex.split(re.sub(r"\s#.*", "", line))[1:]
    plan = ["--plan"] if words[0] == "run" and "--plan" not in words else []
    with pytest.raises(SystemExit, match=r"^0$"):
        main([*words, *plan])


def test_the_results_say_what_their_files_hold() -> None:
    place = ROOT / "docs" / "results"
    made = runpy.run_path(str(place / "tables.py"))
    assert (place / "README.md").read_text().endswith(made["MARK"] + made["tables"]())
    for page in map(place.parent.joinpath, made["PAGES"]):
        assert made["blocks"](page) == page.read_text(), page


def test_the_short_form_says_what_the_results_hold() -> None:
    """Numbers of its sentences, taken from the files."""
    place = ROOT / "docs" / "results"
    held = {
        path.stem: Results.load(path, path.stem)
        for path in (place / "h200").glob("*.json")
        if path.stem != "cifar-tf32"
    }

    def mean(figure: str, setting: str, rule: str, group: str = "all") -> float:
        return 100 * float(held[figure].final(setting, rule, group).mean())

    def known(figure: str, setting: str, rule: str, group: str = "all") -> str:
        found = held[figure].estimate(setting, rule, group)
        assert found is not None
        return found.text(scale=100)

    def tried(figure: str, setting: str, rule: str, value: str) -> float:
        (line,) = (
            line
            for line in held[figure].tuning
            if (line.setting, line.rule, line.value) == (setting, rule, value)
        )
        return 100 * line.runs[0].end("all")

    attacks = ("IPM", "ALIE z=10", "dissensus")
    ring = [mean("no-honest-majority", f"{attack}, no majority", "ClippedGossip") for attack in attacks]
    radii = ("τ = 0.1", "τ = 1", "τ = 10")
    lost = dict.fromkeys(radii, 0.0)
    for setting in held["adaptive-radius"].settings:
        means = [mean("adaptive-radius", setting, radius) for radius in radii]
        for radius, one in zip(radii, means, strict=True):
            lost[radius] = max(lost[radius], max(means) - one)
    flipped = [mean("clipping-radius", "BF", radius) for radius in radii]
    alie = [mean("clipping-radius", "ALIE z=10", radius) for radius in radii]
    chosen = {"BALANCE": "γ = 0.3", "CS+": "δ = 0.2", "ClippedGossip": "τ = 0.1"}
    chosen |= {"adaptive": "δ = 0.2", "NNA": "b = 1"}  # on the torus
    moved = {
        rule: (tried("newer-rules", "ring, IPM", rule, v) + tried("newer-rules", "ring, dissensus", rule, v))
        / 2
        for rule, v in chosen.items()
    }
    small, calm, both = "small world, IPM", "non-IID", "non-IID, both"
    dumbbell = {rule: known("dumbbell", calm, rule, "clique A") for rule in ("ClippedGossip", "Gossip")}
    apart = {rule: known("weaker-topology", calm, rule, "clique A") for rule in ("ClippedGossip", "GM", "TM")}
    buckets = {
        (setting, rule): known("dumbbell-as-released", setting, f"{rule} | bucketing", "clique A")
        for setting, rule in ((f"{calm}, bucketing", "TM"), (both, "TM"), (both, "Mozi"))
    }
    three = [mean("dumbbell", calm, rule) for rule in ("GM", "TM", "Mozi")]
    judged = [line for line in held["clipping-radius"].lines if line.setting != "ALIE"]
    cliques = [
        mean("clipping-radius", line.setting, line.rule, f"clique {one}") for line in judged for one in "AB"
    ]
    turning = {
        radius: [
            known("clipping-radius-as-released", "BF", f"{radius} | {of}") for of in ("ours", "bit-flipping")
        ]
        for radius in ("τ = 1", "τ = 10")
    }
    said = " ".join((place / "learnt.md").read_text(encoding="utf-8").split())
    for words in (
        f"keeps {min(ring):.0f} to {max(ring):.0f} % under IPM, ALIE and dissensus",
        f"Mozi keeps {mean('no-honest-majority', 'IPM, no majority', 'Mozi'):.0f} % under IPM",
        f"five nodes that never exchange has {known('newer-rules', 'ring, IPM', 'adaptive')}.",
        f"{mean('dumbbell', calm, 'ClippedGossip'):.1f} % with ClippedGossip, {min(three):.0f} to "
        f"{max(three):.0f} % with the three",
        f"Each clique alone has at most {max(cliques):.0f} %",
        f"({dumbbell['ClippedGossip']} against {dumbbell['Gossip']})",
        f"| {dumbbell['ClippedGossip']}, as gossip ({dumbbell['Gossip']});",
        f"| {apart['ClippedGossip']}; GM {apart['GM']}, TM {apart['TM']} |",
        f"| From τ = 0.1 to 10: −{flipped[0] - flipped[-1]:.0f} under bit flipping, "
        f"−{alie[0] - alie[-1]:.0f} under ALIE |",
        f"| To {buckets[f'{calm}, bucketing', 'TM']} with its buckets; with the text's",
        f"| GM to {known('dumbbell', both, 'GM', 'clique A')}, TM and Mozi not; TM to",
        f"{apart['ClippedGossip']} with ClippedGossip, {apart['GM']} with GM and {apart['TM']} with TM",
        f"has {tried('more-topologies', small, 'ClippedGossip', 'τ = 1'):.0f} % under IPM on the small world",
        f"and GM {mean('more-topologies', small, 'GM'):.0f} %",
        "{:.0f} % with τ = 0.1, {:.0f} % with 1, {:.0f} % with 10".format(*flipped),
        f"τ = 1 loses up to {lost['τ = 1']:.0f} points, τ = 10 up to {lost['τ = 10']:.0f}.",
        f"GM over half of the digits ({known('dumbbell', both, 'GM', 'clique A')})",
        f"({known('dumbbell', both, 'TM', 'clique A')} each; released",
        "lifts TM to {}, and to {} with one more edge".format(*list(buckets.values())[:2]),
        f"Mozi in some seeds ({buckets[both, 'Mozi']})",
        "τ = 1 from {} to {}, and".format(*turning["τ = 1"]),
        "τ = 10 from {} to {}: `reproduce".format(*turning["τ = 10"]),
        f"ClippedGossip ({known('newer-rules', 'dumbbell', 'ClippedGossip', 'clique A')}) and BALANCE",
        f"BALANCE, CS+ and ClippedGossip keep {moved['ClippedGossip']:.0f} to {moved['BALANCE']:.0f} %",
        f"the adaptive radius {moved['adaptive']:.0f} %, NNA {moved['NNA']:.0f} %",
    ):
        assert words in said
    assert lost["τ = 0.1"] < 2, "good under all twelve"


def test_the_short_form_says_what_the_released_deviations_give() -> None:
    place = ROOT / "docs" / "results"
    result = Results.load(place / "h200" / "dumbbell-as-released.json", "dumbbell-as-released")
    (figure,) = with_deviations(["dumbbell"], list(DEVIATIONS))
    table = figure.comparison(result)
    rows = {(str(row[0]), str(row[1])): dict(zip(table.header, row, strict=True)) for row in table.rows}

    def number(cell: object) -> float:
        return float(str(cell).partition(" ")[0])

    near = [abs(number(row["released"]) - number(row["as released"])) < 2.5 for row in rows.values()]
    ours = {key: 100 * result.final(key[0], f"{key[1]} | ours", "clique A").mean() for key in rows}
    before = [abs(number(row["released"]) - ours[key]) < 2.5 for key, row in rows.items()]
    gossip, edge, iid = (rows[setting, "Gossip"] for setting in ("non-IID", "non-IID, +1 edge", "IID"))
    tm = rows["non-IID, both", "TM"]
    faults = "Gossip | few-images + one-mask + cnn"
    apart = [float(result.final("non-IID", line, DISTANCE)[0]) for line in (faults, "Gossip | ours")]
    same = 100 * result.final("non-IID", "Gossip | ours", "clique A")[0]
    other = 100 * result.final("non-IID", faults, "clique B")[0]
    said = " ".join((place / "learnt.md").read_text(encoding="utf-8").split())
    for words in (
        f"{sum(near)} of the {len(near)} lines of the dumbbell are within 2.5 points of the released ones; "
        f"without the faults {sum(before)} are",
        f"In clique B gossip has {other:.1f}, less than",
        f"(ours, the same seed: {same:.1f})",
        "gossip has {as released} (released: {released}; ours {ours})".format(**gossip),
        "with one more edge {as released} ({released}; {ours})".format(**edge),
        "with IID data {as released} ({released}; {ours})".format(**iid),
        "has {few-images} with few images, {one-mask} with one mask, {cnn} with their CNN".format(**gossip),
        "TM to {as released} with its faults |".format(**tm),
        "| {as released} with its faults (released: {released}), without {ours} |".format(**gossip),
        "falls to {:.3f}, where ours stays at {:.2f} (the same seed)".format(*apart),
    ):
        assert words in said


def test_the_short_form_says_what_cifar_gave() -> None:
    place = ROOT / "docs" / "results"
    result = Results.load(place / "h200" / "cifar.json", "cifar")
    claims = load("cifar").claims(result).claims
    lead = {c.text: f"{c.ours.lstrip('+')} {c.interval.removesuffix(' points')}" for c in claims}
    better = "non-IID: ClippedGossip is much better than"
    gm, tm, mozi = (lead[f"{better} {rule}"] for rule in ("GM", "TM", "Mozi"))
    iid = [lead[f"IID-Global: {rule} is much worse than ClippedGossip and Gossip"] for rule in ("GM", "TM")]
    ends = {rule: 100 * result.final("IID", rule, "all") for rule in ("GM", "TM")}
    clipped, gossip = (result.accuracy("non-IID", rule, "all") for rule in ("ClippedGossip", "Gossip"))
    both = result.accuracy("IID", "ClippedGossip", "all")
    alone = [result.final("IID", rule, f"clique {one}").mean() for rule in ("GM", "TM") for one in "AB"]
    verdicts = Counter(claim.verdict for claim in claims)
    said = " ".join((place / "learnt.md").read_text(encoding="utf-8").split())
    for words in (
        f"{gm} to {mozi} points behind, with non-IID data |",
        f"leads that of GM by {gm} points, that of TM by {tm} and that of Mozi by {mozi}.",
        f"({both} both; in four of five seeds nothing is clipped, and its run is gossip's, number by number) "
        f"and with non-IID data ({clipped} against {gossip})",
        f"With GM and TM each clique learns ({100 * min(alone):.1f} to {100 * max(alone):.1f} %)",
        f"it lies {iid[0]} and {iid[1]} points below gossip's",
        f"GM's five seeds have {min(ends['GM']):.0f} to {max(ends['GM']):.0f} %, "
        f"TM's {min(ends['TM']):.0f} to {max(ends['TM']):.0f} %",
        f"Of the {len(claims)} claims {verdicts['holds']} hold, and {verdicts['undecided']} are undecided.",
    ):
        assert words in said
    assert verdicts.keys() == {"holds", "undecided"}
    assert result.accuracy("IID", "Gossip", "all") == both
    assert result.unclipped("IID").startswith("in 4 of 5 seeds")


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
