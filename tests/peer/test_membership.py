"""Neighbours and keys that change while peers run: over the fake network, by files, by real processes."""

import asyncio
import contextlib
import gc
import io
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from clippedgossip.cli import main
from clippedgossip.errors import PeerError, UserError
from clippedgossip.peer import identity, membership, wire
from clippedgossip.peer import wire_tensors as tensors
from clippedgossip.peer.evidence import Evidence
from clippedgossip.peer.local_network import LocalNetwork, read_network, write_network
from clippedgossip.peer.membership import Membership
from clippedgossip.peer.node import Exchange, Node
from clippedgossip.peer.peer_config import Config, Deadlines, Neighbour, load
from clippedgossip.peer.peer_folder import take
from clippedgossip.peer.rejection import VIOLATIONS, Rejection
from clippedgossip.peer.session import Peer
from clippedgossip.peer.telemetry import read_status
from clippedgossip.settings import DataConfig, ModelConfig, TrainingConfig
from tests.peer.memory_network import MemoryNetwork, MemoryTransport
from tests.peer.simulated_time import SimulatedLoop, at_once
from tests.peer.test_node import FAST, IDENTITIES, LENGTH, make_node, neighbours, network, vector

TRIANGLE = [(0, 1), (1, 2), (0, 2)]
SQUARE = [*TRIANGLE, (0, 3), (1, 3)]


def simulated(scenario: Coroutine[Any, Any, None]) -> None:
    """Without waiting, and the same whatever else the machine does."""
    loop = SimulatedLoop()
    with mock.patch.object(asyncio, "to_thread", at_once), contextlib.closing(loop):
        loop.run_until_complete(scenario)


async def together(*nodes: Node) -> list[Exchange]:
    return await asyncio.gather(*(node.exchange(vector(int(node.config.name[1:]))) for node in nodes))


def weights(exchange: Exchange, node: Node) -> dict[str, float]:
    return dict(zip(node.neighbours, exchange.weights.tolist(), strict=True))


def test_neighbours_come_and_go_by_each_ones_own_count() -> None:
    async def scenario() -> None:
        async with network(TRIANGLE, 3) as (net, nodes):
            a, b, c = nodes
            await together(*nodes)
            late = make_node(net, 3, SQUARE, round=1)
            await late.start()
            await a.change(neighbours(0, SQUARE), IDENTITIES[0])
            of_a, of_b, _, of_late = await together(a, b, c, late)
            assert weights(of_a, a) == dict.fromkeys(["p1", "p2", "p3"], 0.25), "three neighbours at once"
            assert weights(of_b, b) == {"p0": 0.25, "p2": 1 / 3}, "b has heard of it, and has not added it"
            assert of_a.rounds == {"p1": 1, "p2": 1, "p3": 1}
            assert of_late.missing == {"p1": Rejection.DEAD}, "an outsider for b"
            await b.change(neighbours(1, SQUARE), IDENTITIES[1])
            results = await together(a, b, c, late)
            assert not any(result.missing for result in results)
            assert [row[0].item() for row in results[3].received] == [0, 1]
            both = [weights(r, n) for r, n in zip(results, (a, b, c, late), strict=True)]
            assert both[0]["p3"] == both[3]["p0"] == 0.25, "and they agree again"

            await a.change(neighbours(0, [(0, 1), (0, 3)]), IDENTITIES[0])
            of_a, _, of_c, _ = await together(a, b, c, late)
            assert weights(of_a, a) == {"p1": 0.25, "p3": 1 / 3}
            assert of_c.missing == {"p0": Rejection.DEAD}, "c is not let in any more"
            assert "p2" not in a.outbox.callers
            await late.close()

    simulated(scenario())


