"""A page for each rule and each attack: its docstring, a picture, and a table that is measured when the site is built."""

import inspect
import json
import re
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import networkx as nx
import torch
from clouds import CLOUD, attack_picture, rule_picture

import clippedgossip as cg
from clippedgossip.attacks import ATTACKS, Attack, make_attack
from clippedgossip.bench import SUITES, Ranked, Ranking
from clippedgossip.cli.networks import build_network, load_graph
from clippedgossip.errors import UserError
from clippedgossip.randomness import generator
from clippedgossip.rules import RULES, Mozi, Rule, make_rule
from clippedgossip.settings import RuleConfig
from clippedgossip.simulate import consensus

PARTS = {"Needs": "What must be known", "Fails": "When it fails", "Cost": "Cost", "Origin": "Origin"}
BOUNDS = ("trim", "faulty", "byzantine_weight", "delta_max")
INNER = {"bucketing": "geometric-median", "nnm": "geometric-median"}
NETWORKS = {
    "complete": ({"nodes": 12}, {"random_byzantine": 2}, "complete --nodes 12 --random-byzantine 2"),
    "dumbbell": ({"clique": 6}, {"pendants": "1,8"}, "dumbbell --clique 6 --pendants 1,8"),
    "torus": (
        {"rows": 4, "columns": 4},
        {"random_byzantine": 2},
        "torus --rows 4 --columns 4 --random-byzantine 2",
    ),
    "ring": ({"nodes": 9}, {"byzantine": "0"}, "ring --nodes 9 --byzantine 0"),
}
AGAINST = ("none", "dissensus", "alie", "mimic")
COMPARED = ("gossip", "clipped-gossip", "geometric-median", "trimmed-mean", "gts", "krum")
ROUNDS, DIM = 30, 10


def sections(thing: type) -> dict[str, str]:
    """The parts of a docstring: what it does under "", then those that `PARTS` names."""
    text = inspect.getdoc(thing) or ""
    found = re.split(rf"^({'|'.join(PARTS)}): ", text, flags=re.M)
    return {"": found[0].strip()} | dict(
        zip(found[1::2], (part.strip() for part in found[2::2]), strict=True)
    )


RANKED = Path(__file__).parents[1] / "benchmarks" / "rules-mini.json"
"""What `bench all` printed as JSON."""


@cache
def ranking(path: Path = RANKED) -> Ranking:
    """Rules on the yardstick, from a file of `bench`."""
    told = json.loads(path.read_text())
    rules = [
        Ranked(
            rule=entry["rule"],
            accuracies={tuple(key.split(", ", 1)): values for key, values in entry["accuracies"].items()},
            notes=entry["notes"],
        )
        for entry in told["rules"]
    ]
    return Ranking(suite=SUITES[told["suite"]], rules=rules)


def markdown(path: Path) -> str:
    """Such a file as a table of a document."""
    shown = ranking(path).table
    lines = [shown.header, ["---"] * len(shown.header), *shown.texts]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def write(folder: Path) -> None:
    """All pages, and a list of them."""
    torch.set_num_threads(1)  # the models are tiny
    for kind, names in (("rules", RULES), ("attacks", ATTACKS)):
        (folder / kind).mkdir()
        for name in names:
            page = _rule_page(name) if kind == "rules" else _attack_page(name)
            (folder / kind / f"{name}.md").write_text(page)
        rows = "\n".join(
            f"| [{name}]({name}.md) | {_text(first_sentence(sections(thing)['']))} |"
            for name, thing in names.items()
        )
        listed = "\n".join(names)
        (folder / kind / "index.md").write_text(
            f"# {kind.capitalize()}\n\nEach page is made from the docstring; its picture and its table are made when the "
            f"site is built.\n\n| name | |\n|---|---|\n{rows}\n\n```{{toctree}}\n:hidden:\n\n{listed}\n```\n"
        )


def first_sentence(text: str) -> str:
    """Without its full stop. After "eq." no sentence begins."""
    return re.split(r"\.\s+(?=[A-Z])", text)[0].strip().removesuffix(".")


def _text(text: str) -> str:
    """Plain text as Markdown: outside backticks every sign stands for itself."""
    parts = re.split(r"(`[^`]+`)", " ".join(text.split()))
    return "".join(
        part if part.startswith("`") else re.sub(r"([\\*_|<>\[\]])", r"\\\1", part) for part in parts
    )


