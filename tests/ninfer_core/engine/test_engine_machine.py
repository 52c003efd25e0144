"""Requests, pauses, evictions, tiers and faults in any order: nothing is lost, nothing is mixed up,
and every answer is that of the same request alone."""

from __future__ import annotations

from collections import Counter
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest
from attrs import evolve
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ninfer_core.api import CapacityError, KVCodecSpec, PreparedPrompt
from ninfer_core.engine.request import Finished, GenerationRequest
from ninfer_core.state.store import StateStore
from ninfer_fixtures.faults import SITES, Fault, failing
from ninfer_fixtures.hash_model import STATES, HashModel
from ninfer_fixtures.registered import disk_tier
from ninfer_fixtures.schedules import SAMPLING, Drafting, alone, build_drafting, outcome

TEXTS = st.lists(st.tuples(st.integers(1, 3), st.sampled_from([1, 2, 30, 63, 64, 65, 66, 128])),
                 min_size=1, max_size=2)
"""Tokens and how often each is repeated; three tokens, so that prompts begin alike."""
OPTIONS = st.fixed_dictionaries({
    "max_tokens": st.sampled_from([0, 1, 4, 9, 40]), "sampling": st.sampled_from(SAMPLING),
    "use_cache": st.sampled_from([True, True, True, False]), "ignore_eos": st.booleans(),
    "stop": st.sampled_from([(), (), ("AB", "C")]), "min_tokens": st.integers(0, 1),
    "thinking_budget": st.sampled_from([None, None, 3]),
})
DRAFTING = st.sampled_from([
    Drafting(), Drafting(is_prompt=True), Drafting("mtp", 3, is_prompt=True),
    Drafting("mtp", 2, (True, False, False)),
    Drafting("mtp", 2, (True, False, False), is_prompt=True), Drafting("ngram", 4),
])
LONGEST = 380


class SinkFault(Fault):
    """A client raises."""


