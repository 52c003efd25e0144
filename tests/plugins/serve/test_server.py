"""The whole server as a process, on a tiny model: start, load, faults, end."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from ninfer_serve.cli import main
from ninfer_serve.server import is_of_this_machine, listen

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


class Server:
    """``ninfer-serve`` on a free port; `log` is what it has said on stderr so far."""

    def __init__(self, words):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ninfer_serve.cli", "--port", "0", *words],
            stderr=subprocess.PIPE, text=True)
        self.log, self._reads = [], threading.Thread(target=self._read, daemon=True)
        self._reads.start()

    def _read(self):
        for line in self.process.stderr:
            self.log.append(line)

    def wait_for(self, words, limit_s=60):
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            for line in self.log:
                if words in line:
                    return line
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise AssertionError("".join(self.log))

    def connect(self):
        url = self.wait_for("serving ").split()[-1]
        self.client = httpx.Client(base_url=url, timeout=60, trust_env=False)
        return self

    @property
    def engine(self):
        """Its pid."""
        [pid] = children(self.process.pid)
        return pid

    def end(self, number=signal.SIGTERM, limit_s=20):
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(limit_s)
        self._reads.join(5)
        return code


def children(pid):
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(each) for each in path.read_text().split()] if path.exists() else []


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def until(condition, limit_s=15):
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def start(tiny_plugins, tiny_model):
    """``(*words) -> Server``, which is started and need not be ready."""
    servers = []

    def start(*words, model=tiny_model):
        plugins = [word for module in tiny_plugins for word in ("--plugin", module)]
        servers.append(Server([
            *plugins, "--profile", "skeleton_profile", "--max-context", "512",
            "--max-concurrency", "8", "--model", str(model), *words,
        ]))
        return servers[-1]

    yield start
    for each in servers:
        each.process.kill()
        each.process.wait()


def body(max_tokens=8, **fields):
    return {"prompt": "hello", "max_tokens": max_tokens, "ignore_eos": True, **fields}


def test_it_serves_and_a_signal_ends_it_when_all_is_answered(start, tmp_path):
    log = tmp_path / "requests.jsonl"
    server = start("--request-log", str(log), "--model-name", "tiny").connect()
    client, engine = server.client, server.engine
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/v1/models").json()["data"][0]["id"] == "tiny"
    with ThreadPoolExecutor() as threads:
        last = threads.submit(client.post, "/v1/completions", json=body(400))
        until(lambda: (client.get("/v1/status").json()["engine"] or {}).get("running"))
        server.process.send_signal(signal.SIGTERM)
        assert last.result().json()["usage"]["completion_tokens"] == 400
    assert server.end() == 0
    assert not is_alive(engine)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["event"] for line in lines] == ["server_start", "request_done"]
    assert lines[1]["choices"][0]["output_tokens"] == 400
    assert "hello" not in log.read_text() + "".join(server.log)


@pytest.mark.parametrize("drain_s", ["60", "0.1"])
def test_what_does_not_end_is_cut_off(start, drain_s):
    """By a second signal, or when time is up."""
    server = start("--drain-s", drain_s).connect()
    with server.client.stream("POST", "/v1/completions", json=body(500, stream=True)) as answer:
        lines = answer.iter_lines()
        next(lines)
        os.kill(server.engine, signal.SIGSTOP)
        server.process.send_signal(signal.SIGINT)
        server.wait_for("stopping; 1 requests")
        if drain_s == "60":
            server.process.send_signal(signal.SIGINT)
            assert "the server is stopping" in "".join(lines)
        else:
            with pytest.raises(httpx.RemoteProtocolError):
                list(lines)
            server.process.send_signal(signal.SIGINT)
    assert server.end() == 0


def test_what_is_cut_off_is_told(start):
    server = start("--drain-s", "0.1").connect()
    with server.client.stream("POST", "/v1/completions", json=body(500, stream=True)) as answer:
        lines = answer.iter_lines()
        next(lines)
        os.kill(server.engine, signal.SIGSTOP)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("stopping; 1 requests")
        time.sleep(0.3)
        os.kill(server.engine, signal.SIGCONT)
        assert "the server is stopping" in "".join(lines)
    assert server.end() == 0
    assert "Traceback" not in "".join(server.log)


def test_a_killed_engine_under_load(start):
    """Every client gets an answer or a clear error, and the service is back within 10 s."""
    server = start("--heartbeat-s", "1").connect()
    client, stop, seen = server.client, threading.Event(), []

    def one_after_another(is_stream):
        while not stop.is_set():
            answer = client.post("/v1/completions", json=body(50, stream=is_stream))
            seen.append((time.monotonic(), answer.status_code, answer.text))

    with ThreadPoolExecutor(8) as threads:
        jobs = [threads.submit(one_after_another, index % 2 == 0) for index in range(8)]
        until(lambda: len(seen) >= 8)
        os.kill(server.engine, signal.SIGKILL)
        killed = time.monotonic()
        until(lambda: client.get("/health").status_code == 503)
        assert client.get("/health").headers["retry-after"]
        until(lambda: client.get("/health").status_code == 200)
        back = time.monotonic()
        until(lambda: any(at > back and status == 200 for at, status, _ in seen))
        stop.set()
        for job in jobs:
            job.result()
    assert back - killed < 10
    assert {status for _, status, _ in seen} <= {200, 503}
    for _, status, text in seen:
        whole = "[DONE]" in text or '"finish_reason"' in text
        assert whole or "error" in text, text
        assert status == 200 or "engine" in text
    lost = [text for at, _, text in seen if at > killed and "there is no engine" in text]
    assert lost
    assert server.end() == 0


def test_a_killed_server_leaves_no_engine(start):
    server = start().connect()
    engine = server.engine
    server.process.kill()
    until(lambda: not is_alive(engine), 5)


def test_a_reader_that_does_not_read_stops_nobody(start):
    server = start("--heartbeat-s", "1").connect()
    host, port = server.client.base_url.host, server.client.base_url.port
    text = json.dumps(body(500, stream=True))
    request = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(text)}\r\n\r\n"
    idle = []
    for _ in range(7):
        idle.append(socket.socket())
        idle[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        idle[-1].connect((host, port))
        idle[-1].sendall((request + text).encode())
    for _ in range(5):
        answer = server.client.post("/v1/completions", json=body(20))
        assert answer.json()["usage"]["completion_tokens"] == 20
    for each in idle:
        each.close()
    assert server.end() == 0


@pytest.fixture
def own_log():
    """What a command makes of the process's log ends with the test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], logging.getLogger("ninfer_serve").level
    yield
    root.handlers[:] = handlers
    logging.getLogger("ninfer_serve").setLevel(level)