def _page(name: str, thing: type, picture: str, table: str) -> str:
    said = sections(thing)
    body = "\n\n".join(_text(part) for part in said[""].split("\n\n"))
    parts = [f"# {name}\n\n{body}\n\n{picture}\n"]
    for key, title in PARTS.items():
        if key in said:
            if said[key][0].isascii():  # not the symbol ρ
                said[key] = said[key][0].upper() + said[key][1:]
            origin = re.sub(r"arXiv:(\d+\.\d+)", r"[arXiv:\1](https://arxiv.org/abs/\1)", _text(said[key]))
            parts.append(f"\n## {title}\n\n{origin}\n")
            if key == "Fails":
                parts.append(table)
    place = f"../reference/python/{thing.__module__.rsplit('.', 1)[0]}.md"
    parts.append(f"\n## In a program\n\n`{thing.__name__}` is described in the [reference]({place}).\n")
    return "".join(parts)


def _rule_page(name: str) -> str:
    return _page(name, RULES[name], picture("rule", name), _trained(name) + _agreed(name))


def _trained(name: str) -> str:
    """What the rule reaches on the yardstick, and where it falls furthest behind the best rule."""
    every = ranking() if RANKED.exists() else None
    me = next((rule for rule in every.rules if rule.rule["name"] == name), None) if every else None
    if every is None or me is None:
        return ""
    mean = {cell: [_mean(rule.accuracies[cell]) for rule in every.rules] for cell in me.accuracies}
    mine = {cell: _mean(values) for cell, values in me.accuracies.items()}
    where, attack = lost = max(mine, key=lambda cell: max(mean[cell]) - mine[cell])
    attacks = list(dict.fromkeys(attack for _, attack in mine))
    rows = "\n".join(
        f"| {place} | {' | '.join(f'{100 * mine[place, attack]:.0f}' for attack in attacks)} |"
        for place in dict.fromkeys(place for place, _ in mine)
    )
    values = me.label.partition(" (")[2].rstrip(")")
    return (
        f"\nTrained on [the yardstick](../bench.md){f' with {values}' if values else ''}, it falls furthest behind the best "
        f"rule on the network {where} under {'no attack' if attack == 'none' else attack}: {100 * mine[lost]:.0f} % of single "
        f"nodes' answers are right, and {100 * max(mean[lost]):.0f} % with the best rule there. All its accuracies, in %:\n\n"
        f"| network | {' | '.join(attacks)} |\n|---|{'---|' * len(attacks)}\n{rows}\n\n"
        f"```\nclippedgossip bench {name}\n```\n"
    )


def _agreed(name: str) -> str:
    """Errors of consensus under some attacks, and the command of the worst."""
    if name == "mozi":  # consensus has no losses
        return _learned(name)
    rows, worst = [], (0.0, "")
    for network in NETWORKS:
        errors = [error_of(network, name, attack) for attack in AGAINST]
        rows.append(f"| {network} | {' | '.join(_number(error) for error in errors)} |")
        for attack, error in zip(AGAINST, errors, strict=True):
            if isinstance(error, float) and error >= worst[0]:
                worst = (error, command(network, name, attack))
    return (
        f"\nMean squared distance of the regular nodes to their average at the start (about {DIM} before the first "
        f"round), after {ROUNDS} rounds of mixing under some attacks:\n\n| network | {' | '.join(AGAINST)} |\n"
        f"|---|{'---|' * len(AGAINST)}\n{chr(10).join(rows)}\n\nThe worst of them:\n\n```\n{worst[1]}\n```\n"
    )


def _learned(name: str) -> str:
    """What single nodes learn if all have the same data, and if their data differ."""
    network = cg.Network(nx.complete_graph(10))
    rows = []
    for rule in (name, "gossip"):
        found = []
        for partition in ("iid", "sorted"):
            run = cg.train(network, rule=rule, partition=partition, rounds=60, lr=0.1, device="cpu")
            found.append(f"{100 * run.records[-1].to_row()['mean_accuracy']:.0f}")
        rows.append(f"| {rule} | {' | '.join(found)} |")
    return (
        "\nTen nodes, all connected and all regular, learn digits in 60 rounds. Accuracy of single nodes in %, if every node has "
        "samples of all classes (`iid`), and if every node has samples of one or two classes (`sorted`):\n\n| rule | iid | "
        f"sorted |\n|---|---|---|\n{chr(10).join(rows)}\n\n```python\nnetwork = cg.Network(nx.complete_graph(10))\n"
        f'run = cg.train(network, rule="{name}", partition="sorted", rounds=60, lr=0.1)\n'
        'run.records[-1].to_row()["mean_accuracy"]\n```\n'
    )


