"""Drafting with the model's own next-token predictor (multi-token prediction)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile

import torch
from attrs import define, evolve, field, frozen
from torch import Tensor

from ninfer_core.api import (
    Advance,
    Draft,
    DraftRequest,
    NextTokenPredictor,
    PredictingModel,
    SpeculatorContext,
    UnsupportedError,
)
from ninfer_core.engine.graphs import CapturedForward
from ninfer_core.sampling.sampler import INVALID
from ninfer_core.sampling.verify import Judge
from ninfer_core.state.batch import BatchBuilder, Row
from ninfer_core.state.step import PAGE_TOKENS, StepBatch
from ninfer_core.state.store import SequenceState
from ninfer_drafting.ahead import Ahead, RoundAhead


@frozen(eq=False)
class _Held:
    """What the predictor says after ``end`` tokens with their successors: logits ``[N]`` of the
    next draft, and its hidden state ``[H]``."""

    end: int
    logits: Tensor
    hidden: Tensor


@define(eq=False)
class _Chain:
    """Drafts of one request so far.

    :ivar logits, hidden: of the next one, valid until the predictor's next step.
    :ivar proposals: of the drafts that were drawn, fp64 ``[V]`` each.
    """

    request: DraftRequest
    end: int
    logits: Tensor
    hidden: Tensor
    tokens: tuple[int, ...] = ()
    proposals: list[Tensor] = field(factory=list)
    is_over: bool = False

    @property
    def wants_more(self) -> bool:
        return not self.is_over and len(self.tokens) < self.request.limit

    @property
    def draft(self) -> Draft:
        return Draft(self.tokens, torch.stack(self.proposals) if self.proposals else None)


class MtpSpeculator:
    """Runs the predictor over all that the model commits, on the model's hidden states, so that
    its own paged state is as if nothing had ever been drafted; then over its own drafts, on its own
    hidden states, whose paged state lies beyond the frontier and is written again next time.

    Drafts of greedy requests are the likeliest tokens; others are drawn as the model's token will
    be, and come with the distribution they were drawn from. Where drawing does not make the host
    wait, drafts of requests that are free and far from their ends follow one another on the device,
    and the host sees them when all are there; if all are greedy, that is behind the step before,
    which the host has not seen either.
    """

    def __init__(self, context: SpeculatorContext) -> None:
        self._model: PredictingModel = context.model
        self._predictor = _predictor(context.model)
        self.max_drafts = context.draft_tokens
        self._vocabulary = _Vocabulary(self._predictor.token_ids, context.vocab_size)
        self._width, self._max_rows = 1 + context.draft_tokens, context.max_sequences
        self._batch = BatchBuilder(
            max_rows=context.max_sequences + 1, max_tokens=context.max_tokens,
            max_logits=context.max_sequences, max_pages=-(-context.max_context // PAGE_TOKENS),
            device=context.device,
        )
        self._judge: Judge = context.judge or Judge()
        self._is_captured = False
        self._hidden = torch.empty_like(self._model.hidden(1)).repeat(context.max_tokens, 1)
        self._forward: Callable[[StepBatch], tuple[Tensor, Tensor]] = self._predict
        self._ahead = RoundAhead(
            self._model, self._batch, self._likeliest, width=self._width,
            max_rows=self._max_rows, device=self._hidden.device,
        )
        self._held = dict[int, _Held | Ahead]()

    @torch.inference_mode()
    def capture(self) -> None:
        """Predict by captured graphs from now on: whole chunks of prompts, one draft of each row,
        and what decode steps commit, with padding behind it to as many tokens as could have been
        accepted."""
        captured = CapturedForward(self._predict)
        for bound in reversed(self._batch.page_bounds):
            captured.capture(self._batch.pad(1, len(self._hidden), certain=True, num_pages=bound))
        for num_rows in range(self._max_rows, 0, -1):
            captured.capture(self._batch.pad(num_rows, 1))
            rows = [_padding(self._width, num_logits=1)] * num_rows
            captured.capture(self._batch.fill([*rows, _padding(0)]))
        if not self._judge.waits:
            self._ahead.capture()
        self._forward, self._is_captured = captured, True

    def advance(self, steps: Sequence[Advance]) -> None:
        """Read the committed tokens; the last of each sequence is what its next drafts follow."""
        steps = [step for step in steps if not self._was_read(step)]
        if not steps:
            return
        rows = [
            Row(step.request_id, step.state, step.begin, step.tokens[step.begin + 1 : step.end + 1],
                num_logits=1)
            for step in steps
        ]
        spans = [range(s.first_row, s.first_row + s.end - s.begin) for s in steps]
        hidden, count = self._model.hidden(max(span.stop for span in spans)), sum(map(len, spans))
        torch.cat([hidden[span.start : span.stop] for span in spans], out=self._hidden[:count])
        if self._is_captured and all(len(span) <= self._width for span in spans):
            rows.append(_padding(len(steps) * self._width - count))
        logits, own = self._forward(self._batch.fill(rows))
        for step, *last in zip(steps, logits.clone(), own.clone(), strict=True):
            self._held[step.request_id] = _Held(step.end, *last)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Drafts of all requests, each position of them in one step of the predictor; none for a
        request whose last tokens it has not read."""
        begun = [self._begin(request) for request in requests]
        chains = [each for each in begun if isinstance(each, _Chain)]
        at_once = [] if self._judge.waits else [c for c in chains if self._is_plain(c.request)]
        if at_once:
            self._draft_at_once(at_once)
        one_by_one = going = [chain for chain in chains if chain not in at_once]
        while going:
            self._draw(going)
            going = [chain for chain in one_by_one if chain.wants_more]
            if going:
                self._extend(going)
        return [each.draft if isinstance(each, _Chain) else each for each in begun]

    def draft_ahead(self, rows: Sequence[Row], tokens: Tensor, accepted: Tensor) -> Tensor:
        """See `AheadSpeculator.draft_ahead`."""
        inputs = self._ahead(rows, tokens, accepted)
        for i, row in enumerate(rows):
            self._held[row.sequence_id] = Ahead(inputs, i, row.begin)
        return inputs

    def drafted_ahead(self, requests: Sequence[DraftRequest]) -> Tensor | None:
        """See `AheadSpeculator.drafted_ahead`."""
        held = [self._held.get(request.request_id) for request in requests]
        inputs = held[0].inputs if isinstance(held[0], Ahead) else None
        if inputs is None or len(inputs) != len(requests):
            return None
        for i, (each, request) in enumerate(zip(held, requests, strict=True)):
            if not isinstance(each, Ahead) or each.inputs is not inputs or each.row != i:
                return None
            if each.end != len(request.tokens) - 1:
                return None
        return inputs

    def release(self, request_id: int) -> None:
        """Forget a request."""
        self._held.pop(request_id, None)

    def _was_read(self, step: Advance) -> bool:
        """Whether a step was read behind it; how far it goes is known now."""
        held = self._held.get(step.request_id)
        if not isinstance(held, Ahead) or held.end is not None or held.begin != step.begin:
            return False
        self._held[step.request_id] = evolve(held, end=step.end)
        return True

    def _begin(self, request: DraftRequest) -> _Chain | Draft:
        """What is to be drafted, or is."""
        held = self._held.get(request.request_id)
        if held is None or held.end != len(request.tokens) - 1:
            return Draft()
        if isinstance(held, Ahead):
            return Draft(tuple(held.inputs[held.row, 1 : 1 + request.limit].tolist()))
        return _Chain(request, held.end, held.logits, held.hidden)

    def _is_plain(self, request: DraftRequest) -> bool:
        """Whether it can have as many drafts as there are at most, and each is drawn alike. What a
        mask forbids later in the round is cut off."""
        return request.limit == self.max_drafts and bool(request.row(()).is_free)

    def _draft_at_once(self, chains: Sequence[_Chain]) -> None:
        """All drafts of all of them; they end before one for which there is none."""
        rows, count = [chain.request.row(()) for chain in chains], len(chains)
        batch = self._batch.fill([
            Row(each.request.request_id, each.request.state, each.end, [0], num_logits=1)
            for each in chains
        ])
        logits = torch.stack([chain.logits for chain in chains])
        hidden = torch.stack([chain.hidden for chain in chains])
        drawn: list[tuple[Tensor, Tensor | None]] = []
        while True:
            drawn.append(self._judge.propose(self._vocabulary.spread(logits), rows))
            if len(drawn) == self.max_drafts:
                break
            torch.clamp(drawn[-1][0], min=0, out=batch.token_ids[:count])
            self._hidden[:count].copy_(hidden)
            logits, hidden = self._forward(batch)
            rows = [evolve(row, position=row.position + 1) for row in rows]
            for each in (batch.positions, batch.rope_positions, batch.context_len):
                each[..., :count].add_(1)
        _give(chains, drawn, [row.params.temperature > 0 for row in rows])

    def _draw(self, chains: Sequence[_Chain]) -> None:
        """The next token of each chain; one for which there is none is over."""
        logits = self._vocabulary.spread(torch.stack([chain.logits for chain in chains]))
        rows = [chain.request.row(chain.tokens) for chain in chains]
        tokens, proposals = self._judge.propose(logits, rows)
        for i, (chain, row, token) in enumerate(zip(chains, rows, tokens.tolist(), strict=True)):
            chain.is_over = token == INVALID
            if not chain.is_over:
                chain.tokens = (*chain.tokens, token)
                if proposals is not None and row.params.temperature > 0:
                    chain.proposals.append(proposals[i])

    def _extend(self, chains: Sequence[_Chain]) -> None:
        """Read the last draft of each chain."""
        rows = [
            Row(chain.request.request_id, chain.request.state, chain.end + len(chain.tokens) - 1,
                chain.tokens[-1:], num_logits=1)
            for chain in chains
        ]
        torch.stack([chain.hidden for chain in chains], out=self._hidden[: len(chains)])
        for chain, *last in zip(chains, *self._forward(self._batch.fill(rows)), strict=True):
            chain.logits, chain.hidden = last

    def _likeliest(self, logits: Tensor, out: Tensor) -> None:
        self._vocabulary.likeliest(logits, out, self._judge)

    def _predict(self, batch: StepBatch) -> tuple[Tensor, Tensor]:
        """Logits of the wanted tokens and hidden states, valid until the next call."""
        return self._predictor.forward(batch, self._hidden[: batch.num_tokens])


