"""Members on machines of their own, which here are network namespaces: what the guide shows, to the end."""

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from clippedgossip.peer.telemetry import read_status
from tests.peer.test_command import COMMAND, here, machines
from tests.peer.test_membership import exchanges, has_key, records, round_of, until

PEOPLE = ["ann", "bea", "cid", "dee", "eve"]
ROUNDS = 400


class Member:
    """One participant: a machine, a folder, and what its owner types."""

    def __init__(self, machine: str, address: str, folder: Path, number: int) -> None:
        self.machine, self.address, self.folder = machine, address, folder
        self.name = folder.name
        self.process: subprocess.Popen[str] | None = None
        said = here("init", folder, "--name", self.name, "--bind", address, "--run", "digits-1")
        self.mark = re.search(r"fingerprint (\S+)", said)[1]  # type: ignore[index]  # None is a failure
        path = folder / "peer.toml"
        text = path.read_text().replace("node = 0", f"node = {number}").replace("nodes = 3", "nodes = 5")
        text = text.replace("rounds = 100", f"rounds = {ROUNDS}").replace('"mlp"', '"linear"')
        # Slow links, so that the run takes as long on every machine.
        text += "[limits]\nbytes_per_second = 30000\n[deadlines]\nleast = 2\nmost = 10\nlinger = 30\n"
        path.write_text(text)

    def edit(self, old: str, new: str) -> None:
        path = self.folder / "peer.toml"
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    def add(self, *others: "Member") -> None:
        for other in others:
            here("add", other.name, other.address, other.mark, "--dir", self.folder)

    def start(self, *options: str) -> None:
        inside = ["ip", "netns", "exec", self.machine, *COMMAND, "peer", "start", str(self.folder)]
        log = (self.folder / "said.txt").open("a")
        self.process = subprocess.Popen([*inside, "--json", *options], stdout=log, stderr=log, text=True)

    def ended(self) -> int:
        assert self.process is not None
        return self.process.wait(400)

    def last_words(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "said.txt").read_text().splitlines()[-1])
        return found


@contextlib.contextmanager
def members(names: list[str], addresses: list[str], folder: Path) -> Iterator[list[Member]]:
    found = [
        Member(name, f"{address.split('/')[0]}:7000", folder / person, number)
        for number, (name, address, person) in enumerate(zip(names, addresses, PEOPLE, strict=False))
    ]
    try:
        yield found
    finally:
        for member in found:
            if member.process is not None:
                member.process.kill()
                member.process.wait(5)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_five_members_from_init_to_the_end(tmp_path: Path) -> None:
    """Four begin, one of them Byzantine; one comes late, one leaves, one changes its key; three finish."""
    addresses = [f"10.78.0.{i}/24" for i in range(1, 6)]
    with machines(addresses) as names, members(names, addresses, tmp_path) as found:
        ann, bea, cid, dee, eve = found
        first = [ann, bea, cid, dee]
        for member in first:
            member.add(*(other for other in first if other is not member))
        dee.edit('run = "digits-1"', 'run = "digits-1"\nmisbehave = "bit-flipping"')
        for member in first:
            member.start()
        until(lambda: min(round_of(m.folder) for m in first) >= 40, "40 rounds", 200)
        assert "healthy" in here("health", ann.folder)

        for member in (ann, bea, cid):
            member.add(eve)
        eve.add(ann, bea, cid)
        eve.start("--enter", str(round_of(ann.folder)))
        until(lambda: exchanges(eve.folder, "ann", "bea", "cid"), "the newcomer's exchange", 200)
        until(lambda: exchanges(ann.folder, "bea", "cid", "dee", "eve"), "ann's exchange with it", 100)
        came = until(lambda: evaluated(eve.folder), "the newcomer's first evaluation", 100)
        assert came[0]["mean_accuracy"] > 0.7, "it started from its neighbours' models"

        assert cid.process is not None
        pid = json.loads((cid.folder / "status.json").read_text())["pid"]
        os.kill(pid, signal.SIGTERM)
        assert cid.ended() == 0
        for member in (ann, bea, eve, dee):
            here("remove", "cid", "--dir", member.folder)
        until(lambda: exchanges(ann.folder, "bea", "dee", "eve"), "cid's removal", 100)

        new = here("new-key", bea.folder).split()[1]
        for member in (ann, eve, dee):
            here("rekey", "bea", new, "--dir", member.folder)
        here("new-key", bea.folder, "--use")
        for folder in (ann.folder, eve.folder):
            until(partial(has_key, folder, "bea", new), "bea's new key", 100)
        until(lambda: exchanges(ann.folder, "bea", "dee", "eve"), "exchange under the new key", 100)

        last = [ann, bea, eve]
        for member in last:
            assert member.ended() == 0, (member.folder / "said.txt").read_text()[-2000:]
            said = member.last_words()
            assert said["rounds"] == ROUNDS
            assert said["score"] > 0.85
            numbers = [record["round"] for record in records(member.folder)]
            assert numbers == list(range(numbers[0], ROUNDS)), "one run, every round once"
            assert not list((member.folder / "evidence").glob("*"))


