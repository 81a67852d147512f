"""What is ready to deploy: the container, the three members, the unit, the dashboard and the alerts."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from clippedgossip.cli.app import app
from clippedgossip.peer.local_network import free_ports
from clippedgossip.peer.peer_config import load
from clippedgossip.peer.rejection import VIOLATIONS, Rejection
from clippedgossip.peer.telemetry import Metrics

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMMANDS = typer.main.get_command(app)
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
ALERTS = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"][0]["rules"]
DASHBOARD = json.loads((DEPLOY / "grafana.json").read_text())


def parses(words: list[str]) -> None:
    """Fails where a command or an option is not there."""
    command: Any = COMMANDS
    while isinstance(command, typer.core.TyperGroup):
        command = command.commands[words.pop(0)]
    command.make_context(command.name, list(words))


def tool(name: str, why: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(why)
    return found


def test_the_commands_of_the_container_and_the_unit_exist() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    entry, start, health = (
        json.loads(re.findall(rf"^{word}.* (\[.*\])$", text, re.MULTILINE)[0])
        for word in ("ENTRYPOINT", "CMD", "HEALTHCHECK")
    )
    for words in ([*entry, *start], health):
        assert words[0] == "clippedgossip"
        parses(words[1:])
    unit = (DEPLOY / "clippedgossip-peer@.service").read_text()
    for line in re.findall(r"^ExecStart=\S+/clippedgossip (.+)$", unit, re.MULTILINE):
        parses(line.split())


def test_the_container_copies_all_that_an_installation_needs(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for line in re.findall(r"^COPY (.+) \S+$", (DEPLOY / "Containerfile").read_text(), re.MULTILINE):
        for name in line.split():
            (source / name).symlink_to(ROOT / name)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    done = subprocess.run(build, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_members_start_what_exists() -> None:
    services = COMPOSE["services"]
    assert {"ann", "bea", "cid", "watch", "folders"} <= services.keys()
    for name, service in services.items():
        if "build" in service:
            assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert source in COMPOSE["volumes"] or (DEPLOY / source).is_file(), source
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), "nothing but peers is reachable from outside"
        if service["image"] == "clippedgossip" and name != "folders":
            parses(list(service["command"]))
            test = service["healthcheck"].get("test")
            if test is not None:
                assert test[:2] == ["CMD", "clippedgossip"]
                assert test[-1].endswith(f"/{name}")
                parses(test[2:])
    scraped = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"][0]
    port = services["folders"]["environment"]["METRICS"].rpartition(":")[2]
    assert scraped["static_configs"][0]["targets"] == [f"{name}:{port}" for name in ("ann", "bea", "cid")]


def test_the_unit_is_one_for_systemd(tmp_path: Path) -> None:
    analyze = tool("systemd-analyze", "no systemd-analyze: apt-get install systemd")
    unit = tmp_path / "clippedgossip-peer@.service"
    text = (DEPLOY / unit.name).read_text()
    unit.write_text(text.replace("/opt/clippedgossip/bin/clippedgossip", sys.executable))
    done = subprocess.run([analyze, "verify", str(unit)], capture_output=True, text=True, check=False)
    assert not [line for line in done.stderr.splitlines() if "clippedgossip" in line], done.stderr
    assert done.returncode == 0, done.stderr


def test_prometheus_takes_the_rules_and_every_alert_can_fire() -> None:
    promtool = tool("promtool", "no promtool: apt-get install prometheus")
    for command in (["check", "config", "prometheus.yml"], ["test", "rules", "alerts_test.yml"]):
        done = subprocess.run([promtool, *command], cwd=DEPLOY, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_document_explains_every_alert() -> None:
    page = (ROOT / "docs" / "running.md").read_text()
    assert re.findall(r"^\| ([A-Z]\w+) \|", page, re.MULTILINE) == [rule["alert"] for rule in ALERTS]
    panels = " ".join(panel["description"] for panel in DASHBOARD["panels"])
    shown = {name for name in (rule["alert"] for rule in ALERTS) if name in panels}
    assert {rule["alert"] for rule in ALERTS} - shown == {"PeerDown"}


def test_the_reasons_in_alerts_are_reasons() -> None:
    named = [re.findall(r'reason=~?"(.+?)"', rule["expr"]) for rule in ALERTS]
    reasons = {reason for found in named for text in found for reason in text.split("|")}
    assert reasons == {reason.value for reason in VIOLATIONS} | {Rejection.REFUSED.value}


def named() -> set[str]:
    """The metrics in alerts and dashboard."""
    queries = [rule["expr"] for rule in ALERTS]
    queries += [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    queries.append(DASHBOARD["templating"]["list"][1]["query"]["query"])
    return {name for query in queries for name in re.findall(r"\b(?:clippedgossip|process)_\w+", query)}


def names_in(text: str) -> set[str]:
    """The metrics that are exported, also those without a value yet."""
    typed = re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE)
    return {*typed, *re.findall(r"^(\w+)", text, re.MULTILINE)}


def test_every_metric_that_is_named_is_one_of_a_peer() -> None:
    from prometheus_client import generate_latest

    assert len(named()) > 15
    assert named() <= names_in(generate_latest(Metrics(dict).registry).decode())


def test_the_score_is_exported_with_its_metric_and_direction() -> None:
    from prometheus_client import generate_latest

    status = {"metric": "perplexity", "score": 12.5, "higher_is_better": False, "links": {"bea": True}}
    text = generate_latest(Metrics(lambda: status).registry).decode()
    assert 'clippedgossip_score{better="lower",metric="perplexity"} 12.5' in text
    assert 'clippedgossip_link_up{neighbour="bea"} 1.0' in text


def prometheus_answers(folder: Path, address: str) -> None:
    """A real Prometheus scrapes a peer, evaluates all rules, and has an answer to every panel's query that
    needs no hour of history."""
    config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(DEPLOY / "alerts.yml")]
    config["scrape_configs"][0]["static_configs"] = [{"targets": [address]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_ports(1)[0]
    command = ["prometheus", f"--config.file={folder / 'prometheus.yml'}"]
    command += [f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}"]

    def ask(path: str, **query: str) -> Any:
        url = f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=20) as answer:
            return json.load(answer)["data"]

    def value(query: str) -> list[Any]:
        found: list[Any] = ask("query", query=query)["result"]
        return found

    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 60
        rules: list[Any] = []
        enough = "count_over_time(clippedgossip_round[1m]) > 3"  # rates need some
        while not rules or any(rule["health"] == "unknown" for rule in rules):
            assert time.monotonic() < until
            time.sleep(1)
            with contextlib.suppress(OSError):
                rules = ask("rules")["groups"][0]["rules"] if value(enough) else []
        assert {rule["health"] for rule in rules} == {"ok"}, rules
        assert len(rules) == len(ALERTS)
        assert not [rule["name"] for rule in rules if rule["state"] == "firing"]
        (score,) = value("clippedgossip_score")
        assert score["metric"]["better"] == "higher"
        assert 0 <= float(score["value"][1]) <= 1
        for panel in DASHBOARD["panels"]:
            for target in panel["targets"]:
                query = target["expr"].replace("$peer", ".*").replace("$__rate_interval", "5s")
                assert value(query) or "reason" in query, (panel["title"], query)
    finally:
        server.terminate()
        server.wait(30)


@pytest.mark.slow
def test_a_first_network_runs_and_exports_every_metric_that_is_named(tmp_path: Path) -> None:
    """The script that makes the folders of the three members, and the members themselves, on loopback."""
    names, ports = ("ann", "bea", "cid"), free_ports(4)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "METRICS": "127.0.0.1:0"}
    script = ["sh", str(DEPLOY / "first-network.sh"), str(tmp_path), "first-run"]
    script += [f"{name}=localhost:{port}" for name, port in zip(names, ports, strict=False)]
    subprocess.run(script, env=environment, check=True, capture_output=True)
    made = [load(tmp_path / name) for name in names]
    assert [(config.node, config.nodes, config.degree) for config in made] == [(i, 3, 2) for i in range(3)]
    assert (
        "there already"
        in subprocess.run(script, env=environment, check=True, capture_output=True, text=True).stdout
    )
    assert [load(tmp_path / name) for name in names] == made

    start = [sys.executable, "-m", "clippedgossip", "peer", "start", "--rounds", "100000"]
    peers = [subprocess.Popen([*start, str(tmp_path / name)], stderr=subprocess.DEVNULL) for name in names]
    try:
        status: dict[str, Any] = {}
        until = time.monotonic() + 120
        while not (all(status.get("links", {}).values()) and status.get("round", 0) > 12):
            assert time.monotonic() < until, status
            time.sleep(0.2)
            if (tmp_path / "ann" / "status.json").exists():
                status = json.loads((tmp_path / "ann" / "status.json").read_text())
        with urllib.request.urlopen(f"http://{status['metrics']}/metrics", timeout=20) as answer:
            text = answer.read().decode()
        if shutil.which("prometheus"):
            prometheus_answers(tmp_path, status["metrics"])
    finally:
        for peer in peers:
            peer.terminate()
        assert [peer.wait(60) for peer in peers] == [0, 0, 0]
    assert named() <= names_in(text)
    values = dict(re.findall(r"^(\S+) (\S+)$", text, re.MULTILINE))
    sent = float(values['clippedgossip_sent_bytes_total{neighbour="bea"}'])
    received = float(values['clippedgossip_received_bytes_total{neighbour="bea"}'])
    rounds = float(values["clippedgossip_round"])
    assert sent == pytest.approx(received, rel=0.5)
    assert sent > 4 * 1000 * rounds / 2
    assert float(values['clippedgossip_messages_total{neighbour="bea"}']) <= rounds
    assert abs(float(values["clippedgossip_last_round_timestamp_seconds"]) - time.time()) < 120
    assert abs(float(values["clippedgossip_last_checkpoint_timestamp_seconds"]) - time.time()) < 120


@pytest.mark.slow
def test_the_container_is_built() -> None:
    """Needs a container tool that can reach a registry."""
    for name in ("podman", "docker"):
        if (
            shutil.which(name)
            and not subprocess.run([name, "info"], capture_output=True, check=False).returncode
        ):
            break
    else:
        pytest.skip("no container tool that works: neither `podman info` nor `docker info` succeeds")
    base = os.environ.get("CLIPPEDGOSSIP_TEST_BASE", "docker.io/library/python:3.12-slim")
    commands = (["pull", base], ["image", "inspect", base])
    if all(subprocess.run([name, *c], capture_output=True, check=False).returncode for c in commands):
        pytest.skip(f"{name} cannot fetch {base}")
    build = [
        name,
        "build",
        "-f",
        "deploy/Containerfile",
        "--build-arg",
        f"BASE={base}",
        "-t",
        "clippedgossip-test",
        ".",
    ]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    said = subprocess.run(
        [name, "run", "--rm", "clippedgossip-test", "--version"], capture_output=True, text=True, check=True
    )
    assert said.stdout.startswith("clippedgossip ")