def test_what_is_on_its_way_when_neighbours_change_is_not_lost() -> None:
    async def scenario() -> None:
        async with network(TRIANGLE, 3, staleness=1) as (net, nodes):
            a = nodes[0]
            await together(*nodes)
            net.delay = lambda: 0.3
            fetches = asyncio.gather(nodes[1].exchange(vector(1)), nodes[2].exchange(vector(2)))
            a._go_on(a.neighbours["p1"], asyncio.get_running_loop().time() + 5)
            await asyncio.sleep(0.1)
            swapped = tuple(reversed(a.config.neighbours))
            await a.change(swapped, IDENTITIES[0])
            result = await a.exchange(vector(0))
            assert result.rounds == {"p2": 1, "p1": 1}
            assert [row[0].item() for row in result.received] == [2, 1], "each has its own row"
            await fetches

    simulated(scenario())


def test_a_new_key_beside_the_old_one() -> None:
    new = identity.create()

    def with_new(node: Node, former: bytes) -> tuple[Neighbour, ...]:
        return tuple(
            replace(n, fingerprint=new.fingerprint, former=former) if n.name == "p1" else n
            for n in node.config.neighbours
        )

    async def scenario() -> None:
        async with network(TRIANGLE, 3) as (_, nodes):
            a, b, c = nodes
            old = IDENTITIES[1].fingerprint
            await a.change(with_new(a, old), IDENTITIES[0])
            await c.change(with_new(c, old), IDENTITIES[2])
            assert not any(result.missing for result in await together(*nodes)), "the old key is valid"
            await b.change(b.config.neighbours, new)
            results = await together(*nodes)
            assert not any(result.missing for result in results), "and so is the new one"
            await a.change(with_new(a, b""), IDENTITIES[0])
            assert not any(result.missing for result in await together(*nodes))
            await b.change(b.config.neighbours, IDENTITIES[1])  # somebody who has the old key
            of_a, _, of_c = await together(*nodes)
            assert of_a.missing == {"p1": Rejection.DEAD}
            assert not of_c.missing, "where it is still pinned"
            assert not {*of_a.missing.values(), *of_c.missing.values()} & VIOLATIONS

    simulated(scenario())


@contextlib.contextmanager
def newcomer(tmp_path: Path, net: MemoryNetwork, around: list[int]) -> Iterator[Peer]:
    edges = [(4, other) for other in around]
    config = Config(name="p4", run="r", neighbours=neighbours(4, edges), deadlines=replace(FAST, join=1.0))
    config = replace(config, folder=tmp_path / "p4")
    peer = Peer(
        config,
        IDENTITIES[4],
        transport=lambda: MemoryTransport(net, IDENTITIES[4], config.neighbours),
        round=5,
    )
    try:
        yield peer
    finally:
        peer.close(linger=False)


