"""Frames, heartbeats by the wall clock, and what becomes of a stream whose reader leaves."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from itertools import count

import pytest
from litestar import Request, get, post
from litestar.response import Stream

from ninfer_serve.disconnect import until_gone
from ninfer_serve.sse import batched, dumps, event_stream, frame, with_error, with_heartbeat

BEAT = b": beat\n\n"


def test_frames_end_with_an_empty_line():
    assert frame(b"{}") == b"data: {}\n\n"
    assert frame(b"{}", "ping") == b"event: ping\ndata: {}\n\n"


@pytest.mark.parametrize(("value", "expected"), [
    ({"a": "é\n🦊"}, '{"a":"é\\n🦊"}'), ({"a": "x\ud83d"}, '{"a": "x\ufffd"}'),
    ([2**70], f"[{2**70}]"),
])
def test_json_is_utf8_without_line_breaks(value, expected):
    assert dumps(value) == expected.encode()
    assert b"\n" not in dumps(value)


def test_frames_before_an_error_come_before_it():
    def failing():
        yield b"a"
        yield b"b"
        raise ValueError

    found, frames = [], batched(failing())
    with pytest.raises(ValueError):
        for each in frames:
            found.append(each)
    assert found == [b"ab"]
    assert ([*batched([])], [*batched([b"a", b"b"])]) == ([], [b"ab"])


def collect(frames):
    async def run():
        return [each async for each in frames]

    return asyncio.run(run())


async def paced(*steps, closed=None):
    try:
        for step in steps:
            if isinstance(step, bytes):
                yield step
            else:
                await asyncio.sleep(step)
    finally:
        if closed is not None:
            closed.append(True)


def test_silence_is_filled_with_beats():
    closed = []
    frames = collect(with_heartbeat(paced(b"1", 0.25, b"2", b"3", closed=closed), BEAT, 0.1))
    assert frames == [b"1", BEAT, BEAT, b"2", b"3"]
    assert closed == [True]


def test_no_beat_without_silence():
    frames = paced(*[b"x", 0.02] * 10)
    assert collect(with_heartbeat(frames, BEAT, 0.1)) == [b"x"] * 10


def test_the_time_that_the_reader_of_a_frame_takes_is_no_silence():
    async def run():
        found = []
        async for each in with_heartbeat(paced(b"1", b"2", 0.15, b"3"), BEAT, 0.1):
            found.append(each)
            await asyncio.sleep(0.25)
        return found

    assert asyncio.run(run()) == [b"1", b"2", b"3"]


def test_a_beat_is_made_behind_the_frames_before_it_and_before_those_after_it():
    """Both take numbers from one counter."""
    numbers = count()

    async def frames():
        for _ in range(4):
            await asyncio.sleep(0.03)
            yield b"%d" % next(numbers)

    found = collect(with_heartbeat(frames(), lambda: b"%d" % next(numbers), 0.01))
    assert [*map(int, found)] == [*range(len(found))] and len(found) > 8


@pytest.mark.parametrize("taken", [1, 2])
def test_closing_the_heartbeat_closes_what_it_reads(taken):
    closed = []

    async def run():
        frames = with_heartbeat(paced(b"1", 60, b"2", closed=closed), BEAT, 0.05)
        for _ in range(taken):
            await anext(frames)
        await frames.aclose()
        assert closed == [True]

    asyncio.run(run())


async def failing(error):
    yield b"1"
    raise error


def test_a_failure_is_the_last_frame():
    told = with_error(failing(ValueError("x")), lambda error: repr(error).encode())
    assert collect(told) == [b"1", b"ValueError('x')"]
    found = []

    async def run():
        async for each in with_heartbeat(failing(ValueError("x")), BEAT, 1):
            found.append(each)

    with pytest.raises(ValueError):
        asyncio.run(run())
    assert found == [b"1"]


class Watched:
    """What the routes below have begun and ended."""

    begun = ended = 0


def routes(service):
    @get("/stream")
    async def stream() -> Stream:
        async def frames():
            Watched.begun += 1
            try:
                yield frame(b"{}")
                while True:
                    await asyncio.sleep(0.01)
                    yield frame(b"x" * 100_000)
            finally:
                Watched.ended += 1

        return event_stream(with_heartbeat(frames(), BEAT, 1))

    @post("/silent", status_code=200)
    async def silent(request: Request) -> dict:
        async def work():
            Watched.begun += 1
            try:
                await asyncio.sleep(60)
            finally:
                Watched.ended += 1

        await request.body()
        await until_gone(request, work())
        return {}

    @post("/quick", status_code=200)
    async def quick(request: Request) -> dict:
        await request.body()
        return await until_gone(request, asyncio.sleep(0.05, {"done": True}))

    return [stream, silent, quick]


@pytest.fixture
def server(serve, monkeypatch):
    monkeypatch.setitem(sys.modules, "sse_routes", sys.modules[__name__])
    Watched.begun = Watched.ended = 0
    return serve("sse_routes:routes")


def connect(server, request: bytes) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    client = socket.create_connection((host, int(port)))
    client.sendall(request + b"\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
    return client


def wait_for(condition, limit_s=5.0):
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_headers_come_at_once(server):
    with server.client.stream("GET", "/stream") as answer:
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert answer.headers["cache-control"] == "no-cache"
        assert next(answer.iter_raw()).startswith(b"data: {}\n\n")


@pytest.mark.parametrize("path", [b"GET /stream HTTP/1.1", b"POST /silent HTTP/1.1"])
def test_what_a_client_that_leaves_has_begun_ends(server, path):
    for _ in range(5):
        client = connect(server, path)
        begun = Watched.begun
        wait_for(lambda begun=begun: Watched.begun > begun or Watched.begun > Watched.ended)
        client.close()
    wait_for(lambda: Watched.ended == Watched.begun == 5)


def test_a_reader_that_stops_reading_and_then_leaves(server):
    client = connect(server, b"GET /stream HTTP/1.1")
    wait_for(lambda: Watched.begun == 1)
    time.sleep(0.5)  # far more than the buffers take
    client.close()
    wait_for(lambda: Watched.ended == 1)


def test_who_waits_gets_the_answer(server):
    assert server.client.post("/quick", json={}).json() == {"done": True}
