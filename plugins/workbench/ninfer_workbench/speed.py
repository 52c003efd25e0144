"""Predicted speed of one sequence: what a perfect implementation would reach on a machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ninfer_core.api import MachineFigures
from ninfer_core.config import EnginePlan
from ninfer_workbench.placement import ONE_MACHINE, Placement, cached_share
from ninfer_workbench.steps import Steps, model_steps
from ninfer_workbench.work import Work

Row = tuple[str, str, str]

CONTEXTS = (0, 8192, 65_536, 131_072)
"""Depths of interest; those below the longest, and the longest, are predicted for."""

ACCEPTANCES = (0.5, 0.7, 0.9)
"""Probabilities that a draft is accepted when all before it were."""


HITS = (0.0, 0.5, 0.9, 0.95)
"""Shares of the chosen experts that a card may have found in its cache."""


def speed_rows(
    plan: EnginePlan, figures: MachineFigures, placement: Placement = ONE_MACHINE
) -> Iterator[Row]:
    """Sizes of a step, then speeds of decode, prefill and, with a speculator, of rounds. Experts
    that wait at the host are found on the card as often as it has room for them."""
    found = cached_share(plan, placement)
    steps = model_steps(plan, figures, placement, misses=1 - found)
    longest = plan.config.max_context or 0
    rates = (f"{dtype} {rate / 1e9:,.1f}" for dtype, rate in figures.flops.items())
    yield "rates", f"{figures.read_bytes_per_s / 1e9:,.1f} GB/s", f"GFLOP/s: {', '.join(rates)}"
    if figures.ranks > 1:
        yield ("machines", f"{figures.ranks}", "planned only: no engine of this project shares a "
               f"step; {figures.exchange_s * 1e6:.1f} us an exchange, "
               f"{figures.link_bytes_per_s / 1e9:,.1f} GB/s")
    yield from _sizes(steps)
    if placement.experts_on_host:
        yield from _hits(plan, figures, placement, found)
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
    experts, context = target.read_of_experts(1), steps.target.context
    selected = (f" and {context.selected_bytes:,} for each of {context.most:,} selected"
                if context.most else "")
    yield ("bytes", f"{fixed + slots:,} B", f"weights {target.nbytes + head.nbytes:,} + experts "
           f"{experts:,} + embedding rows {target.row_bytes + head.row_bytes:,} + slot state read "
           f"and written {slots:,} a step; KV {context.nbytes:,} a token of context{selected}")
    if target.host_row_bytes:
        yield "bytes of the host", f"{target.host_row_bytes:,} B", "rows of tables a token"
    body, last = sum(target.flops.values()), sum(head.flops.values())
    yield ("operations", f"{body + last:,} FLOP", f"layers {body:,} + head {last:,} a token; "
           f"attention {context.flops:,} a token and token of context")


def _hits(
    plan: EnginePlan, figures: MachineFigures, placement: Placement, found: float
) -> Iterator[Row]:
    """Decode by how many of its experts a token finds on the card."""
    for hits in sorted({*HITS, found}):
        work = model_steps(plan, figures, placement, misses=1 - hits).decode(0)
        name, value, why = _speed(f"- {hits:.1%} of experts found", 1, work, figures)
        note = " (all alike)" if hits == found else ""
        yield name, value, f"{work.host_bytes:,} B of the host a token{note}; {why}"


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
