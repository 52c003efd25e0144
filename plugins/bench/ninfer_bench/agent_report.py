"""What the trace of an agent shows."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

from attrs import asdict

from ninfer_bench.models import Subject
from ninfer_bench.report import Report, percent
from ninfer_bench.reuse import Served

SHOWN = 24
"""Characters of a text in a table."""


def make_report(arguments: Namespace, subject: Subject, served: Sequence[Served]) -> Report:
    """Every request and the sums; problems where reuse, or the record of a miss, is wanting."""
    totals = {name: sum(getattr(each, name) for each in served)
              for name in ("prompt_tokens", "output_tokens", "reusable")}
    # not what requests beside it left while it waited, which need not have been there
    totals["reused"] = sum(min(each.reused, each.reusable) for each in served)
    share = 100 * totals["reused"] / max(1, totals["reusable"])
    engine = subject.loaded.engine
    assert engine.cache is not None
    statistics = asdict(engine.cache.statistics)
    values = {
        "benchmark": "engine agent", **subject.facts(), "nonce": arguments.nonce,
        "requests": [{**asdict(each), "loss": each.loss} for each in served], **totals,
        "reused_percent": share, "pauses": engine.num_pauses, "cache": statistics,
    }
    summary = [
        ("requests", f"{len(served)}", ""),
        ("prompt tokens", f"{totals['prompt_tokens']:,}", ""),
        ("reusable", f"{totals['reusable']:,}", "an earlier request began with them"),
        ("reused", f"{totals['reused']:,}", percent(totals["reused"], totals["reusable"])),
        ("explained", f"{sum(each.is_explained for each in served)}",
         "records that show text before the end of the nonce" if arguments.nonce else "no nonce"),
        ("pauses", f"{engine.num_pauses}", ""),
        *((f"cache: {name.replace('_', ' ')}", f"{count}", "")
          for name, count in statistics.items()),
    ]
    facts = [(name.replace("_", " "), f"{value}") for name, value in subject.facts().items()]
    problems = _unexplained(served) if arguments.nonce else _too_little(share, arguments.least)
    return Report(values, {"subject": facts, "requests": _rows(served), "sum": summary}, problems)


def _too_little(share: float, least: float) -> tuple[str, ...]:
    if share >= least:
        return ()
    return (f"{share:.2f} % of the reusable tokens are reused, and {least:g} % are wanted",)


def _unexplained(served: Sequence[Served]) -> tuple[str, ...]:
    return tuple(
        f"{each.label}: the record does not show the nonce, but {each.known!r} before and "
        f"{each.new!r} from token {each.diverged_at} on"
        for each in served if not each.is_explained
    )


def _rows(served: Sequence[Served]) -> list[tuple[object, ...]]:
    heading = ("request", "prompt", "reusable", "reused", "", "from", "prefill", "new from",
               "text there", "not reused")
    return [heading, *(
        (each.label, f"{each.prompt_tokens:,}", f"{each.reusable:,}", f"{each.reused:,}",
         percent(each.reused, each.reusable), f"{each.kind} {each.tier}".strip() or "-",
         f"{each.prefill_s * 1e3:.0f} ms",
         "-" if each.diverged_at is None else f"{each.diverged_at:,}",
         f"{each.known[-SHOWN:]!r} | {each.new[:SHOWN]!r}", each.loss)
        for each in served
    )]
