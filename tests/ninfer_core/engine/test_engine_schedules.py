"""Whatever else runs, however prompts are cut, whatever is drafted, reused, evicted and paused: a
request's answer is that of a plain run alone, and nothing is lost."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_core.api import Draft, SamplingParams
from ninfer_fixtures.schedules import alone, check, outcome, random_schedule

SHORT = settings(max_examples=15 if settings.get_current_profile_name() == "ninfer" else 3000)


@SHORT
@given(schedule=st.randoms(use_true_random=False).map(random_schedule))
def test_any_schedule_gives_what_each_request_gives_alone(schedule):
    check(schedule)


@pytest.mark.parametrize("wrong_at", [0, 1, 2, 3, None])
@pytest.mark.parametrize(("sampling", "count"), [
    (SamplingParams(), 200), (SamplingParams(temperature=0.9, seed=11), 50),
])
def test_a_draft_that_is_wrong_at_each_position(kit, wrong_at, sampling, count):
    """Drafts that are always wrong at one place change nothing, greedy or sampled."""
    request = kit.ask(70, max_tokens=count, ignore_eos=True, sampling=sampling)
    speculator = kit.Oracle(3, [i == wrong_at for i in range(3)], params=sampling)
    parts, events = kit.build(speculator=speculator), []
    parts.engine.submit(request, events.append)
    parts.engine.run_until_idle()
    parts.engine.audit()
    assert list(events[-1].token_ids) == kit.expected(request, count)
    accepted = 3 if wrong_at in (3, None) else wrong_at
    assert set(speculator.outcomes[:-2]) == {(3, accepted)}


@pytest.mark.parametrize("cut", range(1, 8))
def test_a_stop_inside_a_draft_cuts_the_round(kit, cut):
    tokens = kit.expected(kit.ask(), 8)
    stop = kit.text(tokens)[cut - 1 : cut + 1]
    request = kit.ask(stop=[stop], ignore_eos=True)
    parts, events = kit.build(speculator=kit.Oracle(4)), []
    parts.engine.submit(request, events.append)
    parts.engine.run_until_idle()
    parts.engine.audit()
    assert outcome(events) == alone(request)


def test_drafts_never_pass_the_end_of_the_context(kit):
    request = kit.ask(58, max_tokens=100, ignore_eos=True)
    parts, events = kit.build(max_context=64, num_pages=1, speculator=kit.Oracle(4)), []
    parts.engine.submit(request, events.append)
    parts.engine.run_until_idle()
    assert events[-1].reason == "context-capacity"
    assert list(events[-1].token_ids) == kit.expected(request, 6)


@pytest.mark.parametrize("fault", ["propose", "advance", "release", "range", "many", "raise"])
def test_a_broken_speculator_is_switched_off_and_costs_no_request(kit, caplog, fault):
    class Broken(kit.Oracle):
        def propose(self, requests):
            if fault == "raise":
                raise RuntimeError("cannot propose")
            odd = {"range": [Draft((kit.VOCAB,))], "many": [Draft((1,) * 9)], "propose": None}
            return odd.get(fault, super().propose(requests))

        def advance(self, steps):
            super().advance(steps)
            if fault == "advance":
                raise RuntimeError("cannot advance")

        def release(self, request_id):
            super().release(request_id)
            if fault == "release":
                raise RuntimeError("cannot release")

    parts, first, second = kit.build(speculator=Broken(3)), [], []
    for sink in (first, second):
        parts.engine.submit(kit.ask(ignore_eos=True), sink.append)
        parts.engine.run_until_idle()
    parts.engine.audit()
    assert caplog.text.count("switched off") == 1
    assert list(first[-1].token_ids) == list(second[-1].token_ids) == kit.expected(kit.ask(), 8)
    assert second[-1].usage.drafted_tokens == 0


def test_usage_counts_drafts(kit):
    parts, events = kit.build(speculator=kit.Oracle(2)), []
    parts.engine.submit(kit.ask(max_tokens=6, ignore_eos=True), events.append)
    parts.engine.run_until_idle()
    usage = events[-1].usage
    assert usage.output_tokens == 6  # rounds of 1, 1 + 2 and 1 + 1: none is drafted in vain
    assert (usage.drafted_tokens, usage.accepted_tokens) == (3, 3)