class _Vocabulary:
    """Which tokens the predictor's logits are of.

    :param token_ids: int64 ``[N]``; None: all, in order. :param size: tokens that there are.
    """

    def __init__(self, token_ids: Tensor | None, size: int) -> None:
        self._token_ids, self._size = token_ids, size
        self._width, self._known = size, None
        if token_ids is not None:
            self._width = max(size, int(token_ids.max()) + 1)
            self._known = token_ids.masked_fill(token_ids >= size, -1)

    def spread(self, logits: Tensor) -> Tensor:
        """``[R, N]`` to ``[R, V]``; tokens without logits have -inf."""
        if self._token_ids is not None:
            whole = logits.new_full((len(logits), self._width), -torch.inf)
            logits = whole.index_copy_(1, self._token_ids, logits)
        return logits[:, : self._size]

    def likeliest(self, logits: Tensor, out: Tensor, judge: Judge) -> None:
        """Tokens int64 ``[R]`` for ``[R, N]``, the first where there is none."""
        if self._known is None:
            logits = logits[:, : self._size]
        tokens = judge.likeliest(logits, self._known, out=out, least=0)
        assert tokens is not None, "the model's tokens are made within its steps"


def _give(
    chains: Sequence[_Chain], drawn: Sequence[tuple[Tensor, Tensor | None]],
    is_warm: Sequence[bool],
) -> None:
    """To each its drafts, of the tokens and the distributions of each place.

    :param is_warm: whether a request's tokens were drawn at random.
    """
    tokens = torch.stack([each for each, _ in drawn]).tolist()
    for i, (chain, warm) in enumerate(zip(chains, is_warm, strict=True)):
        found = tuple(takewhile(lambda token: token != INVALID, (each[i] for each in tokens)))
        shares = [each[i] for _, each in drawn[: len(found)] if each is not None and warm]
        chain.tokens, chain.proposals = found, shares


def _padding(num_tokens: int, num_logits: int = 0) -> Row:
    """A row of page 0, which no sequence owns."""
    return Row(0, SequenceState(0), 0, [0] * num_tokens, num_logits)


def _predictor(model: object) -> NextTokenPredictor:
    predictor: NextTokenPredictor | None = getattr(model, "predictor", None)
    if predictor is None:
        raise UnsupportedError(
            "the model cannot predict its own tokens", why="its pack builds no predictor",
            fix="choose another --spec, or none",
        )
    return predictor
