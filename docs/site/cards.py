"""A page for each rule and each attack: its docstring, a picture, and a table that is measured when the site is built."""

import inspect
import re
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import torch
from clouds import CLOUD, attack_picture, rule_picture

from clippedgossip.attacks import ATTACKS, Attack, make_attack
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
}
AGAINST = ("none", "dissensus", "alie", "mimic")
COMPARED = ("gossip", "clipped-gossip", "geometric-median", "trimmed-mean", "krum")
ROUNDS, DIM = 30, 10


def sections(thing: type) -> dict[str, str]:
    """The parts of a docstring: what it does under "", then those that `PARTS` names."""
    text = inspect.getdoc(thing) or ""
    found = re.split(rf"^({'|'.join(PARTS)}): ", text, flags=re.M)
    return {"": found[0].strip()} | dict(
        zip(found[1::2], (part.strip() for part in found[2::2]), strict=True)
    )


def write(folder: Path) -> None:
    """All pages, and a list of them."""
    torch.set_num_threads(1)  # the models are tiny
    for kind, names in (("rules", RULES), ("attacks", ATTACKS)):
        (folder / kind).mkdir()
        for name in names:
            page = _rule_page(name) if kind == "rules" else _attack_page(name)
            (folder / kind / f"{name}.md").write_text(page)
        rows = "\n".join(
            f"| [{name}]({name}.md) | {_text(sections(thing)[''].split('. ')[0])} |"
            for name, thing in names.items()
        )
        listed = "\n".join(names)
        (folder / kind / "index.md").write_text(
            f"# {kind.capitalize()}\n\nEach page is made from the docstring; its picture and its table are made when the "
            f"site is built.\n\n| name | |\n|---|---|\n{rows}\n\n```{{toctree}}\n:hidden:\n\n{listed}\n```\n"
        )


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
            said[key] = said[key][0].upper() + said[key][1:]
            origin = re.sub(r"arXiv:(\d+\.\d+)", r"[arXiv:\1](https://arxiv.org/abs/\1)", _text(said[key]))
            parts.append(f"\n## {title}\n\n{origin}\n")
            if key == "Fails":
                parts.append(table)
    place = f"../reference/python/{thing.__module__.rsplit('.', 1)[0]}.md"
    parts.append(f"\n## In a program\n\n`{thing.__name__}` is described in the [reference]({place}).\n")
    return "".join(parts)


def _rule_page(name: str) -> str:
    shown = picture("rule", name)
    if name == "mozi":
        table = "\nConsensus has no losses, so nothing is measured here: `clippedgossip reproduce dumbbell` trains with it.\n"
        return _page(name, RULES[name], shown, table)
    rows, worst = [], (0.0, "")
    for network in NETWORKS:
        errors = [error_of(network, name, attack) for attack in AGAINST]
        rows.append(f"| {network} | {' | '.join(_number(error) for error in errors)} |")
        for attack, error in zip(AGAINST, errors, strict=True):
            if isinstance(error, float) and error >= worst[0]:
                worst = (error, command(network, name, attack))
    table = (
        f"\nMean squared distance of the regular nodes to their average at the start (about {DIM} before the first "
        f"round), after {ROUNDS} rounds of mixing under some attacks:\n\n| network | {' | '.join(AGAINST)} |\n"
        f"|---|{'---|' * len(AGAINST)}\n{chr(10).join(rows)}\n\nThe worst of them:\n\n```\n{worst[1]}\n```\n"
    )
    return _page(name, RULES[name], shown, table)


def _attack_page(name: str) -> str:
    attack = _made_attack(name)
    shown = picture("attack", name)
    if attack.flips_labels or name == "tuned":
        why = "It tries some thirty strengths a round" if name == "tuned" else "Consensus has no labels"
        train = "`clippedgossip reproduce more-topologies`"
        table = f"\n{why}, so nothing is measured here; {train} trains under it.\n"
        return _page(name, ATTACKS[name], shown, table)
    rows = [
        f"| [{rule}](../rules/{rule}.md) | {' | '.join(_number(error_of(network, rule, name)) for network in NETWORKS)} |"
        for rule in COMPARED
    ]
    table = (
        f"\nMean squared distance of the regular nodes to their average at the start (about {DIM} before the first "
        f"round), after {ROUNDS} rounds of mixing under this attack:\n\n| rule | {' | '.join(NETWORKS)} |\n"
        f"|---|{'---|' * len(NETWORKS)}\n{chr(10).join(rows)}\n\nOne of these numbers:\n\n```\n"
        f"{command('dumbbell', 'clipped-gossip', name)}\n```\n"
    )
    return _page(name, ATTACKS[name], shown, table)


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
