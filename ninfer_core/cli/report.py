"""What is said of an answer after it: tokens, time, memory and choices."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator

from ninfer_core.config import EnginePlan
from ninfer_core.config.capacity import pool_summary
from ninfer_core.engine.load import LoadedEngine
from ninfer_core.engine.request import Finished, Usage
from ninfer_core.state.layout import StateLayout

RSS_UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes of a unit of ``ru_maxrss``."""


def report(
    plan: EnginePlan, loaded: LoadedEngine, finished: Finished, load_s: float
) -> Iterator[str]:
    """Lines for a reader."""
    times, weights = finished.timings, loaded.report
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT
    ledger = ", ".join(f"{line.name} {line.nbytes / 1e6:.1f} MB" for line in plan.ledger.lines)
    if reused := finished.reuse.num_tokens:
        total, kind = finished.usage.prompt_tokens, finished.reuse.kind
        yield f"reuse    {reused} of {total} tokens, from a {kind} point in {finished.reuse.tier}"
    yield f"prefill  {_speed(times.prefill_tokens, times.prefill_s)}"
    yield f"decode   {_speed(times.decode_tokens, times.decode_s)}"
    if finished.usage.rounds or finished.usage.fallback_steps:
        yield f"drafts   {_drafts(finished.usage)}"
    yield f"answer   {finished.usage.output_tokens} tokens, ended by {finished.reason}"
    first = times.queue_s + times.prefill_s
    yield f"start    {load_s:.2f} s to load, then {first:.2f} s to the first token"
    yield (f"memory   {peak / 1e6:.1f} MB resident at most; {ledger}; "
           f"{100 * weights.mapped_bytes // weights.nbytes} % of the weights mapped, "
           f"{100 * weights.relaid_bytes // weights.nbytes} % laid out anew")
    layout = StateLayout(plan.states, plan.kv, max_verify_rows=plan.max_verify_rows)
    pool = pool_summary(layout, plan.num_pages, keeps=plan.config.prefix_cache)
    yield f"pool     {times.peak_pages} of {pool}"
    yield "choices  " + ", ".join(f"{option} {value}" for option, value, _ in plan.reasons)
    yield "kernels  " + ", ".join(sorted({choice.spec.name for choice in loaded.kernels}))


def _speed(tokens: int, seconds: float) -> str:
    return f"{tokens} tokens in {seconds:.2f} s, {tokens / max(seconds, 1e-9):.1f} tok/s"


def _drafts(usage: Usage) -> str:
    accepted, drafted = usage.accepted_tokens, usage.drafted_tokens
    verified = (
        f"{accepted} of {drafted} accepted ({100 * accepted / drafted:.1f} %) in {usage.rounds} "
        f"rounds, at each position {' '.join(map(str, usage.accepted_at))}" if drafted else "none"
    )
    return f"{verified}; {usage.fallback_steps} steps had no room for any"
