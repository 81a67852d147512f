"""The live page: who may ask for it, what it says of peers and runs, and what cannot harm it."""

import json
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch

import clippedgossip as cg
from clippedgossip.cli import main
from clippedgossip.errors import UserError
from clippedgossip.peer.local_network import prepared, running, write_network
from clippedgossip.peer.peer_config import Config
from clippedgossip.peer.peer_folder import take
from clippedgossip.peer.rejection import Rejection
from clippedgossip.settings import DataConfig, ModelConfig, TrainingConfig
from clippedgossip.watch import live_page
from clippedgossip.watch.live_page import Door, Server, watched_in
from clippedgossip.watch.records_tail import POINTS, RECENT, Tail
from clippedgossip.watch.watched import Watched
from tests.watch.browser import chromium, wait

MARKUP = "<img src=x onerror=window.harmed=1>"
SMALL = Config(
    name="t",
    run="watched",
    data=DataConfig(samples=60, test_samples=20),
    model=ModelConfig("linear"),
    training=TrainingConfig(rounds=100_000, evaluate_every=5),
    witness=True,
)


def network(out: Path, nodes: int = 4) -> Path:
    write_network(nx.complete_graph(nodes).edges, nodes, out, SMALL)
    return out


def written(folder: Path, rounds: list[dict[str, Any]], /, **status: Any) -> None:
    """What a peer would have written."""
    now = time.time()
    run = folder / "runs" / "a-run"
    run.mkdir(parents=True, exist_ok=True)
    (run / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in rounds))
    (run / "config.json").write_text(json.dumps({"misbehave": ""}))
    said = {"peer": folder.name, "round": len(rounds), "rounds": 100, "time": now, "round_time": now}
    said |= {"records": "a-run", "exchanged": {}, "reasons": {}} | status
    (folder / "status.json").write_text(json.dumps(said))


def record(round: int, **more: Any) -> dict[str, Any]:
    distances = {"1": 0.5, "2": 0.6, "3": 9.0}
    return {"round": round, "distances": distances, "seconds": 0.1, "deadline": 2.0, "missing": 0} | more


@contextmanager
def served(watched: Watched, **options: Any) -> Iterator[Server]:
    server = Server(watched, **{"port": 0, **options})
    with server.beside(patience=0):
        yield server


