"""What the next cycle does: a pure function of what there is."""

from __future__ import annotations

from attrs import field, frozen
from attrs.validators import ge

from ninfer_core.engine.sequence import Sequence
from ninfer_core.state.step import PAGE_TOKENS


@frozen
class Limits:
    """Bounds of an engine.

    :ivar max_context: most tokens of a sequence. :ivar max_sequences: that run at once.
    :ivar max_queue: requests that may wait.
    :ivar prefill_chunk: prompt tokens of one step, a multiple of the page size.
    """

    max_context: int = field(validator=ge(1))
    max_sequences: int = field(default=8, validator=ge(1))
    max_queue: int = field(default=64, validator=ge(0))
    prefill_chunk: int = field(default=512, validator=ge(PAGE_TOKENS))

    @prefill_chunk.validator
    def _on_grid(self, _: object, value: int) -> None:
        if value % PAGE_TOKENS:
            raise ValueError(f"prefill_chunk must be a multiple of {PAGE_TOKENS}, not {value}")


@frozen
class StepPlan:
    """A cycle: whom to admit, who decodes, and who reads the next ``num_prefill`` prompt tokens."""

    admit: tuple[Sequence, ...]
    decode: tuple[Sequence, ...]
    prefill: Sequence | None
    num_prefill: int


def plan(
    waiting: list[Sequence], running: list[Sequence], limits: Limits, free_pages: int
) -> StepPlan:
    """Plan a cycle.

    The queue is served strictly in order: a large request waits for pages but is never passed by.
    Every decoding sequence steps in every cycle; the one prefill chunk goes to the sequence that
    has waited for one the longest.
    """
    admit: list[Sequence] = []
    for sequence in waiting:
        free_pages -= sequence.num_pages
        if len(running) + len(admit) == limits.max_sequences or free_pages < 0:
            break
        admit.append(sequence)
    resident = [*running, *admit]
    decode = tuple(s for s in resident if s.frontier >= s.num_prompt)
    unread = (s for s in resident if s.frontier < s.num_prompt)
    prefill = min(unread, key=lambda s: s.last_cycle, default=None)
    left = prefill.num_prompt - prefill.frontier if prefill else 0
    return StepPlan(tuple(admit), decode, prefill, min(left, limits.prefill_chunk))
