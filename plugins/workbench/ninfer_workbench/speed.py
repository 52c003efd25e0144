"""Predicted speed of one sequence: what a perfect implementation would reach on a machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ninfer_core.api import MachineFigures
from ninfer_core.config import EnginePlan
from ninfer_workbench.steps import Steps, model_steps
from ninfer_workbench.work import Work

Row = tuple[str, str, str]

CONTEXTS = (0, 8192, 65_536, 131_072)
"""Depths of interest; those below the longest, and the longest, are predicted for."""

ACCEPTANCES = (0.5, 0.7, 0.9)
"""Probabilities that a draft is accepted when all before it were."""


def speed_rows(plan: EnginePlan, figures: MachineFigures) -> Iterator[Row]:
    """Sizes of a step, then speeds of decode, prefill and, with a speculator, of rounds."""
    steps, longest = model_steps(plan, figures), plan.config.max_context or 0
    rates = (f"{dtype} {rate / 1e9:,.1f}" for dtype, rate in figures.flops.items())
    yield "rates", f"{figures.read_bytes_per_s / 1e9:,.1f} GB/s", f"GFLOP/s: {', '.join(rates)}"
    yield from _sizes(steps)
    for context in _depths(longest - 1):
        yield _speed(f"decode at {context}", 1, steps.decode(context), figures)
    chunk = min(plan.config.prefill_chunk, longest)
    for context in _depths(longest - chunk):
        yield _speed(f"prefill at {context}", chunk, steps.prefill(chunk, context), figures)
    yield _prompt(steps, figures, chunk, longest)
    if plan.speculator:
        for context in _depths(longest - plan.max_verify_rows):
            yield from _round(plan, steps, figures, context)


def _depths(last: int) -> list[int]:
    return [*(context for context in CONTEXTS if context < last), max(last, 0)]


def _sizes(steps: Steps) -> Iterator[Row]:
    """What a token costs beside its context."""
    target, head = steps.target.body, steps.target.head
    fixed, slots = target.read(1) + head.read(1), 2 * steps.slot_bytes
    experts = target.read(1) - target.nbytes - target.row_bytes
    yield ("bytes", f"{fixed + slots:,} B", f"weights {target.nbytes + head.nbytes:,} + experts "
           f"{experts:,} + embedding rows {target.row_bytes + head.row_bytes:,} + slot state read "
           f"and written {slots:,} a step; KV {steps.target.kv_bytes:,} a token of context")
    body, last = sum(target.flops.values()), sum(head.flops.values())
    yield ("operations", f"{body + last:,} FLOP", f"layers {body:,} + head {last:,} a token; "
           f"attention {steps.target.attention:,} a token and token of context")


def _speed(name: str, tokens: int, work: Work, figures: MachineFigures) -> Row:
    rate = tokens / work.seconds(figures)
    return name, f"{rate:,.1f} tok/s", f"{tokens} / ({work.arithmetic(figures)})"


def _prompt(steps: Steps, figures: MachineFigures, chunk: int, length: int) -> Row:
    """A prompt that fills the context."""
    chunks = [(min(chunk, length - begin), begin) for begin in range(0, length, chunk)]
    seconds = sum(steps.prefill(rows, begin).seconds(figures) for rows, begin in chunks)
    return (f"prompt of {length}", f"{length / seconds:,.1f} tok/s",
            f"{seconds:,.2f} s, the sum of its {len(chunks)} chunks")


def _round(
    plan: EnginePlan, steps: Steps, figures: MachineFigures, context: int
) -> Iterator[Row]:
    """A round: the predictor reads the rows committed last, which gives a draft, then each draft
    but the last for another; the target verifies them."""
    rows = plan.max_verify_rows
    verify, first = steps.verify(rows, context), steps.draft(rows, context)
    other, again = steps.draft(1, context), rows - 2
    drafts_s = first.seconds(figures) + again * other.seconds(figures)
    seconds = verify.seconds(figures) + drafts_s
    yield f"round at {context}", f"{seconds * 1e3:,.2f} ms", "verification + drafts"
    yield (f"- verify {rows} rows", f"{verify.seconds(figures) * 1e3:,.2f} ms",
           verify.arithmetic(figures))
    if steps.predictor:
        yield (f"- draft {rows - 1}", f"{drafts_s * 1e3:,.2f} ms",
               f"{first.arithmetic(figures)} + {again} x ({other.arithmetic(figures)})")
    tokens = [sum(p**position for position in range(rows)) for p in ACCEPTANCES]
    yield (f"- accepting {_listed(ACCEPTANCES, 'g')}",
           f"{_listed((each / seconds for each in tokens), ',.1f')} tok/s",
           f"{_listed(tokens, '.3f')} tokens a round, when a draft is accepted with such a "
           "probability after those before it")


def _listed(values: Iterable[float], format: str) -> str:
    return " | ".join(f"{value:{format}}" for value in values)