def _attack_page(name: str) -> str:
    shown = picture("attack", name)
    if name == "label-flipping":
        train = "`clippedgossip reproduce more-topologies`"
        table = (
            f"\nConsensus has no labels, so nothing is measured here; {train} trains under it, and "
            "[its table](../results/README.md) shows it beside the other attacks.\n"
        )
        return _page(name, ATTACKS[name], shown, table)
    places = list(NETWORKS)[:2]
    compared = COMPARED[:2] if name == "tuned" else COMPARED  # it tries some thirty strengths a round
    errors = {
        (rule, network): [error_of(network, rule, attack) for attack in (name, "none")]
        for rule in compared
        for network in places
    }
    rows = "\n".join(
        f"| [{rule}](../rules/{rule}.md) | "
        + " | ".join(" | ".join(map(_number, errors[rule, network])) for network in places)
        + " |"
        for rule in compared
    )
    known = {case: both for case, both in errors.items() if not isinstance(both[0], str)}
    rule, network = least = min(known, key=lambda case: float(known[case][0]) / float(known[case][1]))
    head = " | ".join(f"{network} | without it" for network in places)
    table = (
        f"\nMean squared distance of the regular nodes to their average at the start (about {DIM} before the first "
        f"round), after {ROUNDS} rounds of mixing under this attack, and where Byzantine nodes follow the "
        f"protocol:\n\n| rule | {head} |\n|---|{'---|' * 2 * len(places)}\n{rows}\n\nIt harms {rule} on the network "
        f"{network} least: {_number(known[least][0])}, and {_number(known[least][1])} without it:\n\n```\n"
        f"{command(network, rule, name)}\n```\n"
    )
    return _page(name, ATTACKS[name], shown, table)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _number(error: float | str) -> str:
    return error if isinstance(error, str) else f"{error:.2g}"


def _asked(name: str) -> dict[str, Any]:
    """The rule as a config asks for it, with the true bounds."""
    if name == "clipped-gossip":
        return {"name": name, "radius": {"adaptive": "byzantine"}}
    wants = [key for key in inspect.signature(RULES[name]).parameters if key in BOUNDS]
    inner = {"rule": {"name": INNER[name]}} if name in INNER else {}
    return {"name": name, **dict.fromkeys(wants, "byzantine"), **inner}


@cache
def error_of(network: str, rule: str, attack: str) -> float | str:
    """The error that the command of `command` prints; in words, if the rule cannot work there."""
    options, byzantine, _ = NETWORKS[network]
    built = build_network(load_graph(network, options, seed=0), seed=0, **byzantine)  # type: ignore[arg-type]  # values of several types
    start = torch.randn(built.n, DIM, generator=generator(0, "start"), dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            chosen = RuleConfig.from_value(_asked(rule)).build(built, rounds=ROUNDS)
            *_, end = consensus(built, chosen, start, attack=_attack(attack), rounds=ROUNDS)
        except UserError:
            return "too few neighbours"
    return end.error


def _made_attack(name: str) -> Attack:
    return make_attack(**_attack(name))


def picture(kind: str, name: str) -> str:
    """The picture of a rule or an attack, as a part of a page."""
    if kind == "rule":
        drawn = rule_picture(name, _rule_for_picture(name))
    else:
        shown = make_attack(name, z=1.5) if name == "alie" else _made_attack(name)  # its own z is 0 here
        drawn = attack_picture("alie, z = 1.5" if name == "alie" else name, shown)
    return f"```{{raw}} html\n{drawn}\n```"


def _attack(name: str) -> Any:
    return {"name": name, "attack": {"name": "ipm"}} if name == "tuned" else {"name": name}


def command(network: str, rule: str, attack: str) -> str:
    """What to type for one number."""
    asked = {key: said for key, said in _asked(rule).items() if key != "name"}
    words = [f"clippedgossip consensus {NETWORKS[network][2]} --rounds {ROUNDS} --rule {rule}"]
    for key, said in asked.items():
        value = said["name"] if key == "rule" else "'{adaptive = \"byzantine\"}'" if key == "radius" else said
        words.append(f"--rule-option {key}={value}")
    words.append(f"--attack {attack}" + (" --attack-option attack=ipm" if attack == "tuned" else ""))
    return " ".join(words)


def _rule_for_picture(name: str) -> Rule:
    if name == "mozi":
        centre = CLOUD.mean(0)
        return Mozi(loss=lambda models: (models - centre).norm(dim=-1), keep=0.78)
    wants = set(inspect.signature(RULES[name]).parameters)
    known: dict[str, Any] = {"faulty": 2, "byzantine_weight": 0.2}
    given = {key: value for key, value in known.items() if key in wants}
    if "trim" in wants:
        given["trim"] = 0.2 if name.startswith("weighted") else 2
    if name in INNER:
        given["rule"] = {"name": INNER[name]}
    if name == "clipped-gossip":
        given["radius"] = {"adaptive": 0.2}
    return make_rule(name, **given)