def ask(door: Door, path: str = "/state", method: str = "GET", **headers: str) -> tuple[HTTPResponse, bytes]:
    connection = HTTPConnection("127.0.0.1", door.port, timeout=20)
    connection.putrequest(method, path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    return answer, answer.read()


def test_only_this_machine_by_name_and_only_to_read(tmp_path: Path) -> None:
    with served(watched_in([network(tmp_path / "net")])) as server:
        door = server.door
        assert not door.token
        good, body = ask(door)
        assert (good.status, json.loads(body)["nodes"]) == (200, ["0", "1", "2", "3"])
        assert good.headers["Access-Control-Allow-Origin"] is None
        assert good.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert "script-src 'self'" in good.headers["Content-Security-Policy"]
        for host in (f"localhost:{door.port}", "127.0.0.1", f"[::1]:{door.port}", f"127.0.0.1:{door.port}"):
            assert ask(door, Host=host)[0].status == 200, host
        for host in (
            "evil.example",
            f"evil.example:{door.port}",
            "",
            "127.0.0.1.evil.example",
            "192.0.2.1",
            "[",
        ):
            assert ask(door, Host=host)[0].status == 421, host
        foreign, _ = ask(door, Origin="http://evil.example")
        assert foreign.headers["Access-Control-Allow-Origin"] is None
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
            assert ask(door, method=method)[0].status == 405, method
        for path in (
            "/../../etc/passwd",
            "/%2e%2e/%2e%2e/etc/passwd",
            "//etc/passwd",
            "/live.html",
            "/0/key.pem",
        ):
            assert ask(door, path)[0].status == 404, path
        assert ask(door, "/state?node=../../../etc")[0].status == 200
        assert ask(door, "/state?node=" + "x" * 60_000)[0].status in (200, 400, 414)


def test_elsewhere_a_token_is_needed(tmp_path: Path) -> None:
    with served(watched_in([network(tmp_path / "net")]), host="0.0.0.0") as server:
        door = server.door
        assert len(door.token) >= 32
        assert door.url.endswith(f"?token={door.token}")
        for path in ("/", "/state", "/live.js", "/?token=", "/?token=wrong", f"/state?token={door.token}"):
            answer, body = ask(door, path)
            assert answer.status == 403, path
            assert b"watched" not in body
        assert ask(door, "/", Cookie=f"{door.cookie}=é")[0].status == 403
        answer, _ = ask(door, f"/?token={door.token}")
        cookie = answer.headers["Set-Cookie"]
        assert (answer.status, answer.headers["Location"]) == (303, "/")
        assert "HttpOnly" in cookie
        assert "samesite=strict" in cookie.lower()
        assert ask(door, Cookie=cookie.partition(";")[0])[0].status == 200
        assert ask(door, Cookie=cookie.partition(";")[0], Host="evil.example")[0].status == 421


def test_slow_and_silent_clients_do_not_stop_the_page(tmp_path: Path) -> None:
    with served(watched_in([network(tmp_path / "net")])) as server, ExitStack() as stack:
        for i in range(40):
            slow = stack.enter_context(socket.create_connection(("127.0.0.1", server.door.port)))
            slow.sendall(b"GET /state HTTP/1.1\r\nHost: 127.0.0.1\r\n" + (b"" if i % 2 else b"\r\n"))
        assert ask(server.door)[0].status == 200
        large = stack.enter_context(socket.create_connection(("127.0.0.1", server.door.port)))
        large.settimeout(20)
        large.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"x" * 100_000)
        assert large.recv(100).startswith(b"HTTP/1.1 400")
        for _ in range(60):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.door.port)))
        deadline = time.monotonic() + 10
        while ask(server.door)[0].status != 503 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert ask(server.door)[0].status == 503
    # `beside` has ended although all those connections were open


