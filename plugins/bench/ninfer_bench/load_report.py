"""What pressure shows."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import Any

from attrs import asdict, frozen

from ninfer_bench.demand import pages_of
from ninfer_bench.models import Subject
from ninfer_bench.report import Report, percent, quantile
from ninfer_bench.residents import Residents
from ninfer_bench.tally import Tally
from ninfer_bench.watch import Watch
from ninfer_core.engine.request import GenerationRequest

QUANTILES = {"p50": 0.5, "p99": 0.99, "max": 1.0}


@frozen(eq=False)
class Outcome:
    """A run.

    :ivar faults: what was noticed at its end.
    """

    tally: Tally
    watch: Watch
    residents: Residents
    seconds: float
    faults: tuple[str, ...]


def make_report(
    arguments: Namespace, subject: Subject, requests: Sequence[GenerationRequest], outcome: Outcome
) -> Report:
    """Times and counts; problems where a promise is broken."""
    asked = arguments.clients * sum(map(pages_of, requests)) / len(requests)
    facts = {
        **subject.facts(), "clients": arguments.clients, "asked_pages": round(asked),
        "seed": arguments.seed,
    }
    counts, most = _counts(subject, outcome), subject.plan.config.max_concurrency
    return Report(
        {"benchmark": "engine load", **facts, **counts},
        {"subject": [(name.replace("_", " "), f"{value}") for name, value in facts.items()],
         "load": list(_rows(counts, most))},
        (*outcome.faults, *_problems(outcome, most)),
    )


def _counts(subject: Subject, outcome: Outcome) -> dict[str, Any]:
    engine, watch, tally = subject.loaded.engine, outcome.watch, outcome.tally
    assert engine.cache is not None
    queued = [*tally.queue_s]
    return {
        "seconds": outcome.seconds, **asdict(tally),
        "queue_s": {name: quantile(queued, share) for name, share in QUANTILES.items()},
        "cycles": watch.cycles, "longest_wait_cycles": watch.longest_wait,
        "most_passed": watch.most_passed, "longest_idle_cycles": watch.longest_idle,
        "pauses": engine.num_pauses, "resident_bytes": outcome.residents.quarters,
        "cache": asdict(engine.cache.statistics),
    }


def _rows(found: dict[str, Any], most: int) -> Iterator[tuple[object, ...]]:
    queue, cache, seconds = found["queue_s"], found["cache"], found["seconds"]
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in found["reasons"].items())
    yield "requests", f"{found['requests']:,}", f"{reasons}, in {seconds:.1f} s"
    yield "prompt tokens", f"{found['prompt_tokens']:,}", (
        f"{percent(found['reused_tokens'], found['prompt_tokens'])} reused")
    yield "output tokens", f"{found['output_tokens']:,}", (
        f"{found['output_tokens'] / seconds:,.1f} a second")
    yield "queue", f"{queue['p50'] * 1e3:,.1f} ms", (
        f"median; p99 {queue['p99'] * 1e3:,.1f} ms, longest {queue['max'] * 1e3:,.1f} ms")
    yield "longest request", f"{found['longest_s']:.2f} s", "from its submission to its end"
    yield "cycles", f"{found['cycles']:,}", (
        f"the longest wait for memory is {found['longest_wait_cycles']:,} of them")
    yield "passed by younger ones", f"{found['most_passed']}", f"times at most; {most} are allowed"
    yield "oldest without a step", f"{found['longest_idle_cycles']}", (
        f"cycles at most; {most} are allowed")
    yield "pauses", f"{found['pauses']:,}", f"{found['replayed_tokens']:,} tokens read again"
    yield "answers that differ", f"{found['differing']}", f"of {found['compared']:,} compared"
    yield "kept states", f"{cache['captured']:,}", (
        f"taken; {cache['refused']:,} refused, {cache['evicted']:,} evicted, "
        f"{cache['demoted']:,} moved to the host")
    sizes = " | ".join(f"{nbytes / 1e6:.1f}" for nbytes in found["resident_bytes"])
    yield "resident memory", sizes, "MB, median of each quarter of the run"


def _problems(outcome: Outcome, most: int) -> Iterator[str]:
    watch, residents, tally = outcome.watch, outcome.residents, outcome.tally
    yield from tally.faults
    if not tally.requests:
        yield "no request has ended"
    if watch.most_passed > most:
        yield f"a request was passed {watch.most_passed} times, and {most} are allowed"
    if watch.longest_idle > most:
        yield f"the oldest request had no step for {watch.longest_idle} cycles"
    if tally.differing:
        yield f"{tally.differing} answers are not those of the same requests alone"
    if not residents.is_flat:
        yield f"resident memory grew by {residents.growth / 1e6:.1f} MB from quarter 2 to 4"
