"""What the next cycle does: a pure function of a few numbers of each request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import Factory, define, field, frozen
from attrs.validators import ge, gt, optional

from ninfer_core.state.step import PAGE_TOKENS


@frozen
class Limits:
    """Bounds of an engine.

    :ivar max_context: most tokens of a sequence. :ivar max_sequences: that run at once.
    :ivar max_queue: requests that may wait.
    :ivar prefill_chunk: prompt tokens of one step, a multiple of the page size.
    :ivar queue_timeout_s: longest wait of a request for its first step; None: as long as it takes.
    :ivar anchor_tokens: distance of the restore points in a long prompt, a multiple of the page.
    :ivar max_logits: prompt tokens of a step whose logits are all wanted.
    """

    max_context: int = field(validator=ge(1))
    max_sequences: int = field(default=8, validator=ge(1))
    max_queue: int = field(default=64, validator=ge(0))
    prefill_chunk: int = field(default=512, validator=ge(PAGE_TOKENS))
    queue_timeout_s: float | None = field(default=None, validator=optional(gt(0)))
    anchor_tokens: int = field(default=4096, validator=ge(PAGE_TOKENS))
    max_logits: int = field(default=1, validator=ge(1))

    @prefill_chunk.validator
    @anchor_tokens.validator
    def _on_grid(self, attribute: object, value: int) -> None:
        if value % PAGE_TOKENS:
            name = getattr(attribute, "name", "")
            raise ValueError(f"{name} must be a multiple of {PAGE_TOKENS}, not {value}")


@frozen
class Record:
    """A request as the scheduler sees it.

    :ivar ticket: grows with the time of submission.
    :ivar running: whether it has a state; else it waits, for the first time or paused.
    :ivar begin: tokens whose state is there. :ivar end: where its reading ends, of a prompt or,
        after a pause, of all it has; a running one that stands there decodes.
    :ivar split: where the next chunk must end at the latest.
    :ivar most: tokens it has after its next decode step and what is launched behind it, at most.
    :ivar pages: that it has, or if it waits, that it will share.
    :ivar turn: cycle of its submission or of its last chunk.
    :ivar passed: how often a younger one was admitted while this one had to wait for pages.
    :ivar scores: whether it reads a prompt of which all logits are, or were, wanted.
    """

    ticket: int
    running: bool
    begin: int
    end: int
    split: int
    most: int
    pages: int
    turn: int
    passed: int = 0
    scores: bool = False

    @property
    def reads(self) -> bool:
        return self.begin < self.end

    @property
    def to_decode(self) -> int:
        """Pages it lacks for a decode step."""
        return max(0, num_pages(self.most) - self.pages)

    @property
    def to_start(self) -> int:
        """Pages it lacks, while it waits, for all it has to read and one token more."""
        return max(0, num_pages(self.end + 1) - self.pages)

    def chunk_end(self, limits: Limits, free_pages: int) -> int:
        """Where a chunk ends that takes no more than the free pages. Chunks end on the grid of
        pages, so that the same prompt is always cut alike behind a restore point; but those of
        which fewer logits fit."""
        most = min(limits.prefill_chunk, limits.max_logits if self.scores else 1 << 40)
        longest = self.begin + most
        if most >= PAGE_TOKENS:
            longest = longest // PAGE_TOKENS * PAGE_TOKENS
        return min(self.end, self.split, longest, (self.pages + free_pages) * PAGE_TOKENS)


@frozen
class StepPlan:
    """A cycle, by tickets. One that pauses or admits does nothing else, and is planned anew.

    :ivar pause: whose state must make room. :ivar admit: who gets a state.
    :ivar decode: who decodes. :ivar prefill: who reads, to ``prefill_end``.
    """

    pause: int | None = None
    admit: tuple[int, ...] = ()
    decode: tuple[int, ...] = ()
    prefill: int | None = None
    prefill_end: int = 0

    @property
    def is_empty(self) -> bool:
        return self == StepPlan()


def num_pages(num_tokens: int) -> int:
    """Pages that hold so many tokens."""
    return -(-num_tokens // PAGE_TOKENS)


def wanted_pages(records: Sequence[Record], limits: Limits) -> int:
    """Free pages with which all that run can step: those that decode, and who reads next."""
    running = [record for record in records if record.running]
    reader = min((r for r in running if r.reads), key=_turn, default=None)
    chunk = 0
    if reader is not None:
        end = reader.chunk_end(limits, num_pages(reader.end))
        chunk = max(0, num_pages(end) - reader.pages)
    return chunk + sum(record.to_decode for record in running if not record.reads)


def plan(
    records: Sequence[Record], limits: Limits, free_pages: int, *, admits: bool = True
) -> StepPlan:
    """Plan a cycle.

    Whoever decodes steps in every cycle, and one of those that read gets a chunk, who has waited
    for one the longest. Pages go to the older ones first: where one lacks pages, the youngest of
    those that run is paused, unless it is that one itself, which then waits for others to end. So
    the oldest always goes on. Waiting requests are admitted in order, as far as there are pages for
    all they have to read and one more for each that runs, so that nobody is admitted to be paused;
    one for which there are not is passed by younger ones at most ``max_sequences`` times.

    :param records: in the order of their tickets.
    :param admits: whether waiting requests may be admitted.
    """
    running = [record for record in records if record.running]
    decode, left, lacking = [], free_pages, []
    for record in running:
        if not record.reads and record.to_decode <= left:
            decode.append(record.ticket)
            left -= record.to_decode
        elif not record.reads:
            lacking.append(record)
    readers = sorted((record for record in running if record.reads), key=_turn)
    reader = next((r for r in readers if r.chunk_end(limits, left) > r.begin), None)
    if readers and reader is None:
        lacking.append(min(readers, key=_ticket))
    if lacking and min(map(_ticket, lacking)) < running[-1].ticket:
        return StepPlan(pause=running[-1].ticket)
    if admits and not lacking:
        waiting = [record for record in records if not record.running]
        if admitted := tuple(_Admission(limits, len(running), left).choose(waiting)):
            return StepPlan(admit=admitted)
    if reader is None:
        return StepPlan(decode=tuple(decode))
    end = reader.chunk_end(limits, left)
    return StepPlan(decode=tuple(decode), prefill=reader.ticket, prefill_end=end)


@define
class _Admission:
    """Who of those that wait may run.

    :ivar blocked: how often each of those without pages is passed by.
    """

    limits: Limits
    running: int
    free_pages: int
    blocked: list[int] = Factory(list)

    def choose(self, waiting: Iterable[Record]) -> Iterable[int]:
        """Tickets; at least one if nobody runs."""
        for record in waiting:
            if self.running == self.limits.max_sequences:
                return
            if self.running and record.to_start + self.running > self.free_pages:
                self.blocked.append(record.passed)
            elif any(passed >= self.limits.max_sequences for passed in self.blocked):
                return
            else:
                self.running += 1
                self.free_pages -= record.to_start
                self.blocked = [passed + 1 for passed in self.blocked]
                yield record.ticket


def _turn(record: Record) -> tuple[int, int]:
    return record.turn, record.ticket


def _ticket(record: Record) -> int:
    return record.ticket
