"""Clients that begin requests and do not go on with them, on sockets of their own."""

from __future__ import annotations

import socket
import threading
import time
from functools import partial

import pytest
import uvicorn

from ninfer_serve import connection
from ninfer_serve.connection import HEAD_BYTES, Connection

GET = b"GET /health HTTP/1.1\r\nHost: x\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
PATIENCE_S = 0.5


@pytest.fixture
def engine(kit):
    return kit.ScriptedEngine()


@pytest.fixture
def failures():
    """What the app has failed with."""
    return []


@pytest.fixture
def connect(make_app, engine, failures, monkeypatch):
    """``() -> socket`` to a server that has little patience."""
    monkeypatch.setattr(connection, "PATIENCE_S", PATIENCE_S)
    made = make_app("ninfer_serve.openai.routes:routes", engine=engine)

    async def app(scope, receive, send):
        try:
            await made.app(scope, receive, send)
        except Exception as error:
            failures.append(error)

    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(
        app, http=Connection, ws="none", lifespan="off", log_level="critical"))
    thread = threading.Thread(target=partial(server.run, sockets=[listener]), daemon=True)
    thread.start()
    yield partial(socket.create_connection, listener.getsockname(), timeout=10)
    server.should_exit = True
    thread.join(10)


def all_of(client):
    """What comes until the server closes the connection."""
    found = b""
    try:
        while data := client.recv(1 << 16):
            found += data
    except ConnectionError:
        pass
    return found


@pytest.mark.parametrize("begun", [
    b"", b"\r\n", b"GET /he", GET + b"X-A", POST + b"Content-Length: 9\r\n\r\n{",
    POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab",
], ids=["nothing", "blank", "line", "header", "body", "chunk"])
@pytest.mark.parametrize("is_second", [False, True], ids=["first", "second"])
def test_what_is_not_gone_on_with_is_closed(connect, begun, is_second):
    with connect() as client:
        if is_second:
            client.sendall(GET + b"\r\n")
            assert client.recv(1 << 16)
        begin = time.monotonic()
        client.sendall(begun)
        if begun or not is_second:  # an idle connection is kept longer
            all_of(client)
            assert PATIENCE_S / 2 < time.monotonic() - begin < 4


def test_a_head_that_comes_byte_by_byte_has_no_more_time(connect):
    begin = time.monotonic()
    with connect() as client, pytest.raises(ConnectionError):
        client.sendall(GET + b"X-A: ")
        while time.monotonic() - begin < 10:
            client.sendall(b"a")
            time.sleep(0.05)
    assert time.monotonic() - begin < 5


def test_a_body_that_goes_on_has_all_the_time_it_takes(connect):
    with connect() as client:
        body = b'{"prompt": "hello!"}'
        client.sendall(POST + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body))
        for at in range(len(body)):
            time.sleep(PATIENCE_S / 8)
            client.sendall(body[at : at + 1])
        assert b" 200 OK" in all_of(client)


def test_requests_may_follow_each_other(connect):
    with connect() as client:
        for _ in range(3):
            client.sendall(GET + b"\r\n")
            assert b" 200 OK" in client.recv(1 << 16)
            time.sleep(PATIENCE_S * 1.5)
        client.sendall(3 * (GET + b"\r\n") + GET + b"Connection: close\r\n\r\n")
        assert all_of(client).count(b" 200 OK") == 4


def test_who_leaves_with_requests_behind_the_first(connect, engine, failures, kit):
    engine.script = kit.reply(*[each for _ in range(500) for each in ("a", 0.01)])
    with connect() as client:
        body = b'{"prompt": "a", "stream": true}'
        client.sendall(2 * (POST + b"Content-Length: %d\r\n\r\n" % len(body) + body))
        assert b" 200 OK" in client.recv(1 << 16)
    end = time.monotonic() + 10
    while engine.running:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert engine.cancelled == [1] and not failures


LONG = b"a" * (1 << 20)


@pytest.mark.parametrize("sent", [
    b"GET /" + LONG, GET + b"X-A: " + LONG, GET + b"X: 1\r\n" * (1 << 18),
    POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX-A: " + LONG,
    POST + b"Transfer-Encoding: chunked\r\n\r\n2;" + LONG,
], ids=["line", "header", "headers", "trailer", "extension"])
def test_heads_have_a_limit(connect, sent):
    with connect() as client:
        try:
            client.sendall(sent)
            client.sendall(b"\r\n\r\n")
        except ConnectionError:
            return
        assert b" 200 " not in all_of(client)


def test_a_long_head_is_read(connect):
    with connect() as client:
        value = b"a" * (HEAD_BYTES - 200)
        client.sendall(GET + b"Connection: close\r\nX-A: " + value + b"\r\n\r\n")
        assert b" 200 OK" in all_of(client)
