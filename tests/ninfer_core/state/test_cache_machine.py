"""Sequences, restore points and tiers in any order: nothing is lost, nothing is mixed up."""

from __future__ import annotations

import os
from functools import partial
from itertools import takewhile
from operator import eq
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from attrs import define
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

from ninfer_core.api import ArtifactError, CapacityError, NInferError
from ninfer_core.state.prefix_cache import PrefixCache
from ninfer_fixtures.registered import disk_tier

SCOPES = st.sampled_from(["", "", ("thinking", b"\0")])
KINDS = st.sampled_from(["stable", "prompt", "turn", "mark", "anchor"])
TEXTS = st.lists(st.tuples(st.integers(0, 2), st.sampled_from([1, 2, 30, 63, 64, 65, 66, 128])),
                 min_size=1, max_size=2)
"""Words and how often each is repeated; three words, so that texts begin alike."""
CUTS = st.sampled_from([0, 0, 0, 1, 64, 90])


@define(eq=False)
class Running:
    state: object
    tokens: list[int]
    scope: object


class CacheMachine(RuleBasedStateMachine):
    """Conversations begin from the cache, go on, are kept, and go away."""

    def __init__(self, lab, folder):
        super().__init__()
        self.make, self.folder = lab, folder
        self.running, self.held, self.known = [], [], {}

    @initialize(
        specs=st.sampled_from(["hybrid", "hybrid", "paged", "recurrent"]),
        num_pages=st.integers(8, 24), host_pages=st.sampled_from([0, 6, 12]),
        disk_pages=st.sampled_from([None, 8, 30]),
    )
    def build(self, specs, num_pages, host_pages, disk_pages):
        self.room = TemporaryDirectory(dir=self.folder)
        disk = disk_pages and disk_tier(Path(self.room.name), disk_pages)
        self.build_lab = partial(
            self.make, specs, num_pages=num_pages, host_pages=host_pages, disk=disk)
        self.lab = self.build_lab()

    @property
    def cache(self) -> PrefixCache:
        return self.lab.cache

    @property
    def points(self):
        return list(self.cache._points)

    @precondition(lambda self: len(self.running) < 3)
    @rule(data=st.data(), scope=SCOPES, cut=CUTS, text=TEXTS, kinds=st.lists(KINDS, max_size=2))
    def begin(self, data, scope, cut, text, kinds):
        """A prompt that has something of what there was before."""
        histories = [*(each.tokens for each in self.running), *self.known.values(), []]
        old = data.draw(st.sampled_from(histories), label="history")
        prompt = old[: max(0, len(old) - cut)] + written(text)
        match = self.cache.match(prompt, scope)
        self.check_match(match, prompt, scope)
        state = self.restore(match.point) if match.point else self.lab.store.open()
        if state:
            sequence = Running(state, prompt[: state.num_tokens], scope)
            self.running.append(sequence)
            self.read(sequence, prompt[state.num_tokens :], kinds)

    def check_match(self, match, prompt, scope):
        alike = [self.known[p] for p in self.points if p.scope == scope]
        common = [sum(takewhile(bool, map(eq, each, prompt))) for each in alike]
        before = [n for n, each in zip(common, alike, strict=True) if n == len(each) < len(prompt)]
        expected = max(before, default=0), max(common, default=0)
        assert (match.num_tokens, match.diverged_at) == expected
        if match.point:
            assert match.point.scope == scope
            assert self.known[match.point] == prompt[: match.num_tokens]

    def restore(self, point):
        def facts():
            return self.lab.store.num_sequences, self.lab.store.pool.num_free, self.points

        before = facts()
        try:
            state = self.cache.restore(point)
        except CapacityError:
            assert facts() == before
        except ArtifactError:
            assert point not in self.points
            self.forget_holds()
        else:
            assert point in self.points and state.num_tokens == point.num_tokens
            self.lab.verify(state, self.known[point])
            return state

    @precondition(lambda self: self.points and len(self.running) < 3)
    @rule(data=st.data())
    def resume(self, data):
        point = data.draw(st.sampled_from(self.points), label="point")
        if state := self.restore(point):
            self.running.append(Running(state, [*self.known[point]], point.scope))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), text=TEXTS, kinds=st.lists(KINDS, max_size=2))
    def go_on(self, data, text, kinds):
        self.read(data.draw(st.sampled_from(self.running), label="sequence"), written(text), kinds)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), word=st.integers(0, 2), width=st.integers(1, 4), kinds=KINDS)
    def verify_drafts(self, data, word, width, kinds):
        sequence = data.draw(st.sampled_from(self.running), label="sequence")
        accepted = data.draw(st.integers(0, width), label="accepted")
        sequence.tokens += [word] * accepted
        if self.step(sequence, width, accepted):
            self.capture(sequence, kinds)

    def read(self, sequence, tokens, kinds):
        """Read and keep in steps that end at pages' edges as often as not."""
        while tokens and len(sequence.tokens) < 400:
            count = 64 - len(sequence.tokens) % 64 if len(tokens) % 3 else len(tokens)
            sequence.tokens += tokens[:count]
            if not self.step(sequence, len(tokens[:count])):
                return
            tokens = tokens[count:]
            if kinds:
                self.capture(sequence, kinds.pop())

    def step(self, sequence, count, accepted=None):
        """As the engine: make room, or give up."""
        for _ in range(2):
            try:
                self.lab.read(sequence.state, sequence.tokens, count, accepted)
                return True
            except CapacityError:
                self.cache.reclaim(count // 64 + 1)
        self.close(sequence)

    def capture(self, sequence, kind):
        tokens, refused = [*sequence.tokens], self.cache.statistics.refused
        if not tokens:
            return
        point = self.cache.capture(sequence.state, tokens, len(tokens), sequence.scope, kind)
        if point is None:
            assert self.cache.statistics.refused == refused + 1
        else:
            self.known[point] = tokens
            assert self.cache.match([*tokens, 0], sequence.scope).point is point

    @precondition(lambda self: self.running)
    @rule(data=st.data(), off=st.integers(-70, 70))
    def capture_elsewhere(self, data, off):
        """Of a slot there is no state but the last."""
        sequence = data.draw(st.sampled_from(self.running), label="sequence")
        place = sequence.state.num_tokens + off
        if off > 0 or (off < 0 and self.lab.specs != "paged") or place <= 0:
            with pytest.raises(NInferError, match=r"not stand|not open|is empty"):
                self.cache.capture(sequence.state, [0] * 999, place, sequence.scope, "mark")

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data):
        self.close(data.draw(st.sampled_from(self.running), label="sequence"))

    def close(self, sequence):
        self.running.remove(sequence)
        self.lab.store.close(sequence.state)

    @precondition(lambda self: self.points)
    @rule(data=st.data(), held=st.booleans())
    def hold_or_release(self, data, held):
        if held and self.held:
            self.cache.release(self.held.pop())
        else:
            self.held.append(data.draw(st.sampled_from(self.points), label="point"))
            self.cache.hold(self.held[-1])

    @rule(num_pages=st.integers(0, 30))
    def reclaim(self, num_pages):
        memory = self.lab.store.memory
        before = memory.num_free
        assert self.cache.reclaim(num_pages) == memory.num_free - before >= 0
        idle = [p.copies[memory] for p in self.points if memory in p.copies and not p.holds]
        assert memory.num_free >= num_pages or memory.num_freed(idle) == 0
        assert {*self.held} <= {*self.points}

    @rule()
    def persist(self):
        stored = self.cache.statistics.stored
        assert self.cache.persist() == (self.cache.statistics.stored == stored + 1)

    @precondition(lambda self: self.points)
    @rule(data=st.data(), what=st.sampled_from(["clear", "restart", "discard", *["damage"] * 3]))
    def trouble(self, data, what):
        getattr(self, what)(data)
        self.forget_holds()

    def discard(self, data):
        point = data.draw(st.sampled_from(self.points), label="point")
        self.cache.discard(point)
        begin = self.known[point]
        alike = [self.known[p] for p in self.points if p.scope == point.scope]
        assert not any(each[: len(begin)] == begin for each in alike)

    def clear(self, data):
        self.cache.clear()
        assert {tier.name for point in self.points for tier in point.copies} <= {"disk"}

    def restart(self, data):
        """The process ends and another begins; it has what is on the disk."""
        self.end()
        stored = {(p.scope, *self.known[p]) for p in self.points}
        for age, path in enumerate(self.files()):
            os.utime(path, (age, age))  # that of the clock would not be the same in each run
        self.lab = self.build_lab()
        self.known = {p: p.node.path().tolist() for p in self.points}
        assert {(p.scope, *self.known[p]) for p in self.points} <= stored

    def damage(self, data):
        """A file loses bytes, changes one, or is gone."""
        if files := self.files():
            path = files[data.draw(st.integers(0, len(files) - 1), label="file")]
            content = bytearray(path.read_bytes())
            at = data.draw(st.sampled_from([0, -1, -20, -200, -300]), label="byte")
            path.unlink()
            if data.draw(st.booleans(), label="changed"):
                content[at] ^= 16
                path.write_bytes(content)
            elif at:
                path.write_bytes(content[:at])
            [point] = [
                p for p in self.points for f in p.copies.values() if getattr(f, "path", "") == path]
            if len(point.copies) == 1:
                with pytest.raises((ArtifactError, CapacityError)):
                    self.cache.restore(point)

    def files(self):
        return sorted(Path(self.room.name).rglob("*.state"))

    def forget_holds(self):
        self.held = [point for point in self.held if point in self.points]

    @invariant()
    def no_writable_page_is_in_a_point(self):
        memory = self.lab.store.memory
        copies = [p.copies[memory] for p in self.points if memory in p.copies]
        kept = {page for copy in copies for page in copy.held.tolist()}
        writable = [page for s in self.running for page in s.state.pages[len(s.tokens) // 64 :]]
        assert not kept & {*writable} and len(writable) == len({*writable})

    @invariant()
    def everything_is_what_its_tokens_make_it(self):
        for sequence in self.running:
            self.lab.verify(sequence.state, sequence.tokens)
        self.lab.verify_cache()
        for point in self.points:
            assert point.node.path().tolist() == self.known[point]

    @invariant()
    def files_are_bounded(self):
        assert not self.lab.disk or self.lab.disk.num_free >= 0

    def end(self):
        for sequence in [*self.running]:
            self.close(sequence)
        for point in self.held:
            self.cache.release(point)
        self.held.clear()
        self.cache.clear()
        self.cache.audit()
        for memory in filter(None, (self.lab.store.memory, self.cache._host)):
            assert memory.num_free == memory.pool.num_pages

    def teardown(self):
        self.end()
        self.room.cleanup()


def written(text):
    return [word for word, count in text for _ in range(count)]


def test_any_order(lab, tmp_path):
    quick = settings.get_current_profile_name() == "ninfer"
    small = settings(max_examples=80, stateful_step_count=50) if quick else settings()
    run_state_machine_as_test(partial(CacheMachine, lab, tmp_path), settings=small)
