"""A file with a line of JSON for each request: numbers and names, no texts and no secrets."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from ninfer_core.api import ConfigError
from ninfer_core.engine.request import Finished
from ninfer_serve.errors import status_of
from ninfer_serve.outcome import Outcome
from ninfer_serve.sse import dumps

_log = logging.getLogger(__name__)


class RequestLog:
    """An `Observer` that writes and flushes a line for each event.

    :raises ConfigError: if the file cannot be opened for appending.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._file: TextIO = path.open("a", encoding="utf-8")
        except OSError as error:
            what = "the request log cannot be written"
            raise ConfigError(what, where=str(path), why=str(error)) from error
        self.write("server_start", {})

    def done(self, outcome: Outcome) -> None:
        self.write("request_done", {
            "request_id": outcome.request_id, "answer_id": outcome.answer_id,
            **outcome.record, "prepare_s": outcome.prepare_s, "first_s": outcome.first_s,
            "total_s": outcome.total_s, "left": len(outcome.ends) < outcome.num_choices,
            "choices": [choice_facts(end) for end in outcome.ends],
        })

    def refused(self, request_id: str, error: Exception) -> None:
        status, code = status_of(error)
        self.write("request_refused", {"request_id": request_id, "status": status, "code": code})

    def write(self, event: str, facts: Mapping[str, Any]) -> None:
        """One line. A disk that is full costs no request."""
        line = {"event": event, "time_ms": time.time_ns() // 1_000_000, **facts}
        try:
            self._file.write(dumps(line).decode() + "\n")
            self._file.flush()
        except OSError as error:
            _log.warning("a line of the request log is lost: %s", error)

    def close(self) -> None:
        self._file.close()


class LogLines:
    """An `Observer` that tells whoever watches the log, in a line for each request."""

    def done(self, outcome: Outcome) -> None:
        for end in outcome.ends:
            times, usage, reuse = end.timings, end.usage, end.reuse
            speed = times.decode_tokens / times.decode_s if times.decode_s else 0
            failed = end.reason == "error"
            _log.log(
                logging.WARNING if failed else logging.INFO,
                "%s: %s; %d tokens in (%d reused), %d out; waited %.2f s, read %.2f s, "
                "wrote %.2f s (%.1f tok/s)%s", outcome.request_id or outcome.answer_id,
                f"failed, {_in_a_line(end.cause)}" if failed else end.reason, usage.prompt_tokens,
                reuse.num_tokens, usage.output_tokens,
                times.queue_s, times.prefill_s, times.decode_s, speed,
                "".join(f"; {name} {value}" for name, value in outcome.record.items()
                        if value is not None),
            )
        if len(outcome.ends) < outcome.num_choices:
            _log.info("%s: its client left after %.2f s", outcome.request_id, outcome.total_s)

    def refused(self, request_id: str, error: Exception) -> None:
        _log.info("%s: refused with %d, %s", request_id, *status_of(error))


def _in_a_line(error: Exception | None) -> str:
    return " ".join(str(error).split())


def choice_facts(end: Finished) -> dict[str, Any]:
    """What the log says of an answer."""
    usage, times, reuse = end.usage, end.timings, end.reuse
    return {
        "finish": end.reason, "error": type(end.cause).__name__ if end.cause else None,
        "prompt_tokens": usage.prompt_tokens, "output_tokens": usage.output_tokens,
        "reused_tokens": reuse.num_tokens, "reuse_kind": reuse.kind, "reuse_tier": reuse.tier,
        "diverged_at": reuse.diverged_at, "num_pauses": reuse.num_pauses,
        "replayed_tokens": reuse.replayed_tokens, "queue_s": times.queue_s,
        "prefill_s": times.prefill_s, "prefill_tokens": times.prefill_tokens,
        "decode_s": times.decode_s, "decode_tokens": times.decode_tokens,
        "rounds": usage.rounds, "drafted_tokens": usage.drafted_tokens,
        "accepted_tokens": usage.accepted_tokens, "accepted_at": usage.accepted_at,
        "fallback_steps": usage.fallback_steps,
    }
