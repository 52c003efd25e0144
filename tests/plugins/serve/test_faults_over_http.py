"""Clients that leave, crowds, deadlines and lost engines, as clients of each dialect meet them."""

from __future__ import annotations

import json
import logging
import re
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest

from ninfer_core.api import CapacityError, NInferError, QueueTimeoutError
from ninfer_core.engine.request import Finished, Reading, Started, TextDelta, Timings, Usage
from ninfer_serve.request_log import LogLines
from ninfer_serve.service import EngineGone

ROUTES = {
    "/v1/chat/completions": "ninfer_serve.openai.routes:routes",
    "/v1/responses": "ninfer_serve.responses.routes:routes",
    "/v1/messages": "ninfer_serve.anthropic.routes:routes",
}
HELLO = [{"role": "user", "content": "hello"}]


def body_of(path, **fields):
    if path == "/v1/responses":
        return {"model": "tiny", "input": "hello", "store": False, **fields}
    return {"model": "tiny", "messages": HELLO, "max_tokens": 50, **fields}


@pytest.fixture
def server(serve):
    """All dialects; at most three at once."""
    return serve(*ROUTES.values(), max_pending=3)


def until(condition, limit_s=10):
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def leave(server, path, fields, condition):
    """Send a request, and close the connection when ``condition`` holds."""
    host, port = server.url.removeprefix("http://").split(":")
    body = json.dumps(body_of(path, **fields)).encode()
    with socket.create_connection((host, int(port))) as client:
        client.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
                       .encode() + body)
        until(condition)


def is_idle(server):
    return server.engine.running == 0 and server.service.pending == 0


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("fields", [{}, {"stream": True}], ids=["whole", "stream"])
@pytest.mark.parametrize("moment", ["queued", "reading", "writing"])
def test_who_leaves_frees_the_place(server, path, fields, moment):
    events = [Started(END.reuse, 0.0), Reading(1), TextDelta("content", "a")]
    events, sent = events[: {"queued": 0, "reading": 2, "writing": 3}[moment]], []

    def script(request):
        for event in events:
            sent.append(event)
            yield event
        yield 60

    server.engine.script = script
    for _ in range(20):
        leave(server, path, fields, lambda: server.engine.running and len(sent) == len(events))
        until(lambda: is_idle(server))
        sent.clear()
    assert len(server.engine.cancelled) == 20


END = Finished("deadline", Usage(3, 2), Timings(0, 0, 3, 0, 2, 1, 1), (1, 2))


def ending(cause=None, reason="error", text=""):
    """A script that ends so."""
    def script(request):
        yield Started(END.reuse, 0.0)
        if text:
            yield TextDelta("content", text)
        yield Finished(reason, END.usage, END.timings, (), None, cause)

    return script


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(("script", "status"), [
    (ending(reason="deadline"), 504), (ending(QueueTimeoutError("waited"), "deadline"), 503),
    (ending(EngineGone("there is no engine")), 503), (ending(NInferError("kernel")), 500),
    (ending(RuntimeError("secret")), 500), (ending(reason="cancelled"), 503),
])
def test_what_fails_has_a_status_and_in_a_stream_an_event(server, path, script, status):
    server.engine.script = script
    answer = server.client.post(path, json=body_of(path))
    assert answer.status_code == status
    assert answer.json()["error"]["message"]
    assert ("retry-after" in answer.headers) == (status == 503)
    streamed = server.client.post(path, json=body_of(path, stream=True))
    assert streamed.status_code == 200
    assert '"error"' in streamed.text or "response.failed" in streamed.text
    assert "secret" not in answer.text + streamed.text
    until(lambda: is_idle(server))


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_is_in_the_log_once(serve, caplog, path, stream):
    server = serve(*ROUTES.values(), observers=[LogLines()])
    server.engine.script = ending(NInferError("kernel"), text="a")
    server.client.post(path, json=body_of(path, stream=stream))
    until(lambda: is_idle(server))
    [record] = (each for each in caplog.records if each.levelno >= logging.WARNING)
    assert "failed, kernel; 3 tokens in (0 reused), 2 out" in record.message


def test_a_choice_that_fails_fails_the_whole_answer(server, kit):
    chat = "/v1/chat/completions"
    scripts = [kit.reply("a", 30.0, "b"), ending(NInferError("kernel"), text="c")]
    server.engine.script = scripts[:]
    answer = server.client.post(chat, json=body_of(chat, n=2))
    assert (answer.status_code, "kernel" in answer.text) == (500, True)
    server.engine.script = scripts[:]
    streamed = server.client.post(chat, json=body_of(chat, n=2, stream=True))
    *_, failure, done = kit.events_of(streamed.text)
    assert "kernel" in failure[1]["error"]["message"] and done == ("", "[DONE]")
    until(lambda: is_idle(server))


def test_a_crowd_is_told_to_come_again(server, kit):
    """Of ten, three are taken; five leave, and one more runs."""
    server.engine.script = kit.reply(0.5, "a")
    with ThreadPoolExecutor(10) as threads:
        chat = "/v1/chat/completions"
        jobs = [threads.submit(server.client.post, chat, json=body_of(chat)) for _ in range(10)]
        answers = [job.result() for job in jobs]
    statuses = sorted(answer.status_code for answer in answers)
    assert statuses == [200] * 3 + [429] * 7
    assert all(a.headers["retry-after"] for a in answers if a.status_code == 429)
    overloaded = server.engine
    overloaded.refusal = CapacityError("too many requests")
    assert server.client.post("/v1/messages", json=body_of("/v1/messages")).status_code == 529
    overloaded.refusal, overloaded.script = None, kit.reply("b")
    assert server.client.post(chat, json=body_of(chat)).status_code == 200


def test_health_while_it_drains(server):
    server.service.draining = True
    assert server.client.get("/health").json() == {"status": "stopping"}
    answer = server.client.post("/v1/messages", json=body_of("/v1/messages"))
    assert answer.status_code == 503


def test_the_dialect_of_the_documents(serve, monkeypatch):
    text = (Path(__file__).parents[3] / "docs/serving.md").read_text()
    [code] = re.findall(r"```python\n(def routes.*?)```", text, re.DOTALL)
    module = ModuleType("documented")
    exec("from litestar import Request, post\n"
         "from ninfer_core.engine.request import TextDelta\n"
         "from ninfer_serve.body import read_body\n"
         "from ninfer_serve.serve_request import ServeRequest\n" + code, vars(module))
    monkeypatch.setitem(sys.modules, "documented", module)
    client = serve("documented:routes").client
    assert client.post("/v1/shout", json={"text": "hi"}).json() == {"text": "HELLO"}
