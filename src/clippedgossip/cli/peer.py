"""`clippedgossip peer`: real participants over a real network."""

import json
import logging
import secrets
import sys
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clippedgossip.cli.networks import is_file
from clippedgossip.cli.run import Json
from clippedgossip.errors import harmless, tell

if TYPE_CHECKING:
    from clippedgossip.peer.local_network import LocalNetwork
    from clippedgossip.peer.peer_config import Config

Folder = Annotated[Path, typer.Argument(help="The peer's folder.")]


def register(app: typer.Typer) -> None:
    """Add the `peer` commands."""
    group = typer.Typer(
        help="Train over a real network with peers that you need not trust.", no_args_is_help=True
    )
    members = (init, add, remove, rekey, new_key, start, status, health, watch, evidence)
    for command in (network, up, *members, drill):
        group.command(command.__name__.replace("_", "-"))(command)
    app.add_typer(group, name="peer")


def network(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="NETWORK", help="ring, torus, complete, …, a graph file, or a run's config (.toml)."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="Parameters of the network (torus rows=3 columns=3), or of the run (training.lr=0.1).",
        ),
    ] = None,
    nodes: Annotated[int | None, typer.Option(help="How many peers.")] = None,
    option: Annotated[list[str], typer.Option("--set", hidden=True)] = [],  # noqa: B006  # typer copies it
    task: Annotated[str | None, typer.Option(help="digits (default), mnist, fashion-mnist, cifar10.")] = None,
    model: Annotated[str | None, typer.Option(help="linear, mlp (default), deep-mlp, cnn, vgg11.")] = None,
    partition: Annotated[
        str | None, typer.Option(help="iid (default), sorted, clique, dirichlet, classes.")
    ] = None,
    rule: Annotated[
        str | None, typer.Option(help="The rule of all peers. The default is clipped-gossip.")
    ] = None,
    radius: Annotated[float | None, typer.Option(help="Clipping radius. The default is 0.3.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds to train. The default is 200.")] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of data, model and batches. The default is 0.")
    ] = None,
) -> None:
    """Write a network of peers for this machine: one folder each, with identity and config.

    From a simulated run's config it makes that run with real peers: same data, model, steps and rule.
    """
    from clippedgossip.peer.from_run import peers_of
    from clippedgossip.peer.local_network import write_network
    from clippedgossip.runs.budget import check
    from clippedgossip.runs.config import from_raw, read

    source, text, raw = Path("peer network"), "", _first_run(kind)
    if kind.endswith(".toml"):
        source = Path(kind)
        text, raw = read(source)
    if rule is not None:
        raw["rule"] = dict(_RULE) if rule == _RULE["name"] else {"name": rule}
    chosen = (
        ("network.nodes", "--nodes", nodes),
        ("data.name", "--task", task),
        ("model.name", "--model", model),
        ("data.partition", "--partition", partition),
        ("rule.radius", "--radius", radius),
        ("training.rounds", "--rounds", rounds),
        ("seed", "--seed", seed),
    )
    typed = {f"{key}={value}": f"{flag} {value}" for key, flag, value in chosen if value is not None}
    changes = [*typed, *(_of_run(change) for change in [*(overrides or []), *option])]
    config = from_raw(raw, source=source, text=text, overrides=changes, typed=typed)
    check(config)  # a model that does not fit its data is refused here, and not by every peer
    edges, count, template = peers_of(config, run=f"{config.network.label}-{secrets.token_hex(4)}")
    folders = write_network(edges, count, out, template)
    if config.attack is not None:
        idle = f"no peer makes the attack {config.attack.name!r}; `peer up --misbehave` makes one Byzantine"
        print(f"note: {idle}", file=sys.stderr)
    print(f"{len(folders)} peers, {len(edges)} links in {out}\nstart them: clippedgossip peer up {out}")


def _of_run(change: str) -> str:
    """`nodes=5` as `network.nodes=5`; what names a section or key of a run stays."""
    from clippedgossip.runs.config import RunConfig

    key = change.partition("=")[0]
    return change if "." in key or key in RunConfig.__dataclass_fields__ else f"network.{change}"


def _first_run(kind: str) -> dict[str, Any]:
    return {
        "network": {"file" if is_file(kind) else "name": kind},
        "data": {"name": "digits"},
        "model": {"name": "mlp"},
        "rule": dict(_RULE),
        "training": {"rounds": 200, "lr": _LR, "evaluate_every": 10},
    }