def test_connections_that_ask_nothing_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing at all, half a request, or half of a second one."""
    monkeypatch.setattr(live_page, "SILENCE", 0.5)
    half, whole = b"GET /live.css HTTP/1.1\r\n", b"GET /live.css HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with served(watched_in([network(tmp_path / "net")])) as server, ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.door.port), timeout=10))
            for _ in range(3 * live_page.CONNECTIONS)
        ]
        for i, connection in enumerate(silent):
            with suppress(OSError):  # one too many
                connection.sendall((b"", half, whole + half)[i % 3])
        for connection in silent:
            with suppress(ConnectionResetError):
                while connection.recv(1 << 16):
                    pass
        assert ask(server.door)[0].status == 200


def test_ten_thousand_rounds_are_a_few_hundred_points(tmp_path: Path) -> None:
    net = network(tmp_path / "net")
    for name in "0123":
        written(net / name, [record(i, neighbour_distance=1 / (i + 1), missing=1) for i in range(10_000)])
    watched = watched_in([net])
    state = watched.look("")
    (records,) = (net / "2").rglob("records.jsonl")
    with records.open("r+b") as file:
        file.write(b"spoilt")
    assert watched.look("")["charts"] == state["charts"], "what is known is not read again"
    assert len(json.dumps(state)) < 400_000
    distances = state["charts"][1]["lines"]
    assert [line["name"] for line in distances] == [f"peer {name}" for name in "0123"]
    points = distances[0]["points"]
    assert POINTS / 2 <= len(points) <= POINTS
    assert points[-1][0] == 9999
    assert points[-1][1] == pytest.approx(1e-4, rel=0.05)  # a mean of the last rounds
    assert state["charts"][3]["lines"][0]["points"][5][1] == 1, "means, not sums"
    assert len(state["detail"][1]["rows"]) == RECENT


def test_a_tail_follows_what_is_written_cut_back_and_damaged(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    tail = Tail(lambda record: {"x": record.get("x")})

    def curve(text: str, how: str = "a") -> list[tuple[int, float]]:
        with path.open(how) as file:
            file.write(text)
        tail.follow(path)
        return tail.curve("x")

    assert curve('{"round": 0, "x": 1}\n{"round": 1, "x"') == [(0, 1.0)], "half a line waits"
    assert curve(": 2}\n") == [(0, 1.0), (1, 2.0)]
    assert curve('{"round": 2, "x": NaN}\n{"round": 3}\n{"round": 4, "x": "5"}\n') == [(0, 1.0), (1, 2.0)]
    assert tail.damaged == 0
    curve('nonsense\n[]\n{"round": "5"}\n' + "[" * 100_000 + '\n{"round": 5, "x": 1' + 400 * "0" + "}\n")
    assert tail.damaged == 5
    longer = "".join(f'{{"round": {i}, "x": 7}}\n' for i in range(300))
    assert curve(longer, "w") == [(i, 7.0) for i in range(300)], "cut back, and grown beyond what was read"
    assert tail.damaged == 0
    curve('{"round": 300, "pad": "' + "y" * (3 << 20) + '"}\n{"round": 301, "x": 8}\n')
    assert (tail.damaged, tail.curve("x")[-1]) == (1, (301, 8.0))
    path.unlink()
    tail.follow(path)
    tail.follow(None)
    assert not tail.curve("x")


def test_states_links_and_alarms_of_peers(tmp_path: Path) -> None:
    net = network(tmp_path / "net")
    now = time.time()
    reasons = {"2": {"malformed": 3, "backed off": 2}}
    last = record(6, reasons={"2": "backed off"}, other_rounds={"1": 5}, rejected=1, clipped_to={"3": 0.1})
    old = {"1": now + 60, "2": None, "3": now - 600}
    with take(net / "0"):
        written(net / "0", [last], exchanged=old, reasons=reasons, rejected=3, convicted=["2"])
        written(net / "1", [record(0)], finished=True)
        written(net / "2", [record(0)], time=now - 700, round_time=now - 600)
        state = watched_in([net]).look("0")
        assert state["facts"][0] == "4 peers: 1 running, 1 finished, 1 stopped, 1 never started."
        links = {(link["to"], link["from"]): link["health"] for link in state["network"]["links"]}
        assert links["0", "1"] == "good"
        assert links["0", "2"] == "rejected"
        assert links["0", "3"] == "clipped"
        assert links["2", "0"] == "off"
        assert state["detail"][0]["rows"] == [
            ["1", ("used, of round 5", "good"), "0 s ago", "0.5", "none"],
            ["2", ("backed off", "bad"), "never", "0.6", "malformed 3, backed off 2"],
            ["3", ("used, clipped", "warn"), "10 min ago", "9", "none"],
        ]
        assert state["alarms"] == [
            "Peer 0 has a proof that 2 signed two models for one round.",
            "Peer 0 rejects or ignores what 2 sends: malformed 3.",
            "Peer 0 used a message of 3 last 10 min ago.",
            "Peer 2: stopped 10 min ago.",
        ]
        assert [row[1] for row in state["tables"][0]["rows"]][2] == ("stopped 10 min ago", "bad")


@pytest.mark.parametrize(
    "damage",
    [
        {"round": [1], "reasons": {"1": {"late": "x"}}, "exchanged": {"1": "x"}, "links": 3},
        {"records": "../../..", "convicted": [{"a": 1}], "rounds": True, "time": "x", "score": "high"},
        {"reasons": {"1": 3}, "round_time": None, "records": 7, "equivocations": None, "metric": 3},
        {"clipped": 10**400, "round_time": 10**400, "exchanged": {"1": -(10**400)}},
    ],
)
def test_damaged_files_are_shown_as_far_as_they_are_sound(tmp_path: Path, damage: dict[str, Any]) -> None:
    net = network(tmp_path / "net")
    written(net / "0", [record(0, reasons=[], distances={"1": {}}, accuracy=3, other_rounds="x")])
    watched = watched_in([net])
    watched.look("0")
    written(net / "0", [record(1, neighbour_distance="far", clipped=[], reasons={"1": {}})], **damage)
    json.dumps(watched.look("0"), allow_nan=False)
    (net / "0" / "status.json").write_text("{")
    state = watched.look("0")
    assert state["alarms"] == ["Peer 0: its status file is damaged."]
    (net / "0" / "peer.toml").write_text("nonsense")
    assert watched.look("0")["nodes"] == ["0", "1", "2", "3"], "the last sound config stays"


def test_the_metric_is_whatever_the_task_has(tmp_path: Path) -> None:
    net = network(tmp_path / "net")
    loss = {"metric": "perplexity", "lower_is_better": True, "perplexity": {"all": 12.5}}
    said = {"metric": "perplexity", "score": 12.5, "higher_is_better": False}
    written(net / "0", [record(0) | loss], **said)
    state = watched_in([net]).look("0")
    first = state["charts"][0]
    assert (first["title"], first["percent"]) == ("Perplexity on the test set; less is better", False)
    assert first["lines"][0]["points"] == [(0, 12.5)]
    assert state["tables"][0]["columns"][3] == state["detail"][1]["columns"][1] == "Perplexity"
    assert state["tables"][0]["rows"][0][3] == state["detail"][1]["rows"][0][1] == "12.5"


def test_a_peer_that_is_added_appears(tmp_path: Path) -> None:
    net = network(tmp_path / "net", 3)
    more = network(tmp_path / "more", 4)
    watched = watched_in([net])
    assert watched.look("")["nodes"] == ["0", "1", "2"]
    for name in "0123":
        shutil.copytree(more / name, net / name, dirs_exist_ok=True)
    state = watched.look("")
    assert state["nodes"] == ["0", "1", "2", "3"]
    assert len(state["network"]["links"]) == 12


def test_mistakes_are_two_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net = network(tmp_path / "net")
    busy = socket.create_server(("127.0.0.1", 0))
    (tmp_path / "empty").mkdir()
    damaged = tmp_path / "damaged"
    shutil.copytree(net, damaged)
    (damaged / "2" / "status.json").write_text("{")
    cases = {
        f"cannot listen on 127.0.0.1, port {busy.getsockname()[1]}: Address already in use": [
            str(net),
            "--port",
            str(busy.getsockname()[1]),
        ],
        f"{tmp_path / 'nowhere'} is no folder": [str(tmp_path / "nowhere")],
        f"no peer.toml in {tmp_path / 'empty'} or its folders": [str(tmp_path / "empty")],
        f"{damaged / '2' / 'status.json'} is damaged": [str(damaged)],
        "the token has 5 characters": [str(net), "--token", "short"],
        "cannot listen on 'not a host'": [str(net), "--host", "not a host"],
        "cannot listen on 192.0.2.1, port 0": [str(net), "--host", "192.0.2.1"],
        "two peers are called '0'": [str(net), str(damaged / "0")],
    }
    (damaged / "0" / "status.json").unlink(missing_ok=True)
    with busy:
        for message, arguments in cases.items():
            with pytest.raises(SystemExit) as ended:
                main(["peer", "watch", *arguments])
            said = capsys.readouterr().err
            assert ended.value.code == 2, said
            assert said.startswith(f"error: {message}"), said
            assert len(said.splitlines()) == 2, said


def test_without_a_port_a_free_one_is_taken(tmp_path: Path) -> None:
    watched = watched_in([network(tmp_path / "net")])
    with served(watched, port=None) as first, served(watched, port=None) as second:
        assert first.door.port != second.door.port
        assert ask(second.door)[0].status == 200


def test_the_page_explains_every_reason() -> None:
    page = (Path(sys.modules[Server.__module__].__file__ or "").parent / "live.html").read_text()
    assert {reason.value for reason in Rejection} <= set(re.findall(r"<dt>(.*?)</dt>", page))


def test_the_script_makes_no_markup_of_texts() -> None:
    script = (Path(sys.modules[Server.__module__].__file__ or "").parent / "live.js").read_text()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Function\(", script)


def test_texts_of_peers_stay_texts_in_a_browser(tmp_path: Path) -> None:
    net = network(tmp_path / "net")
    bad = record(0, reasons={MARKUP: MARKUP, "1": MARKUP, "2": "late"}, other_rounds={MARKUP: MARKUP})
    with take(net / "0"), chromium() as driver:
        written(net / "0", [bad], convicted=[MARKUP], reasons={"1": {MARKUP: 3}})
        with served(watched_in([net])) as server:
            driver.get(f"{server.door.url}")
            text = wait(driver, lambda text: "live, updated" in text)
            assert MARKUP in text
            assert driver.execute_script("return document.images.length + document.scripts.length") == 1
            assert driver.execute_script("return window.harmed") is None
            # Another origin's script may send requests; it cannot read what comes.
            driver.get("data:text/html,<title>elsewhere</title>")
            read = "fetch(arguments[0]).then(a => a.text()).then(arguments[1], e => arguments[1]('' + e))"
            assert "TypeError" in driver.execute_async_script(
                read, f"http://127.0.0.1:{server.door.port}/state"
            )
            opaque = read.replace("arguments[0]", "arguments[0], {mode: 'no-cors'}", 1)
            assert "TypeError" in driver.execute_async_script(
                opaque, f"http://127.0.0.1:{server.door.port}/state"
            )


@pytest.mark.slow
def test_ten_thousand_rounds_are_quick_in_a_browser(tmp_path: Path) -> None:
    net = network(tmp_path / "net", 8)
    for name in map(str, range(8)):
        written(net / name, [record(i, neighbour_distance=1 / (i + 1), clipped=0.5) for i in range(10_000)])
    with served(watched_in([net])) as server, chromium(width=390) as driver:
        driver.get(server.door.url)
        wait(driver, lambda text: "live, updated" in text)
        assert driver.execute_script("return document.documentElement.scrollWidth") <= 390
        cut = """const box = document.getElementById("network").getBoundingClientRect();
        const texts = [...document.querySelectorAll("#network text")].map((t) => t.getBoundingClientRect());
        return [texts.length, texts.filter((t) => t.left < box.left - 1 || t.right > box.right + 1)];"""
        assert driver.execute_script(cut) == [8, []]
        measure = """const state = await (await fetch("state")).json(), began = performance.now();
        draw(state); document.body.getBoundingClientRect(); return performance.now() - began;"""
        times = [driver.execute_script(measure) for _ in range(5)]
        assert min(times) < 250, f"drawing took {times} ms"


@pytest.mark.slow
def test_real_peers_one_of_which_is_byzantine_in_a_browser(tmp_path: Path) -> None:
    net = network(tmp_path / "net", 5)
    lies = {"4": "equivocation", "3": "garbage"}
    configs = [replace(c, witness=True) for c in prepared(net, rounds=None, misbehave=lies, resume=False)]
    with ExitStack() as stack:
        peers = stack.enter_context(running(configs))
        command = [sys.executable, "-m", "clippedgossip", "peer", "watch", str(net), "--port", "0"]
        page = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        stack.callback(page.terminate)
        assert page.stdout is not None
        url = page.stdout.readline().strip()
        driver = stack.enter_context(chromium())
        driver.get(url)
        text = wait(driver, lambda text: "has a proof that 4" in text and "5 running" in text, 120)
        assert "made Byzantine: garbage" in text
        assert "what 3 sends: malformed" in text
        assert "clippedgossip peer evidence" in text
        rounds = int(re.findall(r"Rounds done: (\d+)", text)[0])
        wait(driver, lambda text: int(re.findall(r"Rounds done: (\d+)", text)[0]) > rounds + 5)
        proof = next((net / "0" / "evidence").glob("*.json"))
        assert subprocess.run([*command[:4], "evidence", str(proof)], check=False).returncode == 0

        peers.processes["1"].kill()
        wait(driver, lambda text: "Peer 1: stopped" in text and "4 running, 1 stopped" in text)
        driver.find_element("css selector", "g[aria-label^='2:']").click()
        wait(driver, lambda text: "What peer 2 receives" in text)
        assert not driver.get_log("browser")
        page.terminate()
        wait(driver, lambda text: "No answer" in text)


def test_a_run_whose_network_is_in_no_file_here(tmp_path: Path) -> None:
    """That of `cg.train` never was in one; a graph file stays where it is, and its copy may be gone."""
    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    data = (x, (x[:, 0] > 0).long()) * 2
    given = cg.Network(nx.cycle_graph(4), byzantine=[1])
    own = cg.train(
        given, data, "linear", rule="gossip", attack="alie", rounds=3, batch=4, device="cpu", out=tmp_path
    )
    own.finish()
    assert own.path is not None
    graph = tmp_path / "three.csv"
    graph.write_text("a,b\nb,c\nc,a\n")
    config = tmp_path / "run.toml"
    config.write_text(
        'network = {file = "three.csv"}\nrule = "gossip"\nmodel = "linear"\n'
        'data = {name = "digits", samples = 60}\ntraining = {rounds = 3, batch = 4}\n'
    )
    with suppress(SystemExit):
        main(["run", str(config), "--out", str(tmp_path / "files"), "--device", "cpu"])
    (there,) = (tmp_path / "files").iterdir()
    for folder, attack in ((own.path, " Attack: alie."), (there, "")):
        state = watched_in([folder]).look("")
        assert state["facts"][0] == "Finished: round 3 of 3."
        assert state["facts"][1].startswith("Network: ")
        assert state["facts"][2] == f"Rule: gossip.{attack}"
        assert state["network"]["nodes"] == []
        assert state["charts"][0]["lines"]
        assert folder.name.startswith(state["title"].removeprefix("Run "))


def test_a_run_and_its_end(tmp_path: Path) -> None:
    """The page of a run while it trains; what is asked for at its end shows it finished."""
    config = Path(__file__).parents[2] / "examples" / "ring.toml"
    command = [sys.executable, "-m", "clippedgossip", "run", str(config), "--out", str(tmp_path), "--watch"]
    command += ["training.rounds=30", "training.evaluate_every=2", "data.samples=200"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        url = next(line for line in process.stderr if line.startswith("live page: ")).split()[-1]
        door = Door("127.0.0.1", int(url.rstrip("/").rpartition(":")[2]))
        facts, states = [], []
        while process.poll() is None:
            try:
                states.append(json.loads(ask(door)[1]))
            except OSError:
                break
            facts.append(states[-1]["facts"][0])
            time.sleep(0.1)
    assert process.returncode == 0
    assert facts[-1] == "Finished: round 30 of 30."
    assert any(node["byzantine"] for node in states[-1]["network"]["nodes"])
    assert states[-1]["charts"][0]["lines"][0]["name"] == "average of all"
    (run,) = tmp_path.glob("*/config.json")
    later = watched_in([run.parent]).look("")
    assert json.loads(json.dumps(later["charts"])) == states[-1]["charts"]


def test_a_short_token_is_refused_before_anything_listens(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="16"):
        Server(watched_in([network(tmp_path / "net")]), token="0" * 15)
