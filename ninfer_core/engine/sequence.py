"""A request on its way through the engine."""

from __future__ import annotations

from functools import cache

import numpy as np
from attrs import Factory, define
from numpy.typing import NDArray

from ninfer_core.api import Advance, DraftRequest, NewConstraint, TokenConstraint
from ninfer_core.engine.output import TextOutput
from ninfer_core.engine.request import (
    Event,
    FinishReason,
    GenerationRequest,
    Reuse,
    Sink,
    Timings,
    Usage,
)
from ninfer_core.engine.scheduler import Record, num_pages
from ninfer_core.sampling.rows import LateMask, SampleRow, TokenHistory
from ninfer_core.speculation.counts import DraftCounts
from ninfer_core.state.batch import Row
from ninfer_core.state.restore_point import Kind, RestorePoint
from ninfer_core.state.step import ROW_TOKENS
from ninfer_core.state.store import SequenceState


@define(eq=False)
class Sequence:
    """What one request owns. Only the engine's thread changes it, but for ``cancelled``.

    :ivar id: from the queue, in its order. :ivar limit: most tokens, prompt included.
    :ivar content: makes what its answer is held to.
    :ivar tokens: prompt and committed output.
    :ivar last_cycle: cycle of submission or of the last prefill chunk.
    :ivar places: where chunks must end, because a restore point is wanted there, in order.
    :ivar frontier: tokens whose state is committed; while decoding all but the last one, which is
        the first input of the next step.
    :ivar state: pages and slot, from admission to a pause or the end.
    :ivar history, constraint: of its sampling, from the first admission on, if it has any.
    :ivar ending: why it ends with the step that it is in, and what went wrong, if anything did.
    :ivar passed: how often a younger request was admitted while this one waited for pages.
    :ivar entered_at: frontier of its last admission. :ivar reached: the largest it ever had.
    :ivar points: that its state came from, or left.
    :ivar num_scored: tokens of the prompt whose logprobs were sent.
    """

    request: GenerationRequest
    sink: Sink
    output: TextOutput
    end_ids: frozenset[int]
    limit: int
    tokens: list[int]
    last_cycle: int
    submitted_at: float
    id: int = 0
    content: NewConstraint | None = None
    places: list[tuple[int, Kind]] = Factory(list)
    admitted_at: float | None = None
    first_token_at: float | None = None
    frontier: int = 0
    state: SequenceState | None = None
    history: TokenHistory | None = None
    constraint: TokenConstraint | None = None
    ending: tuple[FinishReason, Exception | None] | None = None
    cancelled: bool = False
    passed: int = 0
    entered_at: int = 0
    reached: int = 0
    points: list[RestorePoint] = Factory(list)
    num_scored: int = 0
    reuse: Reuse = Factory(Reuse)
    drafts: DraftCounts = Factory(DraftCounts)

    @property
    def num_prompt(self) -> int:
        return len(self.request.prompt.token_ids)

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def has_failed(self) -> bool:
        """Whether it ends with an error."""
        return self.ending is not None and self.ending[0] == "error"

    @property
    def end(self) -> int:
        """Where its reading ends: of the prompt, or after a pause of all that it has to have read
        before it decodes."""
        return max(self.num_prompt, len(self.tokens) - 1)

    @property
    def scores(self) -> bool:
        """Whether logprobs of its prompt are still to be sent."""
        return self.request.prompt_logprobs is not None and self.num_scored < self.num_prompt

    @property
    def most_reused(self) -> int:
        """How far a state may be that it goes on from: what was not scored it has to read."""
        return self.num_scored - 1 if self.scores else len(self.tokens)

    @property
    def usage(self) -> Usage:
        drafts = self.drafts
        return Usage(
            self.num_prompt, self.num_output, drafts.drafted, drafts.accepted,
            tuple(drafts.accepted_at), drafts.rounds, drafts.fallbacks,
        )

    @property
    def most_drafts(self) -> int:
        """Drafts for which there is room before its end, with the token that follows them; may be
        below 0."""
        return self.limit - len(self.tokens) - 1

    @property
    def is_free(self) -> bool:
        """Whether its tokens are drawn from the logits as they are, which nobody wants to see."""
        is_bound = self.history is not None or self.constraint is not None
        return not is_bound and self.request.logprobs is None

    @property
    def is_plain(self) -> bool:
        """Whether its tokens are the likeliest ones."""
        return self.is_free and self.request.sampling.temperature == 0

    def has_room_ahead(self, width: int) -> bool:
        """Whether all rows of a step of so many tokens could be kept, and the next one be launched
        behind them."""
        assert self.state is not None
        pages = num_pages(self.frontier + 2 * width)
        return self.most_drafts >= 2 * width - 1 and len(self.state.pages) >= pages

    def most_after_step(self, width: int) -> int:
        """Most tokens with state after a decode step of so many, and what is launched behind it."""
        return max(self.frontier + 1, min(self.frontier + 2 * width, self.limit - 1))

    def record(self, width: int, shared_pages: int = 0) -> Record:
        """What the scheduler needs to know.

        :param width: most tokens of a decode row.
        :param shared_pages: that it will have at once when it is admitted.
        """
        frontier, end, running = self.frontier, self.end, self.state is not None
        is_prompt, split = frontier < self.num_prompt, end
        if is_prompt:
            split = next((place for place, _ in self.places if place > frontier), self.num_prompt)
        elif frontier < end:  # read again as it came: in short rows
            split = min(end, frontier + ROW_TOKENS)
        return Record(
            ticket=self.id, running=running, begin=frontier, end=end, split=split,
            most=self.most_after_step(width),
            pages=len(self.state.pages) if self.state is not None else shared_pages,
            turn=self.last_cycle, passed=self.passed,
            scores=is_prompt and self.request.prompt_logprobs is not None,
        )

    def first_unscored(self, end: int) -> int | None:
        """The first position in a chunk up to ``end`` whose logits it asks for, if there is one."""
        first = max(self.frontier, self.num_scored - 1)
        return first if self.scores and first < end else None

    def move_to(self, frontier: int) -> None:
        """Its state is that after so many tokens."""
        assert self.state is not None
        self.frontier = self.state.num_tokens = frontier
        self.reached = max(self.reached, frontier)

    def token_array(self) -> NDArray[np.int32]:
        """The tokens, for the prefix cache."""
        return np.array(self.tokens, np.int32)

    def tell(self, event: Event) -> None:
        """Send an event that is no output; a sink at fault fails its own request only."""
        try:
            self.sink(event)
        except Exception as error:
            self.ending = "error", error

    @property
    def wanted_point(self) -> Kind | None:
        """The kind of restore point that is wanted where its state stands."""
        return next((kind for place, kind in self.places if place == self.frontier), None)

    def sample_row(self, pending: tuple[int, ...] = ()) -> SampleRow:
        """How the token after those there are and ``pending`` ones is drawn."""
        constraint = self.constraint
        mask = LateMask(lambda: constraint.mask(pending)) if constraint else None
        return SampleRow(
            self.request.sampling, len(self.tokens) + len(pending), history=self.history,
            pending=pending, mask=mask,
        )

    def step_row(self, inputs: list[int], num_logits: int, *, certain: bool = True) -> Row:
        """Its part of a step that begins at the frontier."""
        assert self.state is not None
        return Row(self.id, self.state, self.frontier, inputs, num_logits, certain)

    def draft_request(self, most: int) -> DraftRequest:
        """Its part of a round of up to ``most`` drafts: fewer near its end, where the limit may
        even be below 1."""
        limit = min(most, self.most_drafts)
        return DraftRequest(self.id, self.tokens, limit, cache(self.sample_row), self.state)

    def advance(self, begin: int, first_row: int, *, drafted: int, accepted: int) -> Advance:
        """What a step has committed that began at ``begin``."""
        return Advance(
            self.id, self.tokens, begin, self.frontier, first_row,
            self.frontier >= self.end, self.state, cache(self.sample_row), drafted, accepted,
        )

    def timings(self, now: float, peak_sequences: int, peak_pages: int) -> Timings:
        """As of the time ``now``."""
        admitted = now if self.admitted_at is None else self.admitted_at
        decoding = now if self.first_token_at is None else self.first_token_at
        return Timings(
            admitted - self.submitted_at,
            decoding - admitted, max(0, min(self.reached, self.num_prompt) - self.reuse.num_tokens),
            now - decoding, max(self.num_output - 1, 0), peak_sequences, peak_pages,
        )

