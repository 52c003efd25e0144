"""What is written of requests: numbers, never their texts."""

from __future__ import annotations

import json
import logging

import pytest

from ninfer_core.api import CapacityError, ConfigError, RequestError
from ninfer_core.engine.request import Finished, Reuse, Timings, Usage
from ninfer_serve.outcome import Outcome
from ninfer_serve.request_log import LogLines, RequestLog

SECRET = "the text of a prompt"
END = Finished(
    "stop-token", Usage(100, 20, 9, 6, (3, 2, 1), 3, 1), Timings(0.5, 1.5, 36, 2.0, 19, 2, 9),
    tuple(range(20)), None, None, Reuse(64, "turn", "host", 64, SECRET, SECRET, 1, 7),
)
FAILED = Finished("error", Usage(5, 0), Timings(0, 0, 0, 0, 0, 0, 0), (),
                  cause=RequestError("no", why=SECRET, fix="wait"))
DONE = Outcome("req_1", "abc", 2, (END, FAILED), 0.01, 2.0, 4.0, {"effort": "low"})
LEFT = Outcome("req_2", "def", 1, (), 0.01, None, 1.0)


@pytest.fixture
def told():
    """``(observer)`` hears of one request of each kind."""

    def tell(observer):
        observer.done(DONE)
        observer.done(LEFT)
        observer.refused("req_3", CapacityError("too many", why=SECRET))

    return tell


def test_the_request_log_has_a_line_of_numbers_for_each(told, tmp_path):
    path = tmp_path / "log.jsonl"
    log = RequestLog(path)
    told(log)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["event"] for line in lines] == [
        "server_start", "request_done", "request_done", "request_refused"]
    done, left, refused = lines[1:]
    assert all(line["time_ms"] > 1.7e12 for line in lines)
    assert (done["request_id"], done["answer_id"], done["effort"]) == ("req_1", "abc", "low")
    assert (done["first_s"], done["total_s"], done["left"], left["left"]) == (2, 4, False, True)
    first, second = done["choices"]
    assert (first["finish"], first["reused_tokens"], first["reuse_kind"]) == (
        "stop-token", 64, "turn")
    assert (first["accepted_at"], first["replayed_tokens"]) == ([3, 2, 1], 7)
    assert (second["finish"], second["error"]) == ("error", "RequestError")
    assert refused["status"] == 429 and refused["code"] == "server_overloaded"
    assert SECRET not in path.read_text()
    log.close()
    RequestLog(path).close()
    assert len(path.read_text().splitlines()) == 5


def test_a_log_that_cannot_be_written(tmp_path):
    with pytest.raises(ConfigError, match="request log"):
        RequestLog(tmp_path / "nowhere" / "log")
    log = RequestLog(tmp_path / "log")
    log._file.close()
    log._file = open("/dev/full", "w")  # noqa: SIM115
    log.done(DONE)


def test_the_log_tells_in_a_line_each(told, caplog):
    caplog.set_level(logging.INFO, "ninfer_serve")
    told(LogLines())
    first = caplog.messages[0]
    assert first.startswith("req_1: stop-token; 100 tokens in (64 reused), 20 out; waited 0.50 s")
    assert "9.5 tok/s" in first and "effort low" in first
    assert caplog.messages[1].startswith(f"req_1: failed, no: {SECRET} to fix: wait; 5 tokens in")
    assert [record.levelname for record in caplog.records[:2]] == ["INFO", "WARNING"]
    assert len(caplog.messages) == 4
    assert "req_2: its client left after 1.00 s" in caplog.messages
    assert "req_3: refused with 429, server_overloaded" in caplog.messages
