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
    wait, and all requests are free and far from their ends, a round's drafts follow one another on
    the device, and the host sees them when all are there.
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
        self._held = dict[int, _Held]()

    @torch.inference_mode()
    def capture(self) -> None:
        """Predict by captured graphs from now on: one draft of each row, and what decode steps
        commit, with padding behind it to as many tokens as could have been accepted."""
        captured = CapturedForward(self._predict)
        for num_rows in range(self._max_rows, 0, -1):
            captured.capture(self._batch.pad(num_rows, 1))
            rows = [_padding(self._width, num_logits=1)] * num_rows
            captured.capture(self._batch.fill([*rows, _padding(0)]))
        self._forward, self._is_captured = captured, True

    def advance(self, steps: Sequence[Advance]) -> None:
        """Read the committed tokens; the last of each sequence is what its next drafts follow."""
        rows = [
            Row(step.request_id, step.state, step.begin, step.tokens[step.begin + 1 : step.end + 1],
                num_logits=1)
            for step in steps
        ]
        spans = [range(s.first_row, s.first_row + s.end - s.begin) for s in steps]
        hidden = self._model.hidden(max(span.stop for span in spans))
        taken = torch.tensor([index for span in spans for index in span], device=hidden.device)
        torch.index_select(hidden, 0, taken, out=self._hidden[: len(taken)])
        if self._is_captured and all(len(span) <= self._width for span in spans):
            rows.append(_padding(len(steps) * self._width - len(taken)))
        logits, own = self._forward(self._batch.fill(rows))
        for step, *last in zip(steps, logits.clone(), own.clone(), strict=True):
            self._held[step.request_id] = _Held(step.end, *last)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Drafts of all requests, each position of them in one step of the predictor; none for a
        request whose last tokens it has not read."""
        chains = [self._begin(request) for request in requests]
        if not self._judge.waits and all(c and self._is_plain(c.request) for c in chains):
            return self._draft_at_once(requests)
        going = [chain for chain in chains if chain]
        while going:
            self._draw(going)
            going = [chain for chain in going if chain.wants_more]
            if going:
                self._extend(going)
        return [chain.draft if chain else Draft() for chain in chains]

    def release(self, request_id: int) -> None:
        """Forget a request."""
        self._held.pop(request_id, None)

    def _begin(self, request: DraftRequest) -> _Chain | None:
        held = self._held.get(request.request_id)
        if held is None or held.end != len(request.tokens) - 1:
            return None
        return _Chain(request, held.end, held.logits, held.hidden)

    def _is_plain(self, request: DraftRequest) -> bool:
        """Whether it can have as many drafts as there are at most, and each is drawn alike. What a
        mask forbids later in the round is cut off."""
        return request.limit == self.max_drafts and bool(request.row(()).is_free)

    def _draft_at_once(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """All drafts of all requests; they end before one for which there is none."""
        held, count = [self._held[request.request_id] for request in requests], len(requests)
        rows = [request.row(()) for request in requests]
        batch = self._batch.fill([
            Row(request.request_id, request.state, each.end, [0], num_logits=1)
            for request, each in zip(requests, held, strict=True)
        ])
        logits = torch.stack([each.logits for each in held])
        hidden = torch.stack([each.hidden for each in held])
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
        return _drafts_of(drawn, [row.params.temperature > 0 for row in rows])

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

    def _predict(self, batch: StepBatch) -> tuple[Tensor, Tensor]:
        """Logits of the wanted tokens and hidden states, valid until the next call."""
        return self._predictor.forward(batch, self._hidden[: batch.num_tokens])


class _Vocabulary:
    """Spreads logits of a shortlist over the whole vocabulary.

    :param token_ids: int64 ``[N]``, tokens that the logits are of; None: all, in order.
    """

    def __init__(self, token_ids: Tensor | None, size: int) -> None:
        self._token_ids, self._size = token_ids, size
        self._width = size if token_ids is None else max(size, int(token_ids.max()) + 1)

    def spread(self, logits: Tensor) -> Tensor:
        """``[R, N]`` to ``[R, V]``; tokens without logits have -inf."""
        if self._token_ids is not None:
            whole = logits.new_full((len(logits), self._width), -torch.inf)
            logits = whole.index_copy_(1, self._token_ids, logits)
        return logits[:, : self._size]


def _drafts_of(
    drawn: Sequence[tuple[Tensor, Tensor | None]], is_warm: Sequence[bool]
) -> list[Draft]:
    """Of each request, from the tokens and the distributions of each place.

    :param is_warm: whether a request's tokens were drawn at random.
    """
    tokens, drafts = torch.stack([each for each, _ in drawn]).tolist(), []
    for i, warm in enumerate(is_warm):
        found = tuple(takewhile(lambda token: token != INVALID, (each[i] for each in tokens)))
        shares = [each[i] for _, each in drawn[: len(found)] if each is not None and warm]
        drafts.append(Draft(found, torch.stack(shares) if shares else None))
    return drafts


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
