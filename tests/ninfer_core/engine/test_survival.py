"""Faults anywhere in a step: the requests that they touch fail with a cause, the next ones are
served, and nothing is lost."""

import pytest
import torch
from attrs import evolve

from ninfer_core.api import RequestError
from ninfer_core.engine.request import Finished, TextDelta
from ninfer_disk_tier.tier import DiskTier
from ninfer_drafting.mtp import MtpSpeculator
from ninfer_fixtures.faults import SITES, Fault, failing
from ninfer_fixtures.judges import Prompt
from ninfer_fixtures.registered import disk_tier


@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("number", [0, 1, 4])
def test_a_fault_anywhere_costs_no_more_than_it_touches(kit, site, number):
    """Six requests of two conversations in a small pool, three of them without anything that is
    asked of their tokens, one fault, and then the same again."""
    parts = kit.build(
        num_pages=9, max_sequences=3, speculator=MtpSpeculator, host_pages=4, judge=Prompt())
    sampling = evolve(kit.ask().sampling, presence_penalty=0.5)
    requests = [
        kit.ask(90, first=i % 2, max_tokens=50 + i, ignore_eos=True, sampling=sampling,
                min_tokens=2)
        for i in range(6)
    ]
    for i in range(3, 6):
        requests[i] = kit.ask(90, first=i % 2, max_tokens=50 + i, ignore_eos=True)
    with failing(parts, site, number) as raised:
        events = kit.serve(parts, *requests)
    assert raised or number, "the site is never come to"
    for request, each in zip(requests, events, strict=True):
        end = each[-1]
        assert isinstance(end, Finished)
        assert end.cause is None or isinstance(end.cause, Fault)
        whole = kit.expected(request, len(end.token_ids))
        assert list(end.token_ids) == whole
        assert end.cause or len(whole) == request.max_tokens
    again = kit.serve(parts, *requests)
    assert all(each[-1].cause is None for each in again)
    for request, each in zip(requests, again, strict=True):
        assert list(each[-1].token_ids) == kit.expected(request, request.max_tokens)
    parts.engine.close()
    parts.engine.audit()
    assert parts.store.pool.num_free == parts.store.pool.num_pages


def test_a_fault_in_a_prompt_leaves_those_that_decode_alone(kit):
    parts, first, second = kit.build(), [], []
    parts.engine.submit(kit.ask(max_tokens=20, ignore_eos=True), first.append)
    parts.engine.step()

    def fail(batch):
        if batch.num_tokens > 1:
            raise Fault("in the prompt")

    parts.model.before = fail
    parts.engine.submit(kit.ask(100, first=2), second.append)
    parts.engine.run_until_idle()
    parts.engine.audit()
    assert isinstance(second[-1].cause, Fault)
    assert list(first[-1].token_ids) == kit.expected(kit.ask(), 20)


class TestNonsense:
    """Logits that are not finite."""

    def spoil(self, parts, when):
        parts.model.after = lambda batch, logits: (
            logits.fill_(float("nan")) if when(batch) else None
        )

    @pytest.mark.parametrize("position", [10, 70, 130])
    def test_they_leave_no_point_behind(self, kit, position):
        """Wherever they come up: what the request has left until then is not trusted any more."""
        parts, request = kit.build(chunk=64), kit.ask(120, max_tokens=30, ignore_eos=True)
        self.spoil(parts, lambda batch: batch.positions[batch.num_tokens - 1] >= position)
        [events] = kit.serve(parts, request)
        assert "not finite" in str(events[-1].cause)
        assert parts.engine.cache.points == ()
        self.spoil(parts, lambda batch: False)
        [events] = kit.serve(parts, request)
        assert events[-1].reuse.num_tokens == 0
        assert list(events[-1].token_ids) == kit.expected(request, 30)

    def test_they_take_the_point_with_them_that_they_came_from(self, kit):
        parts, request = kit.build(), kit.ask(120, max_tokens=4, ignore_eos=True)
        kit.serve(parts, request)
        self.spoil(parts, lambda batch: True)
        [events] = kit.serve(parts, request)
        assert (events[-1].reason, events[-1].reuse.num_tokens) == ("error", 64)
        assert parts.engine.cache.points == ()


@pytest.mark.parametrize("speculator", [None, MtpSpeculator])
def test_penalties_beyond_numbers_cost_no_others_their_states(kit, speculator):
    """The model is not to blame, so what others go on from stays."""
    parts = kit.build(speculator=speculator)
    kit.serve(parts, kit.ask(130))
    sampling = evolve(kit.ask().sampling, repetition_penalty=1e-300)
    [[*_, end], _] = kit.serve(parts, kit.ask(130, sampling=sampling), kit.ask(first=2))
    assert isinstance(end.cause, RequestError)
    assert "penalties" in str(end.cause)
    [[*_, end]] = kit.serve(parts, kit.ask(130))
    assert end.reuse.num_tokens == 128


def test_a_state_that_cannot_be_gone_on_from_is_given_up(kit):
    """A model that raises right after a restore: the next attempt reads all anew."""
    parts, request = kit.build(), kit.ask(120, max_tokens=4, ignore_eos=True)
    kit.serve(parts, request)

    def fail(batch):
        if batch.context_len[0]:
            raise Fault("a broken page")

    parts.model.before = fail
    [events] = kit.serve(parts, request)
    assert isinstance(events[-1].cause, Fault)
    parts.model.before = lambda batch: None
    [events] = kit.serve(parts, request)
    assert events[-1].reuse.num_tokens == 0
    assert list(events[-1].token_ids) == kit.expected(request, 4)