class EngineMachine(RuleBasedStateMachine):
    """Conversations with an engine, and what may happen to it meanwhile."""

    def __init__(self, folder):
        super().__init__()
        self.folder, self.now = folder, 0.0
        self.jobs, self.histories = {}, [[]]
        self.counts = Counter()

    @initialize(
        drafting=DRAFTING, max_sequences=st.integers(1, 4), num_pages=st.integers(7, 20),
        chunk=st.sampled_from([64, 128]), anchor=st.sampled_from([64, 128, 4096]),
        host_pages=st.sampled_from([0, 6, 16]), disk_pages=st.sampled_from([None, 8, 30]),
    )
    def begin(self, drafting, disk_pages, **options):
        self.room, self.drafting = TemporaryDirectory(dir=self.folder), drafting
        disk = disk_pages and disk_tier(Path(self.room.name), disk_pages)
        self.build = partial(
            build_drafting, drafting, disk=disk, max_queue=4, clock=lambda: self.now,
            queue_timeout_s=50, **options)
        self.parts, self.known = self.build()
        self.scratch = self.scratch_model()

    def scratch_model(self):
        """Another store of the same geometry, to look at snapshots."""
        store = StateStore(
            STATES, KVCodecSpec("fp32", "ninfer_core.state.codecs:Fp32Codec"), num_pages=12,
            max_sequences=1, max_context=512, max_verify_rows=1 + max(3, self.drafting.drafts))
        return SimpleNamespace(store=store, model=HashModel(store))

    @property
    def engine(self):
        return self.parts.engine

    @property
    def points(self):
        return list(self.engine.cache._points)

    @property
    def sequences(self):
        return self.engine._sequences

    @rule(
        data=st.data(), text=TEXTS, cut=st.sampled_from([0, 0, 0, 1, 64, 90]), options=OPTIONS,
        scope=st.sampled_from(["", "", "", ("image", b"\1")]), stable=st.integers(0, 200),
        marks=st.lists(st.integers(1, LONGEST), max_size=2),
        deadline=st.sampled_from([None] * 5 + [9]), breaks=st.sampled_from([None] * 14 + [0, 2]),
    )
    def submit(self, data, text, cut, options, scope, stable, marks, deadline, breaks):
        """A prompt that has something of what there was before.

        :param breaks: events that a client takes before it raises.
        """
        old = data.draw(st.sampled_from(self.histories), label="history")
        new = [token for token, count in text for _ in range(count)]
        tokens = (old[: max(0, len(old) - cut)] + new)[:LONGEST]
        prompt = PreparedPrompt(
            tuple(tokens), "", num_stable=min(stable, len(tokens)), marks=tuple(marks), scope=scope)
        if self.drafting.kind == "mtp":  # drawn drafts give another text when they end
            options = {**options, "sampling": SAMPLING[0]}
        options = {**options, "min_tokens": min(options["min_tokens"], options["max_tokens"])}
        request = GenerationRequest(prompt, deadline_s=deadline, **options)
        events = []

        def sink(event):
            events.append(event)
            if breaks is not None and len(events) > breaks:
                raise SinkFault

        try:
            number = self.engine.submit(request, sink)
        except CapacityError:
            assert len(self.sequences) == self.engine.limits.max_sequences + 4
        else:
            self.jobs[number] = SimpleNamespace(request=request, events=events, breaks=breaks)

    @rule(cycles=st.sampled_from([1, 2, 3, 5, 8, 20, 50]))
    def step(self, cycles):
        for _ in range(cycles if self.sequences else 0):
            self.engine.step()
            self.counts["steps"] += 1
        self.check_ends(())

    @rule(cycles=st.integers(1, 9))
    def go_on(self, cycles):
        """The same, so that it happens more often."""
        self.step(cycles)

    @rule(site=st.sampled_from([*SITES]), number=st.sampled_from([0, 0, 1, 2, 5]))
    @precondition(lambda self: self.sequences)
    def step_with_a_fault(self, site, number):
        """Up to the first fault."""
        find, name = SITES[site]
        if not hasattr(find(self.parts), name):
            return
        with failing(self.parts, site, number) as raised:
            for _ in range(10):
                if not raised and self.sequences:
                    self.engine.step()
        self.counts["faults"] += len(raised)
        self.check_ends(raised)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def cancel(self, data):
        self.engine.cancel(number := data.draw(st.sampled_from([*self.sequences]), label="request"))
        self.jobs[number].cancelled = True

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def pause(self, data):
        self.engine.pause(data.draw(st.sampled_from([*self.sequences]), label="request"))

    @rule(seconds=st.sampled_from([1, 5, 60]))
    def time_passes(self, seconds):
        self.now += seconds

    @precondition(lambda self: self.points)
    @rule(
        data=st.data(), what=st.sampled_from(["evict", "evict", "persist", "persist", "discard"]))
    def move_points(self, data, what):
        if what == "evict":
            self.engine.cache.reclaim(data.draw(st.integers(1, 20), label="pages"))
        elif what == "persist":
            self.engine.persist()
        else:
            self.engine.cache.discard(data.draw(st.sampled_from(self.points), label="point"))

    @precondition(lambda self: self.parts.engine.cache._disk)
    @rule()
    def restart(self):
        """The process ends and another begins; it has what is on the disk."""
        self.end()
        self.parts, self.known = self.build()

    def check_ends(self, raised):
        """Of requests that have ended since."""
        for number in [*self.jobs.keys() - self.sequences.keys()]:
            job = self.jobs.pop(number)
            end = job.events[-1]
            assert isinstance(end, Finished)
            self.check_end(job, end, raised)
            self.histories.append([*job.request.prompt.token_ids, *end.token_ids])
            self.histories = self.histories[-6:]
            self.counts[end.reason] += 1
            self.counts["reused"] += end.reuse.num_tokens > 0
            self.counts["pauses"] += end.reuse.num_pauses

    def check_end(self, job, end, raised):
        reason, tokens, stop, text = expected(evolve(job.request, deadline_s=None))
        assert end.token_ids == tokens[: len(end.token_ids)]
        if end.reason == "error":
            broken = isinstance(end.cause, SinkFault) and job.breaks is not None
            assert end.cause in raised or broken
        elif end.reason == "cancelled":
            assert hasattr(job, "cancelled")
        elif end.reason == "deadline":
            assert job.request.deadline_s is not None or isinstance(end.cause, CapacityError)
        elif job.breaks is None:
            assert outcome(job.events) == (reason, tokens, stop, text)
        else:
            assert (end.reason, end.token_ids, end.stop) == (reason, tokens, stop)

    @invariant()
    def all_pages_and_slots_are_accounted_for(self):
        self.engine.cache.audit()
        most = self.engine.limits.max_sequences
        assert all(each.passed <= most for each in self.sequences.values())
        awaited = Counter(self.engine._residence._awaited.values())
        assert all(each.awaits == awaited[each] and not each.holds for each in self.points)

    @invariant()
    def no_page_that_is_written_to_is_shared(self):
        pool = self.parts.store.pool
        for each in self.sequences.values():
            if each.state is not None:
                assert (pool._holds[each.state.pages[each.frontier // 64 :]] == 1).all()

    @invariant()
    def everything_is_what_its_tokens_make_it(self):
        for each in self.sequences.values():
            if each.state is not None and each.frontier:
                assert each.state.num_tokens == each.frontier
                self.verify(self.parts.model, each.state, each.tokens)
        disk = self.engine.cache._disk
        for point in self.points:
            for snapshot in (copy for tier, copy in point.copies.items() if tier is not disk):
                state = self.scratch.store.restore(snapshot)
                follower = [] if snapshot.next_token is None else [snapshot.next_token]
                self.verify(self.scratch.model, state, [*point.node.path().tolist(), *follower])
                self.scratch.store.close(state)

    def verify(self, model, state, tokens):
        model.verify(state, tokens)
        if self.engine._speculation.is_on and self.drafting.kind == "mtp":
            model.predictor.verify(state, tokens)

    @invariant()
    def decisions_can_be_made_again(self):
        assert all(each.is_reproduced(self.parts.limits) for each in self.engine.trace)
        assert self.parts.model.predictor.faults == []

    def end(self):
        for _ in range(2000):
            if not self.engine.step():
                break
        else:
            pytest.fail("the engine makes no progress")
        self.check_ends(())
        assert not self.jobs
        assert not self.known or not self.engine._speculation.is_on
        self.engine.audit()
        self.engine.close()
        self.engine.audit()
        for memory in filter(None, (self.parts.store.memory, self.engine.cache._host)):
            assert memory.num_free == memory.pool.num_pages

    def teardown(self):
        if hasattr(self, "parts"):
            self.end()
            self.room.cleanup()
        TOTAL.update(self.counts)


TOTAL = Counter()
"""What has happened in all runs."""


@cache
def expected(request):
    """What a request gives by itself."""
    return alone(request)


def test_any_order(tmp_path):
    quick = settings.get_current_profile_name() == "ninfer"
    small = settings(max_examples=100, stateful_step_count=50) if quick else settings()
    for _ in range(5):  # where chance has it, a run has few steps
        run_state_machine_as_test(partial(EngineMachine, tmp_path), settings=small)
        if TOTAL["steps"] > 1000:
            break
    assert TOTAL["steps"] > 1000 and all(TOTAL[what] for what in ("faults", "reused", "pauses"))
