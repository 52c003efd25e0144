"""A request on its way through the engine."""

from __future__ import annotations

from functools import cache

from attrs import Factory, define
from torch import Tensor

from ninfer_core.api import Advance, DraftRequest
from ninfer_core.engine.output import TextOutput
from ninfer_core.engine.request import GenerationRequest, Sink, Timings, Usage
from ninfer_core.sampling.constraint import TokenConstraint
from ninfer_core.sampling.rows import SampleRow, TokenHistory
from ninfer_core.speculation.counts import DraftCounts
from ninfer_core.state.batch import Row
from ninfer_core.state.store import SequenceState


@define(eq=False)
class Sequence:
    """What one request owns. Only the engine's thread changes it, but for ``cancelled``.

    :ivar limit: most tokens, prompt included. :ivar num_pages: that are reserved at admission.
    :ivar tokens: prompt and committed output.
    :ivar last_cycle: cycle of submission or of the last prefill chunk.
    :ivar frontier: tokens whose state is committed; while decoding all but the last one, which is
        the first input of the next step.
    :ivar state: pages and slot, from admission to the end.
    :ivar history, constraint: of its sampling, from admission on, if it has any.
    :ivar fault: of its constraint; it fails the request at the end of the step.
    """

    id: int
    request: GenerationRequest
    sink: Sink
    output: TextOutput
    end_ids: frozenset[int]
    limit: int
    num_pages: int
    tokens: list[int]
    last_cycle: int
    submitted_at: float
    admitted_at: float | None = None
    first_token_at: float | None = None
    frontier: int = 0
    state: SequenceState | None = None
    history: TokenHistory | None = None
    constraint: TokenConstraint | None = None
    fault: Exception | None = None
    cancelled: bool = False
    drafts: DraftCounts = Factory(DraftCounts)

    @property
    def num_prompt(self) -> int:
        return len(self.request.prompt.token_ids)

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def usage(self) -> Usage:
        drafts = self.drafts
        return Usage(
            self.num_prompt, self.num_output, drafts.drafted, drafts.accepted,
            tuple(drafts.accepted_at), drafts.rounds, drafts.fallbacks,
        )

    def sample_row(self, pending: tuple[int, ...] = ()) -> SampleRow:
        """How the token after those there are and ``pending`` ones is drawn."""
        return SampleRow(
            self.request.sampling, len(self.tokens) + len(pending), history=self.history,
            pending=pending, mask=self._mask(pending),
        )

    def step_row(self, inputs: list[int], num_logits: int, *, certain: bool = True) -> Row:
        """Its part of a step that begins at the frontier."""
        assert self.state is not None
        return Row(self.id, self.state, self.frontier, inputs, num_logits, certain)

    def draft_request(self, most: int) -> DraftRequest:
        """Its part of a round of up to ``most`` drafts: fewer near its end, where the limit may
        even be below 1."""
        limit = min(most, self.limit - len(self.tokens) - 1)
        return DraftRequest(self.id, self.tokens, limit, cache(self.sample_row), self.state)

    def advance(self, begin: int, first_row: int, *, drafted: int, accepted: int) -> Advance:
        """What a step has committed that began at ``begin``."""
        return Advance(
            self.id, self.tokens, begin, self.frontier, first_row,
            self.frontier >= self.num_prompt, self.state, cache(self.sample_row), drafted, accepted,
        )

    def timings(self, now: float, peak_sequences: int, peak_pages: int) -> Timings:
        """As of the time ``now``."""
        admitted = now if self.admitted_at is None else self.admitted_at
        decoding = now if self.first_token_at is None else self.first_token_at
        return Timings(
            admitted - self.submitted_at,
            decoding - admitted, min(self.frontier, self.num_prompt),
            now - decoding, max(self.num_output - 1, 0), peak_sequences, peak_pages,
        )

    def _mask(self, pending: tuple[int, ...]) -> Tensor | None:
        try:
            return self.constraint.mask(pending) if self.constraint else None
        except Exception as error:
            self.fault = self.fault or error
            return None
