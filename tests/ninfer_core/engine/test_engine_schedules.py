"""Whatever else runs, however prompts are cut, whatever is drafted, reused, evicted and paused: a
request's answer is that of a plain run alone, and nothing is lost."""

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_core.api import Draft, SamplingParams
from ninfer_core.speculation.mtp import MtpSpeculator
from ninfer_core.speculation.ngram import NgramSpeculator

SAMPLING = st.sampled_from([
    SamplingParams(),
    SamplingParams(temperature=0.8, top_k=20, seed=3),
    SamplingParams(temperature=1.0, presence_penalty=0.7, repetition_penalty=1.2, seed=4),
])
REQUEST = st.fixed_dictionaries({
    "length": st.integers(1, 140), "first": st.integers(0, 3),
    "max_tokens": st.integers(1, 10) | st.just(50),
    "use_cache": st.sampled_from([True, True, False]),
    "sampling": SAMPLING, "ignore_eos": st.booleans(),
    "stop": st.sampled_from([(), ("A",), ("B", "CD"), ("E", "FG", "H")]),
    "thinking_budget": st.none() | st.integers(1, 5),
})
JOB = st.fixed_dictionaries({
    "request": REQUEST, "submit": st.integers(0, 6), "cancel": st.none() | st.integers(0, 12),
    "reasoning_open": st.booleans(), "least": st.integers(0, 6),
})
PATTERN = st.lists(st.booleans(), min_size=1, max_size=7)
DRAFTING = st.one_of(
    st.none(),
    st.tuples(
        st.just("oracle"), st.integers(1, 4), PATTERN,
        st.lists(st.integers(0, 4), min_size=1, max_size=3),
    ),
    st.tuples(st.just("mtp"), st.integers(1, 5), PATTERN),
    st.tuples(st.just("ngram"), st.integers(1, 8)),
)


def build(kit, drafting, **options):
    """An engine with a speculator that errs in a pattern, and the requests that it knows."""
    kind, *how = drafting or (None,)
    if kind == "oracle":
        oracle = kit.Oracle(*how)
        return kit.build(speculator=oracle, **options), oracle.known
    if kind == "ngram":
        parts = kit.build(speculator=NgramSpeculator, drafts=how[0], **options)
        return parts, parts.speculator._indexes
    if kind == "mtp":
        parts = kit.build(speculator=MtpSpeculator, drafts=how[0], **options)
        parts.model.predictor.errs = lambda position: how[1][position % len(how[1])]
        return parts, parts.speculator._held
    return kit.build(**options), {}


def ask(kit, job):
    request = kit.ask(**job["request"], min_tokens=min(job["least"], job["request"]["max_tokens"]))
    prompt = evolve(request.prompt, reasoning_open=job["reasoning_open"])
    return evolve(request, prompt=prompt)


def outcome(events):
    text = "".join(event.text for event in events[:-1])
    return events[-1].reason, events[-1].token_ids, events[-1].stop, text


def alone(kit, request, drafting=None):
    """What a request gives by itself. Only drafts that are drawn may change it: then a seed gives
    another text of the same distribution."""
    is_drawn = drafting and drafting[0] == "mtp" and request.sampling.temperature > 0
    parts, _ = build(kit, drafting if is_drawn else None, chunk=512)
    return outcome(kit.serve(parts, request)[0])


def play(parts, jobs, requests):
    """Submit and cancel at the given cycles; the events of each job."""
    events, ids, cycle = [[] for _ in jobs], {}, 0
    while len(ids) < len(jobs) or parts.engine.step():
        for i, job in enumerate(jobs):
            if job["submit"] == cycle:
                ids[i] = parts.engine.submit(requests[i], events[i].append)
            if job["cancel"] == cycle and i in ids:
                parts.engine.cancel(ids[i])
        cycle += 1
        assert cycle < 1000, "the engine makes no progress"
    parts.engine.audit()
    return events


@settings(max_examples=40, deadline=None)
@given(
    jobs=st.lists(JOB, min_size=1, max_size=6), max_sequences=st.integers(1, 5),
    num_pages=st.integers(3, 12), chunk=st.sampled_from([64, 128]), drafting=DRAFTING,
    memory=st.sampled_from([{}, {"host_pages": 6}, {"anchor": 64}, {"cache": False}]),
)
def test_any_schedule_gives_what_each_request_gives_alone(
    kit, jobs, max_sequences, num_pages, chunk, drafting, memory
):
    parts, known = build(
        kit, drafting, max_sequences=max_sequences, num_pages=num_pages, chunk=chunk, **memory)
    requests = [ask(kit, job) for job in jobs]
    for request, job, events in zip(requests, jobs, play(parts, jobs, requests), strict=True):
        reason, tokens, stop, text = alone(kit, request, drafting)
        found = outcome(events)
        if found[0] == "cancelled":
            assert job["cancel"] is not None
            assert found[1] == tokens[: len(found[1])]
            assert found[3] == kit.text(found[1])
        else:
            assert found == (reason, tokens, stop, text)
    assert not known, "a request was not released"
    assert parts.model.predictor.faults == []
    assert parts.engine._speculation.is_on == (drafting is not None)
    assert all(each.is_reproduced(parts.limits) for each in parts.engine.trace)


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
    assert outcome(events) == alone(kit, request)


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
