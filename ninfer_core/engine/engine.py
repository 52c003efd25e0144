"""The engine: cycles of steps over all requests."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from itertools import count

import torch

from ninfer_core.api import CapacityError, Frontend, Model, NInferError, RequestError, Speculator
from ninfer_core.engine import commit
from ninfer_core.engine.constraints import check_constraints, constrain
from ninfer_core.engine.output import TextOutput
from ninfer_core.engine.request import Finished, FinishReason, GenerationRequest, Sink
from ninfer_core.engine.runner import Runner
from ninfer_core.engine.scheduler import Limits, plan
from ninfer_core.engine.sequence import Sequence
from ninfer_core.sampling.rows import SampleRow, TokenHistory, penalises
from ninfer_core.sampling.sampler import INVALID
from ninfer_core.sampling.verify import Drafted, Verdict
from ninfer_core.speculation.counts import DraftCounts
from ninfer_core.speculation.round import Speculation
from ninfer_core.state.step import PAGE_TOKENS
from ninfer_core.state.store import StateStore
from ninfer_core.text.parsers import PlainParser

_log = logging.getLogger(__name__)


class Engine:
    """Serves requests. `submit` and `cancel` may be called from any thread; everything else
    belongs to the one thread that calls `step`.

    :param model: built on ``store``, for steps of a prefill chunk and of all decode rows.
    :param speculator: drafts tokens; None decodes one token a step.
    :param vocab_size: ids that the model knows, if the tokenizer may have more.
    :ivar drafts: rounds of all requests so far.
    """

    def __init__(
        self, model: Model, frontend: Frontend, store: StateStore, limits: Limits, *,
        speculator: Speculator | None = None, vocab_size: int | None = None,
        device: torch.device | str = "cpu", clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._frontend, self._limits, self._store, self._clock = frontend, limits, store, clock
        known = frontend.tokenizer.vocab_size
        self._vocab_size = known if vocab_size is None else min(known, vocab_size)
        self._device, self.drafts = device, DraftCounts()
        self._speculation = Speculation(speculator, self._vocab_size)
        self._runner = Runner(model, limits, self._speculation.width, self._vocab_size, device)
        self._sequences: dict[int, Sequence] = {}  # running or queued, in order of submission
        self._lock, self._ids = threading.Lock(), count(1)
        self._cycle = self._peak_sequences = self._peak_pages = 0
        self._closed = False

    def submit(self, request: GenerationRequest, sink: Sink) -> int:
        """Queue a request and return its id; ``sink`` gets its events on the engine's thread.

        :raises RequestError: if it can never be served.
        :raises CapacityError: if as many are running or queued as the limits allow.
        """
        sequence = self._new_sequence(request, sink)
        most = self._limits.max_sequences + self._limits.max_queue
        with self._lock:
            if self._closed:
                raise NInferError("the engine is closed")
            if len(self._sequences) >= most:
                why = f"{most} of {most} are running or queued"
                raise CapacityError("too many requests", why=why, fix="try again later")
            self._sequences[sequence.id] = sequence
        return sequence.id

    def cancel(self, request_id: int) -> None:
        """End a request before its next step; one that is gone is left alone."""
        if sequence := self._sequences.get(request_id):
            sequence.cancelled = True

    @torch.inference_mode()
    def step(self) -> bool:
        """Run one cycle and return whether requests are left."""
        self._cycle += 1
        with self._lock:
            sequences = list(self._sequences.values())
        sequences = [s for s in sequences if not self._ended_early(s)]
        waiting = [s for s in sequences if s.state is None]
        running = [s for s in sequences if s.state is not None]
        step = plan(waiting, running, self._limits, self._store.pool.num_free)
        try:
            for sequence in step.admit:
                self._admit(sequence)
            if step.decode:
                self._decode(step.decode)
            if step.prefill:
                self._prefill(step.prefill, step.num_prefill)
        except Exception as error:
            _log.exception("a step failed, and all running requests with it")
            for sequence in sequences:
                if sequence.state is not None:
                    self._finish(sequence, "error", error)
        return bool(self._sequences)

    def run_until_idle(self) -> None:
        """Run cycles until no request is left."""
        while self.step():
            pass

    def close(self, cause: Exception | None = None) -> None:
        """Take no more requests and end those there are: cancelled, or failed with a cause."""
        with self._lock:
            self._closed = True
        for sequence in list(self._sequences.values()):
            self._finish(sequence, "error" if cause else "cancelled", cause)

    def audit(self) -> None:
        """Raise `NInferError` unless the engine is idle and no page or slot is lost."""
        if self._sequences or self._store.num_sequences:
            raise NInferError("the engine is not idle", why=f"requests {list(self._sequences)}")
        self._store.audit()

    def _new_sequence(self, request: GenerationRequest, sink: Sink) -> Sequence:
        frontend, prompt = self._frontend, request.prompt
        check_constraints(request, frontend.reasoning_tokens)
        parser = PlainParser() if request.raw else frontend.parser(prompt)
        eos = frozenset[int]() if request.ignore_eos else frontend.eos_token_ids
        limit, num_pages = self._reservation(request)
        return Sequence(
            id=next(self._ids), request=request, sink=sink,
            output=TextOutput(
                frontend.tokenizer.token_bytes, parser, request.stop, request.min_tokens
            ),
            end_ids=eos | request.stop_token_ids, limit=limit, num_pages=num_pages,
            tokens=list(prompt.token_ids), last_cycle=self._cycle, submitted_at=self._clock(),
        )

    def _reservation(self, request: GenerationRequest) -> tuple[int, int]:
        """Most tokens of a request and the pages they take."""
        ids, most = request.prompt.token_ids, self._limits.max_context
        if not 0 <= min(ids) <= max(ids) < self._vocab_size:
            raise RequestError("the prompt has token ids that do not exist")
        if len(ids) >= most:
            why = f"{len(ids)} tokens and an output do not go into a sequence of {most}"
            raise RequestError("the prompt is too long", why=why, fix="raise --max-context")
        limit, pages = min(len(ids) + request.max_tokens, most), self._store.pool.num_pages
        needed = -(-limit // PAGE_TOKENS) if self._store.bytes_per_token else 0
        if needed > pages:
            why = f"it may take {needed} pages and there are {pages}"
            raise RequestError("the request is too large", why=why, fix="lower its max_tokens")
        return limit, needed

    def _ended_early(self, sequence: Sequence) -> bool:
        deadline = sequence.request.deadline_s
        if sequence.cancelled:
            self._commit(sequence, [], reason="cancelled")
        elif deadline is not None and self._clock() >= sequence.submitted_at + deadline:
            self._commit(sequence, [], reason="deadline")
        return sequence.id not in self._sequences

    def _admit(self, sequence: Sequence) -> None:
        """Reserve all that a request may ever need, so that it never has to stop half-way."""
        store, request = self._store, sequence.request
        sequence.state = store.open()
        store.grow(sequence.state, sequence.limit)
        if penalises(request.sampling):
            prompt = request.prompt.token_ids
            sequence.history = TokenHistory(self._vocab_size, prompt, self._device)
        sequence.constraint = constrain(
            request, self._frontend.reasoning_tokens, sequence.end_ids, self._vocab_size,
            self._device,
        )
        sequence.admitted_at = self._clock()
        self._peak_sequences = max(self._peak_sequences, store.num_sequences)
        self._peak_pages = max(self._peak_pages, store.pool.num_pages - store.pool.num_free)

    def _decode(self, sequences: tuple[Sequence, ...]) -> None:
        speculation = self._speculation
        requests = [each.draft_request(speculation.width - 1) for each in sequences]
        drafts = speculation.propose(requests)
        rows = [
            each.step_row([each.tokens[-1], *drafted.drafts], len(drafted.rows),
                          certain=not drafted.drafts)
            for each, drafted in zip(sequences, drafts, strict=True)
        ]
        verdicts = speculation.verify(self._runner.decode(rows), drafts)
        steps, first_row = [], 0
        for sequence, request, row, drafted, verdict in zip(
            sequences, requests, rows, drafts, verdicts, strict=True
        ):
            drafted_tokens = len(drafted.drafts)
            self._count(sequence, request.limit, drafted_tokens, verdict.accepted)
            self._settle(sequence, drafted, verdict)
            if sequence.state is not None:
                steps.append(sequence.advance(
                    row.begin, first_row, drafted=drafted_tokens, accepted=verdict.accepted
                ))
            first_row += len(row.token_ids)
        speculation.advance(steps)

    def _prefill(self, sequence: Sequence, num_tokens: int) -> None:
        assert sequence.state is not None
        begin, end = sequence.frontier, sequence.frontier + num_tokens
        logits = self._runner.prefill(sequence.step_row(sequence.tokens[begin:end], 1))
        sequence.frontier, sequence.state.replay, sequence.last_cycle = end, 0, self._cycle
        if end == sequence.num_prompt:
            plain = Drafted.cut(sequence.sample_row)
            [verdict] = self._speculation.verify(logits, [plain])
            sequence.first_token_at = self._clock()
            self._settle(sequence, plain, verdict)
        if sequence.state is not None:
            self._speculation.advance([sequence.advance(begin, 0, drafted=0, accepted=0)])

    def _count(self, sequence: Sequence, limit: int, drafted: int, accepted: int) -> None:
        for counts in (sequence.drafts, self.drafts):
            if drafted:
                counts.add_round(drafted, accepted)
            elif self._speculation.is_on and limit < 1:
                counts.fallbacks += 1

    def _settle(self, sequence: Sequence, drafted: Drafted, verdict: Verdict) -> None:
        fault = sequence.fault
        if fault is None and verdict.token == INVALID:
            fault = _fault_of(drafted.rows[verdict.accepted])
        if fault is not None:
            return self._finish(sequence, "error", fault)
        candidates = [*drafted.drafts[: verdict.accepted], verdict.token]
        self._commit(sequence, candidates, certain=not drafted.drafts)

    def _commit(
        self, sequence: Sequence, candidates: list[int], *, certain: bool = True,
        reason: FinishReason | None = None,
    ) -> None:
        cause = None
        try:
            kept = commit.preview(sequence, candidates, reason)
            if kept.token_ids:
                commit.accept(sequence, kept.token_ids, certain=certain)
            commit.publish(sequence, kept.parts)
            reason = kept.reason
        except Exception as error:  # a parser or a sink at fault fails its own request only
            reason, cause = "error", error
        if reason is not None:
            self._finish(sequence, reason, cause)

    def _finish(
        self, sequence: Sequence, reason: FinishReason, cause: Exception | None = None
    ) -> None:
        with self._lock:
            del self._sequences[sequence.id]
        if sequence.state is not None:
            self._store.close(sequence.state)
            sequence.state = None
        self._speculation.release(sequence.id)
        timings = sequence.timings(self._clock(), self._peak_sequences, self._peak_pages)
        output = tuple(sequence.tokens[sequence.num_prompt :])
        stop = sequence.output.matched
        try:
            sequence.sink(Finished(reason, sequence.usage, timings, output, stop, cause))
        except Exception:
            _log.warning("the sink of request %d failed", sequence.id, exc_info=True)


def _fault_of(row: SampleRow) -> NInferError:
    """Why nothing could be drawn."""
    if row.mask is not None and not row.mask.any():
        return RequestError("no token may follow", why="what the request asks for forbids them all")
    return NInferError("the model failed", why="its logits are not finite")
