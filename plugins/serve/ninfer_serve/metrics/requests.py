"""What became of requests, as metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from ninfer_core.engine.request import Finished
from ninfer_serve.errors import status_of
from ninfer_serve.metrics.exposition import Family, Sample, labels_of
from ninfer_serve.metrics.histogram import SECONDS, SHORT_SECONDS, TOKENS, Histogram
from ninfer_serve.outcome import Outcome


class RequestMetrics:
    """An `Observer` that counts requests and measures them."""

    def __init__(self) -> None:
        self._ends: Counter[str] = Counter()
        self._refusals: Counter[str] = Counter()
        self._first = Histogram("ninfer_time_to_first_token_seconds",
                                "From a request's arrival to its first text", SECONDS)
        self._total = Histogram("ninfer_request_duration_seconds",
                                "From a request's arrival to the end of its answers", SECONDS)
        self._queue = Histogram("ninfer_request_queue_seconds",
                                "From an answer's submission to its admission", SECONDS)
        self._prefill = Histogram("ninfer_request_prefill_seconds",
                                  "From admission to the first token", SECONDS)
        self._decode = Histogram("ninfer_request_decode_seconds",
                                 "From the first token to the last", SECONDS)
        self._each = Histogram("ninfer_time_per_output_token_seconds",
                               "Mean time of an answer's tokens behind its first", SHORT_SECONDS)
        self._prompt = Histogram("ninfer_request_prompt_tokens", "Tokens of prompts", TOKENS)
        self._output = Histogram("ninfer_request_generation_tokens", "Tokens of answers", TOKENS)

    def done(self, outcome: Outcome) -> None:
        self._total.observe(outcome.total_s)
        if outcome.first_s is not None:
            self._first.observe(outcome.first_s)
        self._ends["left"] += outcome.num_choices - len(outcome.ends)
        for end in outcome.ends:
            self._end(end)

    def refused(self, request_id: str, error: Exception) -> None:
        self._refusals[status_of(error)[1]] += 1

    def families(self) -> Iterator[Family]:
        """All of it, as Prometheus takes it."""
        yield _counts("ninfer_requests_total", "Answers by how they ended", "outcome", self._ends)
        yield _counts("ninfer_requests_refused_total", "Requests that never came to the engine",
                      "code", self._refusals)
        for each in (self._first, self._total, self._queue, self._prefill, self._decode,
                     self._each, self._prompt, self._output):
            yield each.family()

    def _end(self, end: Finished) -> None:
        times, usage = end.timings, end.usage
        self._ends[end.reason] += 1
        self._queue.observe(times.queue_s)
        self._prefill.observe(times.prefill_s)
        self._decode.observe(times.decode_s)
        if times.decode_tokens:
            self._each.observe(times.decode_s / times.decode_tokens)
        self._prompt.observe(usage.prompt_tokens)
        self._output.observe(usage.output_tokens)


def _counts(name: str, about: str, label: str, counts: Mapping[str, int]) -> Family:
    samples = [Sample(count, labels_of({label: each})) for each, count in counts.items()]
    return Family(name, about, "counter", samples)
