"""A request on its way through the engine."""

from __future__ import annotations

from attrs import define
from torch import Tensor

from ninfer_core.engine.output import TextOutput
from ninfer_core.engine.request import GenerationRequest, Sink, Timings, Usage
from ninfer_core.sampling.rows import SampleRow, TokenHistory, penalises
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
    cancelled: bool = False
    drafted: int = 0
    accepted: int = 0

    @property
    def num_prompt(self) -> int:
        return len(self.request.prompt.token_ids)

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def usage(self) -> Usage:
        return Usage(self.num_prompt, self.num_output, self.drafted, self.accepted)

    def sample_row(self, logits: Tensor) -> SampleRow:
        """How the next token is drawn from a row of ``logits`` ``[R, V]``."""
        params, prompt = self.request.sampling, self.request.prompt.token_ids
        if self.history is None and penalises(params):
            self.history = TokenHistory(logits.shape[-1], prompt, str(logits.device))
        return SampleRow(params, len(self.tokens), history=self.history)

    def timings(self, now: float, peak_sequences: int, peak_pages: int) -> Timings:
        """As of the time ``now``."""
        admitted = now if self.admitted_at is None else self.admitted_at
        decoding = now if self.first_token_at is None else self.first_token_at
        return Timings(
            admitted - self.submitted_at,
            decoding - admitted, min(self.frontier, self.num_prompt),
            now - decoding, max(self.num_output - 1, 0), peak_sequences, peak_pages,
        )
