"""The engine: cycles of steps over all requests."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from itertools import count

import torch

from ninfer_core.api import (
    CapacityError,
    ConstraintCompiler,
    Frontend,
    Model,
    NInferError,
    Progress,
    QueueTimeoutError,
    Speculator,
)
from ninfer_core.engine.commit import settle
from ninfer_core.engine.constraints import constrain
from ninfer_core.engine.execution import Execution
from ninfer_core.engine.faults import ModelError
from ninfer_core.engine.holdings import Holdings, RequestHolding
from ninfer_core.engine.intake import Intake
from ninfer_core.engine.request import (
    Finished,
    FinishReason,
    GenerationRequest,
    Sink,
    Started,
)
from ninfer_core.engine.residence import Residence
from ninfer_core.engine.scheduler import Limits, Record, StepPlan, plan, wanted_pages
from ninfer_core.engine.sequence import Sequence
from ninfer_core.engine.status import EngineStatus
from ninfer_core.engine.trace import Decision, Trace
from ninfer_core.sampling.rows import TokenHistory, penalises
from ninfer_core.sampling.verify import Judge
from ninfer_core.speculation.counts import DraftCounts
from ninfer_core.state.prefix_cache import CacheStatistics, PrefixCache
from ninfer_core.state.store import StateStore

_log = logging.getLogger(__name__)


class Engine:
    """Serves requests. `submit` and `cancel` may be called from any thread; everything else
    belongs to the one thread that calls `step`.

    :param model: built on ``store``, for steps of a prefill chunk and of all decode rows.
    :param cache: on ``store``, of states that later requests go on from; None keeps none.
    :param speculator: drafts tokens; None decodes one token a step.
    :param compiler: of the grammars of requests; without it they are refused.
    :param judge: draws tokens and judges drafts; the reference if None.
    :param vocab_size: ids that the model knows, if the tokenizer may have more.
    :param trace: gets the decisions of the scheduler.
    :ivar num_pauses: how often a request gave way to others.
    """

    def __init__(
        self, model: Model, frontend: Frontend, store: StateStore, limits: Limits, *,
        cache: PrefixCache | None = None, speculator: Speculator | None = None,
        compiler: ConstraintCompiler | None = None, judge: Judge | None = None,
        vocab_size: int | None = None, device: torch.device | str = "cpu",
        clock: Callable[[], float] = time.monotonic, trace: Trace | None = None,
    ) -> None:
        self._frontend, self.limits, self._store, self._clock = frontend, limits, store, clock
        known = frontend.tokenizer.vocab_size
        self._vocab_size = known if vocab_size is None else min(known, vocab_size)
        self._device, self.cache, self.trace = device, cache, trace or Trace()
        self._intake = Intake(
            frontend, store, limits, self._vocab_size, reuses=cache is not None,
            compiler=compiler,
        )
        self._residence = Residence(
            store, cache, frontend.tokenizer, drafts=speculator is not None
        )
        self._execution = Execution(
            model, limits, self._residence, speculator=speculator, vocab_size=self._vocab_size,
            device=device, clock=clock, judge=judge,
        )
        self._speculation, self._width = self._execution.speculation, self._execution.width
        self._sequences: dict[int, Sequence] = {}  # running or waiting, in order of submission
        self._lock, self._ids = threading.Lock(), count(1)
        self._cycle = self._peak_sequences = self._peak_pages = self.num_pauses = 0
        self._closed = False

    @property
    def drafts(self) -> DraftCounts:
        """Rounds of all requests so far."""
        return self._execution.drafts

    def capture(self, progress: Progress | None = None) -> None:
        """Run by captured graphs from now on; before the first request, on a GPU, and only if
        all kernels of the model may be in one."""
        self._execution.capture(progress)

    def submit(self, request: GenerationRequest, sink: Sink) -> int:
        """Queue a request and return its id; ``sink`` gets its events on the engine's thread.

        :raises RequestError: if it can never be served.
        :raises CapacityError: if as many are running or queued as the limits allow.
        """
        sequence = self._intake.accept(request, sink, cycle=self._cycle, now=self._clock())
        most = self.limits.max_sequences + self.limits.max_queue
        with self._lock:
            if self._closed:
                raise NInferError("the engine is closed")
            if len(self._sequences) >= most:
                why = f"{most} of {most} are running or queued"
                raise CapacityError("too many requests", why=why, fix="try again later")
            sequence.id = next(self._ids)  # threads queue in the order of their ids
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
        for sequence in sequences:
            self._end_early(sequence)
        step = StepPlan()
        with self._blaming(sequences):
            step = self._arrange(self._present(sequences))
        self._grant(step)
        if decoding := self._present(sequences, step.decode):
            with self._blaming(decoding):
                self._execution.decode(decoding, alone=step.prefill is None)
            self._finish_ended(decoding)
        for reading in self._present(sequences, (step.prefill,)):
            with self._blaming([reading]):
                self._execution.prefill(reading, step.prefill_end, self._cycle)
            self._finish_ended([reading])
        return bool(self._sequences)

    def run_until_idle(self) -> None:
        """Run cycles until no request is left."""
        while self.step():
            pass

    def pause(self, request_id: int) -> None:
        """Let a running request give way until the next cycle, as it does for want of memory."""
        sequence = self._sequences.get(request_id)
        if sequence is not None and sequence.state is not None:
            self._pause(sequence)

    def status(self) -> EngineStatus:
        """How it is doing; from any thread."""
        with self._lock:
            sequences = list(self._sequences.values())
        states = [(each, each.state) for each in sequences]  # read once: the engine goes on
        running = [(each, state) for each, state in states if state is not None]
        paused = sum(state is None and each.admitted_at is not None for each, state in states)
        pool, cache = self._store.pool, self.cache
        host = cache.host if cache else None
        return EngineStatus(
            cycle=self._cycle, running=len(running), paused=paused,
            reading=sum(each.frontier < each.end for each, _ in running),
            replaying=sum(each.frontier < each.reached for each, _ in running),
            waiting=len(sequences) - len(running) - paused,
            page_bytes=self._store.page_bytes, num_pages=pool.num_pages, free_pages=pool.num_free,
            sequence_pages=sum(len(state.pages) for _, state in running),
            host_pages=host.pool.num_pages if host else 0,
            free_host_pages=host.num_free if host else 0, pauses=self.num_pauses,
            tokens=self._execution.tokens, drafts=self.drafts,
            cache=cache.statistics if cache else CacheStatistics(),
        )

    def holdings(self) -> Holdings:
        """Who holds which memory."""
        with self._lock:
            sequences = list(self._sequences.values())
        requests = tuple(map(RequestHolding.of, sequences))
        kept = self.cache.conversations() if self.cache else ()
        return Holdings(self._store.page_bytes, requests, kept)

    def persist(self) -> bool:
        """Write a restore point to disk, if there is a tier for it and a point worth it; return
        whether one was. For moments without requests."""
        return self._residence.persist()

    def close(self, cause: Exception | None = None) -> None:
        """Take no more requests and end those there are: cancelled, or failed with a cause."""
        with self._lock:
            self._closed = True
        for sequence in list(self._sequences.values()):
            self._finish(sequence, "error" if cause else "cancelled", cause)
        while cause is None and self.persist():
            pass
        if self.cache:
            self.cache.clear()

    def audit(self) -> None:
        """Raise `NInferError` unless the engine is idle and no page, slot or snapshot is lost."""
        if self._sequences or self._store.num_sequences:
            raise NInferError("the engine is not idle", why=f"requests {list(self._sequences)}")
        if self.cache is None:
            return self._store.audit()
        self.cache.audit()
        if any(point.holds or point.awaits for point in self.cache.points):
            raise NInferError("a restore point is held for nobody")

    def _present(
        self, sequences: Iterable[Sequence], tickets: Container[int | None] | None = None
    ) -> list[Sequence]:
        """Those that have not ended, or of these the ones with some tickets."""
        present = (each for each in sequences if each.id in self._sequences)
        return [each for each in present if tickets is None or each.id in tickets]

    def _end_early(self, sequence: Sequence) -> None:
        waited = self._clock() - sequence.submitted_at
        deadline, longest = sequence.request.deadline_s, self.limits.queue_timeout_s
        if sequence.cancelled:
            settle(sequence, [], reason="cancelled")
        elif deadline is not None and waited >= deadline:
            settle(sequence, [], reason="deadline")
        elif longest is not None and sequence.admitted_at is None and waited >= longest:
            why = f"{waited:.1f} s in the queue, and {longest:.1f} s are allowed"
            cause = QueueTimeoutError("the request waited too long", why=why, fix="try again later")
            settle(sequence, [], reason="deadline", cause=cause)
        self._finish_ended([sequence])

    def _arrange(self, sequences: list[Sequence]) -> StepPlan:
        """Pause and admit requests until those that can step in this cycle have room for it."""
        admits = True
        while True:
            step = self._decide(sequences, admits)
            if step.pause is not None:
                self._pause(self._sequences[step.pause])
            elif step.admit:
                self._admit(sequences, step.admit)
            else:
                break
            admits, sequences = False, self._present(sequences)
        if step.is_empty and (stuck := next((s for s in sequences if s.state is not None), None)):
            why = f"{self._store.pool.num_free} pages are free, and nobody is left to make room"
            self._fail(stuck, CapacityError("a request cannot go on", why=why))
        return step

    def _decide(self, sequences: list[Sequence], admits: bool) -> StepPlan:
        limits, residence = self.limits, self._residence
        records = [each.record(self._width) for each in sequences if each.state is not None]
        wanted = wanted_pages(records, limits)
        residence.make_room(wanted)
        if admits and len(records) < limits.max_sequences and len(records) < len(sequences):
            records += self._waiting(sequences, wanted, len(records))
            records.sort(key=lambda record: record.ticket)
        free_pages = residence.free_pages
        step = plan(records, limits, free_pages, admits=admits)
        self.trace.add(Decision(tuple(records), free_pages, admits, step))
        return step

    def _waiting(self, sequences: list[Sequence], wanted: int, running: int) -> list[Record]:
        """Records of the next requests that might be admitted, with room for the first of them for
        which there can be.

        :param wanted: pages that the running ones want.
        """
        most = self.limits.max_sequences
        waiting = [each for each in sequences if each.state is None][: 1 + most]
        records = [s.record(self._width, self._residence.shared_pages(s)) for s in waiting]
        for sequence, record in zip(waiting, records, strict=True):
            needed = wanted + record.to_start + running
            if self._residence.make_room_for(sequence, needed) or record.passed >= most:
                break
        return records

    def _admit(self, sequences: Iterable[Sequence], tickets: tuple[int, ...]) -> None:
        for sequence in sequences:
            if sequence.id in tickets:
                with self._blaming([sequence]):
                    self._enter(sequence)
            elif sequence.state is None:
                sequence.passed += sum(sequence.id < ticket for ticket in tickets)
        self._peak_sequences = max(self._peak_sequences, self._store.num_sequences)

    def _enter(self, sequence: Sequence) -> None:
        request = sequence.request
        self._residence.enter(sequence)
        if sequence.admitted_at is not None:
            return
        sequence.admitted_at = self._clock()
        self._execution.tokens.prompt += sequence.num_prompt
        self._execution.tokens.reused += sequence.reuse.num_tokens
        sequence.tell(Started(sequence.reuse, sequence.admitted_at - sequence.submitted_at))
        if penalises(request.sampling):
            prompt = request.prompt.token_ids
            sequence.history = TokenHistory(self._vocab_size, prompt, self._device)
        sequence.constraint = constrain(
            request, sequence.content, self._frontend.reasoning_tokens, sequence.end_ids,
            self._vocab_size,
        )

    def _pause(self, sequence: Sequence) -> None:
        self.num_pauses += 1
        self._residence.pause(sequence)

    def _grant(self, step: StepPlan) -> None:
        """Hand out all pages of a cycle before any of it runs: what ends in it leaves states that
        take pages."""
        for ticket in (*step.decode, *(() if step.prefill is None else (step.prefill,))):
            sequence = self._sequences[ticket]
            with self._blaming([sequence]):
                assert sequence.state is not None
                reads, end = ticket == step.prefill, step.prefill_end
                self._store.grow(
                    sequence.state, end if reads else sequence.most_after_step(self._width)
                )
        pool = self._store.pool
        self._peak_pages = max(self._peak_pages, pool.num_pages - pool.num_free)

    def _finish_ended(self, sequences: Iterable[Sequence]) -> None:
        for sequence in self._present(sequences):
            if sequence.ending is not None:
                self._finish(sequence, *sequence.ending)

    def _finish(
        self, sequence: Sequence, reason: FinishReason, cause: Exception | None = None
    ) -> None:
        with self._lock:
            del self._sequences[sequence.id]
        if isinstance(cause, ModelError):
            self._residence.distrust(sequence)
        elif sequence.state is not None and reason != "error":
            self._residence.keep(sequence, "turn" if sequence.num_output else "prompt")
        self._residence.leave(sequence)
        self._speculation.release(sequence.id)
        timings = sequence.timings(self._clock(), self._peak_sequences, self._peak_pages)
        output = tuple(sequence.tokens[sequence.num_prompt :])
        stop = sequence.output.matched
        finished = Finished(reason, sequence.usage, timings, output, stop, cause, sequence.reuse)
        try:
            sequence.sink(finished)
        except Exception:
            _log.warning("the sink of request %d failed", sequence.id, exc_info=True)

    @contextmanager
    def _blaming(self, sequences: Iterable[Sequence]) -> Iterator[None]:
        """Fail the requests that a fault touches, with their states."""
        try:
            yield
        except Exception as error:
            _log.exception("a step failed, and the requests in it")
            for sequence in self._present(sequences):
                self._fail(sequence, error)

    def _fail(self, sequence: Sequence, cause: Exception) -> None:
        """End a request with an error; what it went on from is given up, if no step has worked
        since."""
        if sequence.state is not None and sequence.frontier == sequence.entered_at:
            self._residence.distrust(sequence)
        self._finish(sequence, "error", cause)