@pytest.mark.parametrize("heard", [4, 3, 2])
def test_a_newcomer_starts_between_the_models_of_the_regular_ones(
    tmp_path: Path, heard: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Of four neighbours one is Byzantine; with two of four heard it would be half of them."""
    net = MemoryNetwork()
    edges = [(4, other) for other in range(4)]
    with newcomer(tmp_path, net, [0, 1, 2, 3]) as peer:

        async def publish() -> list[Node]:
            nodes = [make_node(net, i, edges, rule="x") for i in range(heard)]
            for node in nodes:
                node.rule = "clipped-gossip radius=1.0"
                node.config = replace(node.config, deadlines=replace(FAST, join=0.01))
                await node.start()
                value = 1e30 if node.config.name == "p0" else float(node.config.name[1:])
                node.round = 10**9 if node.config.name == "p0" else 7
                await node.publish(torch.full((LENGTH,), value))
            return nodes

        peer._run(publish())
        if heard < 3:
            with pytest.raises(PeerError, match="2 of 4 neighbours sent a model; a newcomer needs 3"):
                peer.first_vector(LENGTH)
            peer.close(linger=False)
            gc.collect()
            assert "never retrieved" not in caplog.text, "nothing but the error is said"
            return
        model = nn.Linear(LENGTH - 1, 1)
        peer.enter(model)
        found = tensors.flatten(tensors.trainable(model))
        assert 1 <= found.min() <= found.max() <= 3
        assert peer.round == 5, "whatever rounds the others claim"
        assert peer.node is not None
        assert not peer.node.outbox._messages, "it has served nothing yet"


# --- commands and files ----------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    template = Config(name="t", run="r", rule={"name": "krum", "faulty": 1})
    write_network([(0, 1), (0, 2), (0, 3)], 4, tmp_path / "net", template)
    return tmp_path / "net" / "0"


def watched(folder: Path) -> Membership:
    return Membership(load(folder), identity.load(folder))


def test_a_running_peer_notices_what_changed(folder: Path) -> None:
    files, mark = watched(folder), identity.create().fingerprint
    assert files.changed() is None
    membership.add(folder, "new", "127.0.0.1:7", mark.hex())
    change = files.changed()
    assert change is not None
    assert [n.name for n in change.config.neighbours] == ["1", "2", "3", "new"]
    assert files.changed() is None
    membership.add(folder, "new", "127.0.0.1:8", mark.hex())
    membership.remove(folder, "2")
    change = files.changed()
    assert change is not None
    assert [str(n.address)[-2:] for n in change.config.neighbours][-1] == ":8"
    made = membership.make_next_key(folder)
    assert files.changed() is None, "made, not used"
    assert membership.use_next_key(folder).fingerprint == made.fingerprint
    change = files.changed()
    assert change is not None
    assert change.identity.fingerprint == made.fingerprint
    assert (folder / "key.pem").stat().st_mode & 0o777 == 0o600
    assert not (folder / membership.NEXT_KEY).exists()


def test_the_key_of_a_neighbour_is_no_key_of_ones_own(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = watched(folder)
    for name in ("key.pem", "certificate.pem"):
        shutil.copy(folder.with_name("1") / name, folder / name)
    assert files.changed() is None
    assert "is that of 1, a neighbour" in caplog.records[-1].__dict__["why"]
    with pytest.raises(PeerError, match=r"is that of 1, a neighbour of this peer\nrestore key\.pem"):
        watched(folder)


def test_what_its_owner_wrote_stays(folder: Path) -> None:
    path = folder / "peer.toml"
    head, near = path.read_text().split("[[neighbours]]", 1)
    path.write_text(f"# mine\n{head}# of the links\n[deadlines]\nleast = 3  # slow\n\n[[neighbours]]{near}")
    before = load(folder)
    membership.add(folder, "new", "127.0.0.1:7", "ab" * 32)
    membership.remove(folder, "1")
    membership.rekey(folder, "2", "cd" * 32)
    text = path.read_text()
    assert all(comment in text for comment in ("# mine", "# of the links", "least = 3  # slow"))
    after = load(folder)
    assert [n.name for n in after.neighbours] == ["2", "3", "new"]
    assert after.neighbours[0].former == before.neighbours[1].fingerprint
    assert replace(after, neighbours=()) == replace(before, neighbours=())


def test_a_new_key_that_was_mistyped_can_be_corrected(folder: Path) -> None:
    """The key that the neighbour uses stays valid, until it has shown a new one."""
    used, path = load(folder).neighbours[0].fingerprint, folder / "neighbours" / "1.pem"

    def rekey(mark: bytes, **options: bool) -> tuple[bytes, bytes]:
        found = membership.rekey(folder, "1", mark.hex(), **options).neighbours[0]
        return found.fingerprint, found.former

    new = identity.create()
    assert rekey(b"\xab" * 32) == (b"\xab" * 32, used)
    assert rekey(new.fingerprint) == rekey(new.fingerprint) == (new.fingerprint, used)
    assert rekey(used) == (used, b"")
    rekey(new.fingerprint)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(new.certificate.pem)  # it has shown the new one
    assert rekey(b"\xcd" * 32) == (b"\xcd" * 32, new.fingerprint)
    assert rekey(b"\xef" * 32, at_once=True) == (b"\xef" * 32, b"")


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "\0",
        lambda text: text.replace("fingerprint", "fingerprnt"),
        lambda text: text[: text.index("[[neighbours]]")],
        lambda text: text.replace('name = "1"', 'name = "2"'),
        None,
    ],
    ids=["torn", "no TOML", "unknown key", "nobody left", "a name twice", "gone"],
)
def test_a_running_peer_keeps_what_it_has_when_a_file_is_wrong(
    folder: Path, damage: Callable[[str], str] | None, caplog: pytest.LogCaptureFixture
) -> None:
    files, path = watched(folder), folder / "peer.toml"
    good = path.read_text()
    path.unlink()
    if damage is not None:
        path.write_text(damage(good))
    assert files.changed() is None
    assert "change is not taken" in caplog.text
    path.write_text(good)
    assert files.changed() is None
    membership.add(folder, "new", "127.0.0.1:7", "ab" * 32)
    assert files.changed() is not None, "and it goes on looking"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["add", "1", "127.0.0.1:7", "ab" * 32], "use `peer rekey 1"),
        (["add", "x", "127.0.0.1:7", "MARK2"], "shares its fingerprint"),
        (["add", "x", "nowhere", "ab" * 32], "host:port"),
        (["remove", "7"], "unknown neighbour '7'"),
        (["remove", "1"], "needs at least 3 neighbours"),
        (["rekey", "7", "ab" * 32], "unknown neighbour '7'"),
        (["rekey", "1", "beef"], "64 hex digits"),
        (["rekey", "1", "MARK2"], "shares its fingerprint"),
        (["rekey", "1", "OWN"], "this peer itself"),
        (["rekey", "2", "MARK2"], "pinned already"),
        (["add", "x", "PLACE", "ab" * 32], "shares its address with this peer or another"),
        (["add", "x", "PLACE2", "ab" * 32], "shares its address with this peer or another"),
        (["new-key", "FOLDER", "--use"], "there is no new key"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_change_is_refused_before_anything_is_touched(
    folder: Path, capsys: pytest.CaptureFixture[str], command: list[str], message: str
) -> None:
    words = {"MARK2": load(folder).neighbours[1].fingerprint.hex(), "FOLDER": str(folder)}
    words["OWN"] = identity.load(folder).fingerprint.hex()
    words["PLACE"] = f"localhost:{load(folder).bind.port}"
    words["PLACE2"] = str(load(folder).neighbours[1].address)
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    where = [] if command[0] == "new-key" else ["--dir", str(folder)]
    with take(folder), pytest.raises(SystemExit) as ended:
        main(["peer", *(words.get(word, word) for word in command), *where])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert message in said
    assert len(said.strip().splitlines()) <= 2
    (folder / "lock").unlink()
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before


def test_the_network_of_a_file_has_its_neighbours(folder: Path) -> None:
    path = folder / "peer.toml"
    table = '[network]\nedges = [[0, 1], [0, 2], [0, 3]]\nweights = "equal"\n'
    path.write_text(path.read_text().replace("[[neighbours]]", f"{table}\n[[neighbours]]", 1))
    with take(folder), pytest.raises(UserError, match="no neighbour of 0 in the"):
        membership.add(folder, "new", "127.0.0.1:7", "ab" * 32)
    with take(folder):
        membership.rekey(folder, "2", "ab" * 32)
        membership.remove(folder, "3")
    assert [n.name for n in load(folder).neighbours] == ["1", "2"]


def test_a_member_comes_into_a_network_with_a_schedule(folder: Path) -> None:
    """Node 3 of a matching has no links at first; everyone writes them into its file, and node 0 adds it."""
    path, table = folder / "peer.toml", '[network]\nedges = {}\nschedule = {{name = "random-matching"}}\n'
    before, after = "[[0, 1], [0, 2], [1, 2]]", "[[0, 1], [0, 2], [1, 2], [0, 3], [1, 3]]"
    text = path.read_text().replace("[[neighbours]]", f"{table.format(before)}\n[[neighbours]]", 1)
    path.write_text(text.replace('name = "krum"\nfaulty = 1', 'name = "gossip"'))
    mark = load(folder).neighbours[2].fingerprint
    membership.remove(folder, "3")
    files = watched(folder)
    path.write_text(path.read_text().replace(before, after))
    membership.add(folder, "3", "127.0.0.1:7", mark.hex())
    changed = files.changed()
    assert changed is not None

    async def scenario() -> None:
        old = replace(load(folder), network={**changed.config.network, "edges": json.loads(before)})
        node = Node(
            replace(old, neighbours=old.neighbours[:2]),
            IDENTITIES[0],
            MemoryTransport(MemoryNetwork(), IDENTITIES[0], old.neighbours),
            length=LENGTH,
            rule="gossip",
        )
        heard = {name for round in range(40) for name in node.rounds.weights(round)}  # type: ignore[union-attr]  # this peer has a schedule
        assert heard == {"1", "2"}
        await node.change(changed.config.neighbours, IDENTITIES[0], changed.config.network)
        for round in range(40):
            node.round = round
            assert float(node.weights().sum()) <= 1
            heard |= {n.name for n in node._heard_in(round)}
        assert heard == {"1", "2", "3"}

    asyncio.run(scenario())


def equivocate(folder: Path, them: identity.Identity, round: int = 0, run: str = "r") -> None:
    """The peer in a folder sees two models of one round."""
    seen = Evidence(folder / "evidence", run)
    for body in (b"aaaa", b"bbbb"):
        said = wire.Expected(run=run, dtype="float32", length=1)
        header = wire.make_header(them, said, wire.Stamp(bytes(16), round), body)
        seen.see(header, them.certificate, "1")


def test_a_convicted_neighbour_gets_no_new_key(folder: Path) -> None:
    equivocate(folder, identity.load(folder.parent / "1"))
    with pytest.raises(UserError, match="a new key undoes nothing"):
        membership.rekey(folder, "1", "ab" * 32)


def test_proofs_against_one_leave_room_for_another_and_name_them(folder: Path) -> None:
    for round in range(30):
        equivocate(folder, identity.load(folder.parent / "1"), round)
    equivocate(folder, identity.load(folder.parent / "2"))
    equivocate(folder, identity.load(folder.parent / "1"), run="the next run")
    files = [*(folder / "evidence").iterdir()]
    assert len(files) == 12
    names = [re.findall(r"key of (\w)\.", peer("evidence", path)) for path in files]
    assert sorted(names) == [*[["1"]] * 11, ["2"]]
    shutil.copy(files[0], folder.parent.parent / "proof.json")
    assert "two different models" in peer("evidence", folder.parent.parent / "proof.json")


def test_who_removes_the_last_neighbour_is_told_so(folder: Path) -> None:
    text = (folder / "peer.toml").read_text()
    (folder / "peer.toml").write_text(text.replace('name = "krum"\nfaulty = 1', 'name = "gossip"'))
    said = [peer("remove", name, "--dir", folder) for name in ("1", "2", "3")]
    assert said[-1] == "3 is no neighbour any more; 0 neighbours; pin one before the next start\n"


# --- real processes --------------------------------------------------------------------------------------

TEMPLATE = Config(
    name="t",
    run="r",
    checkpoint_every=5,
    deadlines=Deadlines(least=1.0, most=5.0, join=20.0, linger=0.0),
    data=DataConfig(samples=400, test_samples=100),
    model=ModelConfig("linear"),
    training=TrainingConfig(rounds=10**6, lr=0.05, evaluate_every=5),
)


def peer(*arguments: object) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), pytest.raises(SystemExit) as ended:
        main(["peer", *map(str, arguments)])
    assert not ended.value.code
    return said.getvalue()


def until(what: Callable[[], Any], why: str, seconds: float = 120.0) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := what():
            return found
        time.sleep(0.1)
    raise AssertionError(f"{why} did not happen in {seconds} s")


def round_of(folder: Path) -> int:
    return int((read_status(folder) or {}).get("round", 0))


def exchanges(folder: Path, *names: str) -> bool:
    """Whether it has just used messages of these neighbours and has no others."""
    links = (read_status(folder) or {}).get("links", {})
    return set(links) == set(names) and all(links.values())


def known_key(folder: Path, name: str) -> str:
    certificate = identity.read_certificate((folder / "neighbours" / f"{name}.pem").read_bytes())
    return identity.format_fingerprint(certificate.fingerprint)


def has_key(folder: Path, name: str, mark: str) -> bool:
    return known_key(folder, name) == mark


def records(folder: Path) -> list[dict[str, Any]]:
    (path,) = (folder / "runs").glob("*/records.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_real_peers_add_remove_and_change_keys_without_restarting(tmp_path: Path) -> None:
    net = tmp_path / "net"
    write_network(TRIANGLE, 4, net, TEMPLATE)
    ann, bea, cid, eve = (net / str(i) for i in range(4))
    pids: list[int] = []
    with LocalNetwork(read_network(net)[:3]) as peers, contextlib.ExitStack() as stack:
        peers.start("0", "1", "2")
        until(lambda: min(map(round_of, (ann, bea, cid))) > 20, "the first rounds")
        pids = [p.pid or 0 for p in peers.processes.values()]

        for a, b in ((ann, eve), (bea, eve), (eve, ann), (eve, bea)):
            mark = identity.load(b).fingerprint.hex()
            peer("add", b.name, load(b).bind, mark, "--dir", a)
        begin = round_of(ann)
        command = [sys.executable, "-m", "clippedgossip", "peer", "start", str(eve), "--enter", str(begin)]
        late = stack.enter_context(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
        stack.callback(late.terminate)
        until(lambda: exchanges(eve, "0", "1") and round_of(eve) > begin + 10, "the newcomer's rounds")
        until(lambda: exchanges(ann, "1", "2", "3") and exchanges(bea, "0", "2", "3"), "its neighbours'")
        evaluated = next(r for r in records(eve) if "mean_accuracy" in r)
        assert evaluated["round"] >= begin
        assert evaluated["mean_accuracy"] > 0.6, "it did not start from zero"

        peer("remove", "2", "--dir", ann)
        until(lambda: exchanges(ann, "1", "3"), "the removal")
        until(lambda: (read_status(cid) or {})["links"] == {"0": False, "1": True}, "and cid's loss of ann")

        mark = peer("new-key", bea).split()[1]
        for folder in (ann, cid, eve):
            peer("rekey", "1", mark, "--dir", folder)
        peer("new-key", bea, "--use")
        now = time.time()
        shown = bea / "status.json"
        until(lambda: shown.stat().st_mtime > now + 1 and exchanges(bea, "0", "2", "3"), "the new key")
        for folder in (ann, cid, eve):
            until(partial(has_key, folder, "1", mark), "the new certificate")
        until(lambda: exchanges(ann, "1", "3") and exchanges(eve, "0", "1"), "exchange under the new key")

        good = (ann / "peer.toml").read_text()
        (ann / "peer.toml").write_text(good[:-40])
        until(lambda: "change is not taken" in (ann / "log.jsonl").read_text(), "the refusal")
        then = round_of(ann)
        until(lambda: round_of(ann) > then + 5 and exchanges(ann, "1", "3"), "its further rounds")
        (ann / "peer.toml").write_text(good)

        assert [p.pid for p in peers.processes.values()] == pids
        assert len(peers.alive()) == 3, "nobody was restarted"
        peers.processes["0"].terminate()
        peers.processes["0"].join(20)
        stopped = round_of(ann)
        peers.configs["0"] = load(ann)
        peers.start("0")
        until(lambda: round_of(ann) > stopped + 5, "the rounds after a restart")
    named = [record["neighbours"] for record in records(ann) if "neighbours" in record]
    assert named == [["1", "2"], ["1", "2", "3"], ["1", "3"], ["1", "3"]], "one run, before and after"
    numbers = [record["round"] for record in records(ann)]
    assert numbers == list(range(len(numbers)))
    for folder in (ann, bea, cid, eve):
        assert not list((folder / "evidence").glob("*"))
    for folder in (ann, cid):
        reasons = (read_status(folder) or {})["reasons"].values()
        assert not {reason for counts in reasons for reason in counts} & {str(v) for v in VIOLATIONS}