def evaluated(folder: Path) -> list[dict[str, Any]]:
    return [record for record in records(folder) if "mean_accuracy" in record]


@contextlib.contextmanager
def behind_a_router() -> Iterator[tuple[list[str], str]]:
    """Two machines, and the router between them."""
    with machines(["10.79.1.2/24", "10.79.2.2/24"]) as names:
        bridge = names[0][:-2]

        def ip(command: str) -> None:
            done = subprocess.run(["ip", *command.split()], capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"cannot make a router here: ip {command}: {done.stderr.strip()}")

        for i in (0, 1):
            ip(f"-n {bridge} link set v{i} nomaster")
            ip(f"-n {bridge} address add 10.79.{i + 1}.1/24 dev v{i}")
            ip(f"-n {names[i]} route add default via 10.79.{i + 1}.1")
        forward = "echo 1 > /proc/sys/net/ipv4/ip_forward"
        subprocess.run(["ip", "netns", "exec", bridge, "sh", "-c", forward], check=True)
        yield names, bridge


def flows(machine: str) -> set[int]:
    """Ports at the other end from the listening one, of TCP connections that are open."""
    text = subprocess.run(
        ["ip", "netns", "exec", machine, "cat", "/proc/net/tcp", "/proc/net/tcp6"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    ends = [re.findall(r": \w+:(\w{4}) \w+:(\w{4}) 01 ", line) for line in text.splitlines()]
    ports = [{int(port, 16) for port in found[0]} for found in ends if found]
    return {port for pair in ports if 7000 in pair for port in pair - {7000}}


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_flows_that_a_router_forgets_are_made_anew(tmp_path: Path) -> None:
    """Packets of the open connections vanish from now on, both ways; nobody closes them; new ones pass."""
    with (
        behind_a_router() as (names, router),
        members(names, ["10.79.1.2", "10.79.2.2"], tmp_path) as (ann, bea),
    ):
        ann.add(bea)
        bea.add(ann)
        for member in (ann, bea):
            member.edit(f"rounds = {ROUNDS}", "rounds = 1000000")
            member.start()
        until(lambda: min(round_of(ann.folder), round_of(bea.folder)) > 20, "20 rounds", 200)
        lost = flows(names[0])
        assert lost
        for port in lost:
            for side in ("sport", "dport"):
                rule = f"-n {router} rule add ipproto tcp {side} {port} blackhole"
                done = subprocess.run(["ip", *rule.split()], capture_output=True, text=True, check=False)
                if done.returncode:
                    pytest.skip(f"this kernel has no such rule: {done.stderr.strip()}")
        cut = time.time()

        def exchanged() -> float:
            rows = [read_status(member.folder) or {} for member in (ann, bea)]
            return min(then or 0.0 for row in rows for then in row.get("exchanged", {}).values())

        until(lambda: time.time() - exchanged() > 3, "the silence", 60)
        until(lambda: exchanged() > cut + 5, "new connections", 60)
        assert flows(names[0]) - lost, "they are new ones"