def test_a_thousand_cancels(kit):
    """At all stages, under pressure; nothing is lost (bugs 107, 110)."""
    parts, ends = kit.build(num_pages=8, max_sequences=3, max_queue=20), []
    for i in range(1000):
        request = kit.ask(1 + 7 * i % 150, first=i % 5, max_tokens=20, ignore_eos=True)
        request_id = parts.engine.submit(
            request, lambda event: ends.append(event) if isinstance(event, Finished) else None)
        for _ in range(i % 4):
            parts.engine.step()
        parts.engine.cancel(request_id - i % 3)
        if i % 10 == 9:
            parts.engine.run_until_idle()
    parts.engine.run_until_idle()
    parts.engine.audit()
    assert len(ends) == 1000
    assert {end.reason for end in ends} == {"cancelled", "output-limit"}
    [events] = kit.serve(parts, kit.ask(100, ignore_eos=True))
    assert list(events[-1].token_ids) == kit.expected(kit.ask(100), 8)


def test_requests_that_can_never_be_served_cost_nothing(kit):
    parts = kit.build(num_pages=4, max_context=1024)
    for _ in range(20):
        for fields in ({"max_tokens": 500}, {"length": 1024}, {"length": 300}):
            with pytest.raises(RequestError):
                parts.engine.submit(kit.ask(**fields), print)
    kit.serve(parts, kit.ask())


def test_a_dead_end_and_invalid_utf8_do_not_stop_the_next_request(kit):
    class Frontend(kit.LetterFrontend):
        class tokenizer(type(kit.LetterFrontend.tokenizer)):
            def token_bytes(self, token_id):
                return b"\xe6\x9d"

        tokenizer = tokenizer()

    parts = kit.build(frontend=Frontend())
    dead = kit.ask(stop_token_ids=range(kit.VOCAB), min_tokens=2, first=2)
    ended, broken = kit.serve(parts, dead, kit.ask(ignore_eos=True))
    assert "no token may follow" in str(ended[-1].cause)
    assert broken[-1].reason == "output-limit"
    texts = [event.text for event in broken if isinstance(event, TextDelta)]
    assert "\N{REPLACEMENT CHARACTER}" in "".join(texts)


def test_without_paged_state_there_are_no_pages_to_wait_for(kit):
    """A model that keeps all in its slot; points are images alone."""
    from ninfer_core.api import KVCodecSpec, SlotStateSpec
    from ninfer_core.engine.engine import Engine
    from ninfer_core.engine.scheduler import Limits
    from ninfer_core.state.prefix_cache import PrefixCache
    from ninfer_core.state.store import StateStore

    class Counter:
        def __init__(self, store):
            self.sums = store.view("sum", 0).committed

        def forward(self, batch):
            logits = torch.zeros(batch.num_logits, kit.VOCAB)
            for row in range(batch.num_rows):
                span = slice(int(batch.row_start[row]), int(batch.row_start[row + 1]))
                self.sums[batch.slots[row]] += batch.token_ids[span].sum()
                logits[row, int(self.sums[batch.slots[row]]) % kit.VOCAB] = 1
            return logits

    store = StateStore(
        (SlotStateSpec("sum", 1, (1,), (1,), dtype="int64"),),
        KVCodecSpec("fp32", "ninfer_core.state.codecs:Fp32Codec"), num_pages=2, max_sequences=2,
        max_context=512, max_verify_rows=1)
    engine = Engine(
        Counter(store), kit.LetterFrontend(), store, Limits(512, 2, prefill_chunk=64),
        cache=PrefixCache(store))
    ends = []
    for _ in range(2):
        for first in (1, 2, 3):
            engine.submit(kit.ask(200, first=first, ignore_eos=True), ends.append)
    engine.run_until_idle()
    engine.audit()
    found = [end for end in ends if isinstance(end, Finished)]
    assert all(end.cause is None for end in found)
    outputs = [end.token_ids for end in found]
    assert sorted(outputs[:3]) == sorted(outputs[3:])


def test_a_fault_in_an_idle_moment_costs_no_request(kit, tmp_path, monkeypatch):
    def fail(*_):
        raise Fault("in an idle moment")

    parts = kit.build(disk=disk_tier(tmp_path, 100))
    kit.serve(parts, kit.ask(130))
    with monkeypatch.context() as patch:
        patch.setattr(DiskTier, "save", fail)
        assert not parts.engine.persist()
    kit.serve(parts, kit.ask(130))
    assert parts.engine.persist()


def test_a_point_that_cannot_be_given_up_costs_no_more(kit, monkeypatch):
    """A request fails, and then the cache in which it left a state."""
    def spoil(batch, logits):
        logits.fill_(float("nan"))

    def fail(*_):
        raise Fault("in the cache")

    parts = kit.build()
    kit.serve(parts, kit.ask(130))
    with monkeypatch.context() as patch:
        patch.setattr(parts.engine.cache, "discard", fail)
        parts.model.after = spoil
        [[*_, end]] = kit.serve(parts, kit.ask(130))
        assert "not finite" in str(end.cause)
    parts.model.after = lambda *_: None
    [[*_, end]] = kit.serve(parts, kit.ask(130))
    assert end.cause is None and end.reuse.num_tokens == 0
