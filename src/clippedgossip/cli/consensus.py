"""`clippedgossip consensus`: robust consensus on any network, with any rule and attack that needs no data."""

from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from clippedgossip.cli import consensus_output as output
from clippedgossip.cli import networks
from clippedgossip.errors import ConfigError, UserError

if TYPE_CHECKING:
    from torch import Tensor

    from clippedgossip.network import Network
    from clippedgossip.settings import Named

T = TypeVar("T", bound="Named")

CONSENSUS_COPIES = 8  # of all vectors, while they are mixed


def _known() -> str:
    return (
        f"{networks.known()}\n\nRules and their options:\n{networks.listing('rules')}\n\n"
        "bucketing and nnm contain a rule, tuned an attack. Its options have its key:\n"
        "  --rule bucketing --rule-option rule=krum --rule-option rule.faulty=1\n\n"
        f"Attacks and their options:\n{networks.listing('attacks')}"
    )


SETTINGS = {"cls": networks.help_with(_known), "context_settings": networks.FREE}


def consensus(
    context: typer.Context,
    network: networks.Source,
    rule: Annotated[str, typer.Option(metavar="NAME", help="The rule every regular node mixes with.")] = (
        "clipped-gossip"
    ),
    rule_option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A parameter of the rule; repeatable.")
    ] = None,
    attack: Annotated[str, typer.Option(metavar="NAME", help="What the Byzantine nodes do.")] = "dissensus",
    attack_option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A parameter of the attack; repeatable.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of mixing.")] = 100,
    dim: Annotated[int, typer.Option(min=1, help="Length of every node's random vector.")] = 10,
    start: Annotated[
        str | None,
        typer.Option(
            metavar="VALUES", help="One number for each node, such as 0,0,200,200. The default is random."
        ),
    ] = None,
    byzantine: networks.Nodes = None,
    random_byzantine: networks.RandomNodes = 0,
    pendants: networks.Pendants = None,
    random_pendants: networks.RandomPendants = 0,
    worst_byzantine: networks.WorstNodes = 0,
    weights: networks.Weights = None,
    max_degree: networks.MaxDegree = None,
    schedule: networks.Schedule = None,
    delay: networks.Delay = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of networks, placements, vectors and attacks.")] = 0,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write an HTML page with the curves.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Let the nodes of a network look for their average while some of them are Byzantine.

    Examples: `clippedgossip consensus torus --random-byzantine 1 --rule median --attack alie`, or
    `--rule clipped-gossip --rule-option radius={adaptive=0.2}`.
    """

    from clippedgossip.report.terminal import progress, table
    from clippedgossip.settings import AttackConfig, RuleConfig
    from clippedgossip.simulate.consensus import consensus

    asked_rule = _checked(RuleConfig, rule, rule_option, "--rule-option")
    chosen_attack = _checked(AttackConfig, attack, attack_option, "--attack-option").build()
    built = networks.network_asked_for(context)
    chosen_rule = asked_rule.build(built, rounds=rounds, seed=seed)
    initial = _start(built, start, dim, seed)
    states = consensus(built, chosen_rule, initial, attack=chosen_attack, rounds=rounds, seed=seed)
    history: output.History = []
    with progress() as show:
        for state in states:
            history.append(output.Step(state.round, state.error, state.consensus_distance))
            show("mixing", state.round, rounds)
    facts = _facts(built, network) | {
        "rule": repr(chosen_rule),
        "attack": repr(chosen_attack) if len(built.byzantine) else None,
        "rounds": rounds,
        "dim": initial.shape[1],
        "seed": seed,
    }
    if out is not None:
        output.write_page(out, facts, history)
    if as_json:
        output.print_json(facts, history)
        return
    print(output.summary(facts))
    print(f"\n{table(output.table(history))}\n")
    print(output.MEANING)
    print(output.verdict(history))
    if out is not None:
        print(f"page: {out}")


def _checked(kind: type[T], name: str, options: list[str] | None, flag: str) -> T:
    """A rule or an attack in its canonical form. If a parameter is missing, the error names its option."""
    from clippedgossip.runs.config import toml_value

    table, more = toml_value(name), _pairs(options, flag)
    said = table if isinstance(table, dict) else {"name": name}
    twice = next((key for key in more if key in said), None)
    if twice is not None:
        raise ConfigError(f"{flag} {twice} is given twice; give it once")
    try:
        return kind.from_value({**said, **more}).checked()
    except UserError as error:
        if not error.missing:
            raise
        fix = " ".join(f"{flag} {part}" for part in error.missing)
        raise ConfigError(f"{str(error).splitlines()[0]}\nadd, for example, {fix}") from None


def _pairs(options: list[str] | None, flag: str) -> dict[str, Any]:
    from clippedgossip.decode import put
    from clippedgossip.runs.config import toml_value

    found: dict[str, Any] = {}
    for option in sorted(options or [], key=lambda option: "." in option.partition("=")[0]):
        key, sign, value = option.partition("=")
        if not sign or not key:
            raise ConfigError(f"{flag} is {option!r}; it is written key=value, such as radius=0.5")
        if key.strip() in found:
            raise ConfigError(f"{flag} {key.strip()} is given twice; give it once")
        put(found, key.strip(), toml_value(value.strip()))
    return found


def _start(network: "Network", values: str | None, dim: int, seed: int) -> "Tensor":
    """The vectors at the start: given, or drawn from a normal distribution."""
    import torch

    from clippedgossip.devices import free_memory
    from clippedgossip.randomness import generator

    if values is None:
        needed, free = CONSENSUS_COPIES * network.n * dim * 8, free_memory("cpu")
        if needed > free:
            raise ConfigError(
                f"--dim is {dim}: {network.n} vectors need about {needed / 1e9:,.0f} GB, and "
                f"{free / 1e9:,.0f} GB are free\ngive a smaller --dim"
            )
        return torch.randn(network.n, dim, generator=generator(seed, "start"), dtype=torch.float64)
    try:
        numbers = [float(value) for value in networks.split_list(values)]
    except ValueError:
        raise ConfigError(f"--start is {values!r}; give numbers, such as 0,0,200,200") from None
    if len(numbers) not in (network.n, len(network.regular)):
        regular = f", or of the {len(network.regular)} regular ones" if len(network.byzantine) else ""
        raise ConfigError(
            f"--start has {len(numbers)} numbers; give one for each of the {network.n} nodes{regular}"
        )
    if not all(map(isfinite, numbers)):
        raise ConfigError(f"--start is {values!r}; every number must be finite")
    return torch.tensor(numbers, dtype=torch.float64).reshape(-1, 1)


def _facts(network: "Network", source: str) -> dict[str, Any]:
    return {
        "network": source,
        "nodes": network.n,
        "edges": network.edge_count,
        "byzantine": [str(network.labels[i]) for i in network.byzantine],
        "gamma": network.spectral_gap,
        "delta_max": network.delta_max,
        **{key: str(part) for key in ("schedule", "delay") if (part := getattr(network, key)) is not None},
    }
