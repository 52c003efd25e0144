"""What an engine says of itself, as metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from attrs import frozen

from ninfer_core.state.step import PAGE_TOKENS
from ninfer_serve.metrics.exposition import Family, Kind, Sample, labels_of

Status = Mapping[str, Any]
"""The members of an `EngineStatus`."""


@frozen
class Figure:
    """A number that a status has.

    :ivar name: without the prefix that all have.
    :ivar value: of it, or with a label, one for each of its values.
    """

    name: str
    about: str
    value: Callable[[Status], Any]
    label: str = ""

    def family(self, status: Status) -> Family:
        """As Prometheus takes it."""
        value = self.value(status)
        if self.label:
            samples = [Sample(each, labels_of({self.label: key})) for key, each in value.items()]
        else:
            samples = [Sample(value)]
        kind: Kind = "counter" if self.name.endswith("_total") else "gauge"
        return Family(f"ninfer_{self.name}", self.about, kind, samples)


def share(part: float, whole: float) -> float:
    """0 to 1, also of nothing."""
    return min(1.0, part / whole) if whole else 0.0


def engine_families(status: Status) -> Iterator[Family]:
    """All figures of a status. Counters begin anew with an engine."""
    for figure in _FIGURES:
        yield figure.family(status)
    labels = labels_of({"block_size": PAGE_TOKENS, "num_gpu_blocks": status["num_pages"],
                        "page_bytes": status["page_bytes"]})
    yield Family("ninfer_cache_config_info", "The pool", "gauge", [Sample(1, labels)])


_EVENTS = ("captured", "refused", "demoted", "evicted", "stored", "damaged")
_FIGURES = (
    Figure("requests_running", "Requests that have state", lambda s: s["running"]),
    Figure("requests_waiting", "Requests that were never admitted", lambda s: s["waiting"]),
    Figure("requests_paused", "Requests that gave way to others", lambda s: s["paused"]),
    Figure("requests_prefilling", "Running requests that read their prompt",
           lambda s: s["reading"]),
    Figure("requests_replaying", "Running requests that read once more after a pause",
           lambda s: s["replaying"]),
    Figure("requests_decode_ready", "Running requests that decode",
           lambda s: s["running"] - s["reading"]),
    Figure("engine_steps_total", "Cycles of the engine", lambda s: s["cycle"]),
    Figure("preemptions_total", "How often a request gave way", lambda s: s["pauses"]),
    Figure("device_kv_used_pages", "Pages of the pool that hold anything",
           lambda s: s["num_pages"] - s["free_pages"]),
    Figure("device_kv_sequence_pages", "Pages of running requests; shared ones count for each",
           lambda s: s["sequence_pages"]),
    Figure("device_kv_capacity_pages", "Pages of the pool", lambda s: s["num_pages"]),
    Figure("kv_usage_ratio", "Share of the pool that running requests hold, 0 to 1",
           lambda s: share(s["sequence_pages"], s["num_pages"])),
    Figure("device_state_used_slots", "State slots of running requests", lambda s: s["running"]),
    Figure("host_context_used_bytes", "Host memory that holds kept states",
           lambda s: (s["host_pages"] - s["free_host_pages"]) * s["page_bytes"]),
    Figure("host_context_capacity_bytes", "Host memory for kept states",
           lambda s: s["host_pages"] * s["page_bytes"]),
    Figure("prompt_tokens_total", "Tokens of prompts", lambda s: s["tokens"]["prompt"]),
    Figure("prompt_tokens_cached_total", "Tokens of prompts whose state was there",
           lambda s: s["tokens"]["reused"]),
    Figure("prefill_tokens_total", "Tokens of prompts that were read",
           lambda s: s["tokens"]["read"]),
    Figure("replayed_tokens_total", "Tokens that were read once more after a pause",
           lambda s: s["tokens"]["replayed"]),
    Figure("generation_tokens_total", "Tokens of answers", lambda s: s["tokens"]["output"]),
    Figure("prefix_cache_hit_ratio", "Share of prompt tokens whose state was there, 0 to 1",
           lambda s: share(s["tokens"]["reused"], s["tokens"]["prompt"])),
    Figure("prefix_cache_points_total", "Kept states by what became of them",
           lambda s: {each: s["cache"][each] for each in _EVENTS}, "event"),
    Figure("prefix_cache_restores_total", "Kept states that requests went on from, by tier",
           lambda s: s["cache"]["restored"], "tier"),
    Figure("spec_decode_rounds_total", "Decode steps that verified drafts",
           lambda s: s["drafts"]["rounds"]),
    Figure("spec_decode_draft_tokens_total", "Drafts that were verified",
           lambda s: s["drafts"]["drafted"]),
    Figure("spec_decode_accepted_tokens_total", "Drafts that the model agreed with",
           lambda s: s["drafts"]["accepted"]),
    Figure("spec_decode_accepted_at_position_total",
           "How often the draft at each position of a round was accepted",
           lambda s: dict(enumerate(s["drafts"]["accepted_at"])), "position"),
    Figure("spec_decode_fallback_steps_total", "Decode steps without room for a draft",
           lambda s: s["drafts"]["fallbacks"]),
)