def up(
    net: Annotated[Path, typer.Argument(help="A folder written by `peer network`.")],
    rounds: Annotated[int | None, typer.Option(help="End after this number of rounds.")] = None,
    misbehave: Annotated[
        list[str],
        typer.Option(
            metavar="PEER=HOW", help="Make a peer Byzantine, such as 3=bit-flipping; can be repeated."
        ),
    ] = [],  # noqa: B006  # typer copies it
    resume: Annotated[bool, typer.Option(help="Resume from the checkpoints of an earlier start.")] = False,
    page: Annotated[
        bool, typer.Option("--watch", help="Serve a live page on loopback while they run.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Start all peers of a network on this machine and watch them; Ctrl-C stops them.

    A Byzantine peer makes one of the attacks alie, ipm, bit-flipping, dissensus, zero-sum, spectral, mimic,
    gaussian, non-finite and silence, or violates the protocol by wrong-shape, garbage, oversize, replay,
    equivocation, false-round, flooding, hello-flooding, stalling, late-stalling or gzip-bomb.
    """
    from clippedgossip.peer.local_network import prepared, running
    from clippedgossip.report.terminal import show_peers, watch_peers

    lies = dict(map(_pair, misbehave))
    configs = prepared(net, rounds=rounds, misbehave=lies, resume=resume)
    interrupted = False
    if not as_json:
        print(f"{len(configs)} peers are starting; Ctrl-C stops them", file=sys.stderr)
    beside: AbstractContextManager[None] = nullcontext()
    if page:
        from clippedgossip.watch.live_page import Server, watched_in

        beside = Server(watched_in([net])).beside()
    with beside, running(configs) as peers:
        try:
            if not as_json and sys.stdout.isatty():
                watch_peers(lambda: _rows(peers), peers.alive)
            peers.wait()
        except KeyboardInterrupt:
            interrupted = True
            peers.stop()
        codes = {name: p.exitcode for name, p in peers.processes.items() if p.exitcode and not interrupted}
    if as_json:
        print(json.dumps(peers.rows()))
    else:
        show_peers(_rows(peers))
    if interrupted and any(r["rounds"] < c.rounds for r, c in zip(peers.rows(), configs, strict=True)):
        print(f"stopped; `clippedgossip peer up {net} --resume` resumes from here", file=sys.stderr)
    if codes:
        failed = ", ".join(f"{name} ({_how(code)})" for name, code in codes.items())
        fix = f"see log.jsonl in their folders; `clippedgossip peer up {net} --resume` resumes this run"
        tell(f"error: ended badly: {failed}\n{fix}; `peer start` does not")
        raise typer.Exit(1)


def _how(code: int) -> str:
    return f"exit code {code}" if code > 0 else f"killed by signal {-code}"


def init(
    folder: Folder = Path(),
    name: Annotated[str, typer.Option(help="What neighbours call this peer.")] = "me",
    bind: Annotated[str, typer.Option(help="Address to listen on, such as 0.0.0.0:7000.")] = "127.0.0.1:7000",
    run: Annotated[str, typer.Option(help="The name of the run, the same for all its peers.")] = "first-run",
) -> None:
    """Make a key and certificate, a config to edit, and print the fingerprint for the neighbours."""
    from clippedgossip.files import write_atomic
    from clippedgossip.peer import identity
    from clippedgossip.peer import peer_config as config
    from clippedgossip.settings import TrainingConfig

    made = config.Config(
        name=name,
        run=run,
        bind=config.Address.parse(bind),
        nodes=3,
        node=0,
        rule=dict(_RULE),
        training=TrainingConfig(rounds=100, lr=_LR, evaluate_every=10),
    )
    config.check(made)
    me = identity.create()
    identity.save(me, folder)
    path = folder / config.CONFIG_FILE
    if not path.exists():
        write_atomic(path, config.dump(made))
    print(f"config      {path}\nfingerprint {identity.format_fingerprint(me.fingerprint)}")


_LR = 0.05
"""For a short run on digits."""
_RULE = {"name": "clipped-gossip", "radius": 0.3}
"""For this run: without an attack hardly a message is clipped. With τ = 1, the paper's for its CNN, one of
four peers that flips bits leaves the others an accuracy of 10 %; with 0.3 they have 96 %."""


Name = Annotated[str, typer.Argument(help="What this peer calls the neighbour.")]
Fingerprint = Annotated[str, typer.Argument(help="What its `peer init` or `peer new-key` printed.")]
Dir = Annotated[Path, typer.Option("--dir", help="This peer's folder.")]


def add(
    name: Name,
    address: Annotated[str, typer.Argument(help="Where it listens: host:port or [IPv6]:port.")],
    fingerprint: Fingerprint,
    folder: Dir = Path(),
) -> None:
    """Pin the certificate of a neighbour. A running peer notices before its next round."""
    from clippedgossip.peer import membership

    _said(membership.add(folder, name, address, fingerprint), f"{name} at {address} is pinned")


def remove(name: Name, folder: Dir = Path()) -> None:
    """Forget a neighbour. A running peer notices before its next round."""
    from clippedgossip.peer import membership

    _said(membership.remove(folder, name), f"{name} is no neighbour any more")


def rekey(
    name: Name,
    fingerprint: Fingerprint,
    at_once: Annotated[bool, typer.Option("--at-once", help="The old key is no longer valid.")] = False,
    folder: Dir = Path(),
) -> None:
    """Pin the new key of a neighbour. Its old key is valid until the neighbour has shown the new one."""
    from clippedgossip.peer import membership

    _said(membership.rekey(folder, name, fingerprint, at_once=at_once), f"the new key of {name} is pinned")


def new_key(
    folder: Folder = Path(),
    use: Annotated[bool, typer.Option("--use", help="Use the new key from the next round on.")] = False,
) -> None:
    """Make a new key for this peer and print its fingerprint; with --use, change to it."""
    from clippedgossip.peer import identity, membership

    made = membership.use_next_key(folder) if use else membership.make_next_key(folder)
    print(f"fingerprint {identity.format_fingerprint(made.fingerprint)}")
    if use:
        print("this is now the key of the peer")
    else:
        print("give it to every neighbour, for `peer rekey`; when all have pinned it, change to it:")
        print(f"clippedgossip peer new-key {folder} --use")


def _said(changed: "Config", what: str) -> None:
    from clippedgossip.errors import counted

    count = changed.degree
    alone = "" if count else "; pin one before the next start"
    print(f"{what}; {counted(count, 'neighbour')}{alone}")


def start(
    folder: Folder = Path(),
    rounds: Annotated[int | None, typer.Option(help="End after this number of rounds.")] = None,
    resume: Annotated[bool, typer.Option(help="Resume from the checkpoint of an earlier start.")] = True,
    enter: Annotated[
        int | None,
        typer.Option(
            metavar="ROUND",
            help="Enter a run that others have begun: start in this round, from the neighbours' models. "
            "A restart resumes as usual.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run this peer until its rounds are done. Ctrl-C stops it; the same command resumes."""
    from dataclasses import asdict

    from clippedgossip.errors import PeerError
    from clippedgossip.files import to_line
    from clippedgossip.peer import peer_config as config
    from clippedgossip.peer.peer_folder import mark_of_last_start, take
    from clippedgossip.peer.telemetry import log_to, starting

    mine = config.load(folder)
    if not mine.neighbours:
        raise PeerError(
            f"{mine.name} has no neighbours to learn with; pin one first:\n"
            f"clippedgossip peer add NAME ADDRESS FINGERPRINT --dir {folder}"
        )
    mine = mine.until(rounds)
    config.check(mine)
    log_to(None)
    with take(mine.folder) as lock, starting(mine):
        if (mark := mark_of_last_start(mine.folder.parent)) is not None:
            logging.getLogger(__name__).warning(
                "`peer up` has a run of its own for each start; this is not one of them",
                extra={
                    "run": mine.run,
                    "run_of_peer_up": mine.run + mark,
                    "to_resume_that": f"clippedgossip peer up {mine.folder.parent} --resume",
                },
            )
        from clippedgossip.peer.loop import run_peer  # takes a second or two: torch

        outcome = run_peer(mine, resume=resume, enter=enter, lock=lock)
    if as_json:
        print(to_line(asdict(outcome)), end="")
    else:
        from clippedgossip.report.terminal import short

        print("  ".join(f"{key} {short(value)}" for key, value in asdict(outcome).items()))
    if outcome.resumed is not None and outcome.resumed >= mine.rounds:
        print(
            f"run {mine.run!r} was complete already, at round {outcome.resumed}; "
            f"`--rounds {2 * outcome.resumed}` makes it longer, `--no-resume` starts again",
            file=sys.stderr,
        )
    if not outcome.saved:
        tell(
            f"error: the model after round {outcome.rounds} could not be written to {mine.folder}\n"
            "the log says why: make room on the disk, or lower lr if the model is not finite; start it again"
        )
        raise typer.Exit(1)


def status(
    folder: Annotated[Path, typer.Argument(help="A peer's folder, or a network's.")] = Path(),
    as_json: Json = False,
) -> None:
    """Show the status of a peer, or of every peer of a network."""
    from clippedgossip.report.terminal import show_peers

    found = _statuses(folder)
    rows = [{"peer": name, "running": False} if row is None else row for name, row in found.items()]
    if as_json:
        print(json.dumps(rows))
    else:
        by_name = {str(row["peer"]): row for row in rows}
        # A copy of a folder has the name of its peer: the folders tell them apart.
        show_peers(by_name if len(by_name) == len(rows) else dict(zip(found, rows, strict=True)))


def health(
    folder: Annotated[Path, typer.Argument(help="A peer's folder, or a network's.")] = Path(),
    longest: Annotated[
        float,
        typer.Option(
            "--age",
            min=0,
            help="Seconds without a round, or without a message, after which the exit code is 1.",
        ),
    ] = 120.0,
    as_json: Json = False,
) -> None:
    """Exit code 0 if the peer runs, does rounds and receives messages, or has finished; else 1, and why."""
    from clippedgossip.peer.telemetry import unhealthy

    found = {name: unhealthy(row, longest) for name, row in _statuses(folder).items()}
    if as_json:
        print(json.dumps([{"peer": name, "healthy": not why, "why": why} for name, why in found.items()]))
    else:
        for name, why in found.items():
            print(harmless(f"{name}: {why or 'healthy'}"))
    if any(found.values()):
        raise typer.Exit(1)


def watch(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR…", help="Folders of peers, of networks, or of one run.")
    ],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port. The default is 8420, or a free one if that is taken."),
    ] = None,
    token: Annotated[
        str,
        typer.Option(
            envvar="CLIPPEDGOSSIP_WATCH_TOKEN",
            help="What a browser must bring. Without it: none on loopback, a new one elsewhere.",
        ),
    ] = "",
) -> None:
    """Serve a live page about peers, or about a run; Ctrl-C ends it. It only reads their folders."""
    from clippedgossip.watch.live_page import Server, watched_in

    server = Server(watched_in(folders), host=host, port=port, token=token)
    print(f"{server.door.url}\nCtrl-C ends the page; what it shows goes on", flush=True)
    if server.door.token:
        print("from elsewhere: this machine's address in place of the host", flush=True)
    with suppress(KeyboardInterrupt):
        server.run()


def evidence(
    file: Annotated[Path, typer.Argument(help="A file from the `evidence` folder of any peer.")],
) -> None:
    """Check a proof that a peer signed two models for one round, and say what it proves."""
    from clippedgossip.errors import UserError
    from clippedgossip.peer import peer_config as config
    from clippedgossip.peer.evidence import verify

    proof = verify(file)
    print(proof)
    with suppress(UserError):  # the file may be elsewhere than in a peer's folder
        mine = config.load(file.resolve().parent.parent, look_up=False)
        for n in (n for n in mine.neighbours if proof.fingerprint in n.fingerprints):
            print(f"In {mine.name}'s peer.toml this is the key of {n.name}.")


def _statuses(folder: Path) -> dict[str, dict[str, Any] | None]:
    from clippedgossip.peer.peer_folder import peer_folders
    from clippedgossip.peer.telemetry import read_status

    return {path.name: read_status(path) for path in peer_folders(folder.resolve())}


def drill(
    faults: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FAULT]…", help="kill, stop, partition, …. The default is all."),
    ] = None,
    network: Annotated[str, typer.Option(help="ring, or chords (a ring with triangles).")] = "ring",
    peers: Annotated[int, typer.Option(help="Peers in the network.")] = 8,
    rounds: Annotated[int, typer.Option(help="Rounds under each fault.")] = 200,
    out: Annotated[Path | None, typer.Option(help="Write the table here as well (Markdown).")] = None,
    as_json: Json = False,
) -> None:
    """Inject faults into a network of real processes, and show the result of each."""
    from dataclasses import asdict

    from clippedgossip.errors import ConfigError, unknown_name
    from clippedgossip.peer.drill.drill import Drill
    from clippedgossip.peer.drill.fault import Fault, page, table

    known = {fault.name.lower().replace("_", "-"): fault for fault in Fault}
    for name in faults or ():
        if name not in known:
            raise ConfigError(unknown_name("fault", name, known))
    results = []
    for name in faults or known:
        print(f"{name} …", file=sys.stderr)
        results.append(Drill([known[name]], network=network, peers=peers, rounds=rounds).run())
        if out is not None:
            out.write_text(page(results, network=network, peers=peers, rounds=rounds))
    print(json.dumps([asdict(result) for result in results]) if as_json else table(results))
    harmed = (
        r for r in results if r.ended_badly or r.fell_out or r.convicted or r.rounds < rounds or not r.fired
    )
    if names := ", ".join(r.fault.value for r in harmed):
        print(f"error: not come through, or did not fire: {names}", file=sys.stderr)
        raise typer.Exit(1)


def _rows(peers: "LocalNetwork") -> dict[str, dict[str, Any]]:
    """What is known of each peer; one that has not spoken yet is starting."""
    status, alive = peers.status(), peers.alive()
    return {
        name: {"starting": name in alive, "misbehave": config.misbehave, **status.get(name, {})}
        for name, config in peers.configs.items()
    }


def _pair(text: str) -> tuple[str, str]:
    from clippedgossip.errors import ConfigError

    name, _, how = text.partition("=")
    if not name or not how:
        raise ConfigError(f"--misbehave {text!r} is not NAME=VALUE\nwrite it so: --misbehave 3=bit-flipping")
    return name, how