@pytest.mark.usefixtures("own_log")
@pytest.mark.parametrize(("words", "said"), [
    (("--vision",), "no plugin reads images"), (("--threads", "0"), "threads"),
    (("--model", "nothing.ninfer"), "there is no such model"),
    (("--api-keys-file", "/nowhere"), "API keys"), (("--spec", "nothing"), "--spec nothing"),
    (("--request-log", "/nowhere/log"), "request log"), (("--host", "256.0.0.1"), "cannot listen"),
    (("--port", "taken"), "cannot listen"),
])
def test_what_keeps_it_from_starting_is_said(tiny_plugins, tiny_model, capsys, words, said):
    plugins = [word for module in tiny_plugins for word in ("--plugin", module)]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = [str(taken.getsockname()[1]) if word == "taken" else word for word in words]
        first = ["--port", "0", "--model", str(tiny_model), "--profile", "skeleton_profile"]
        assert main([*first, *plugins, *words]) == 1
    err = capsys.readouterr().err
    assert "error: " in err and said in err


def test_a_signal_while_it_loads(start):
    server = start()
    until(lambda: children(server.process.pid), 30)
    engine = server.engine
    assert server.end() in (0, 143)
    until(lambda: not is_alive(engine), 5)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_the_open_door_is_warned_of(start, host):
    server = start("--host", host)
    assert "anybody may use the model" in server.wait_for("WARNING")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1", "localhost", "::1"])
def test_a_door_to_this_machine_alone_is_not(host):
    with listen(host, 0) as listener:
        assert is_of_this_machine(listener)


def test_strangers_names_are_not_answered(start):
    """Unless there is a key, which no stranger has."""
    for words, status in ((), 403), (("--api-key", "k"), 200):
        client = start(*words).connect().client
        answer = client.get("/health", headers={"Host": "evil.example"})
        assert answer.status_code == status


def test_a_head_without_end_is_not_kept(start):
    client = start().connect().client
    with suppress(httpx.TransportError):
        answer = client.get("/health", headers={"X-A": "a" * (1 << 20)})
        assert answer.status_code == 400
    assert client.get("/health").status_code == 200
