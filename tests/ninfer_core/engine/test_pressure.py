"""Too little memory: who gives way, what it costs, and that everybody ends with the answer that
they would get alone."""

import pytest
from attrs import evolve

from ninfer_core.api import SamplingParams
from ninfer_core.engine.request import TextDelta
from ninfer_core.engine.status import TokenCounts
from ninfer_drafting.mtp import MtpSpeculator
from ninfer_drafting.ngram import NgramSpeculator

WARM = SamplingParams(temperature=0.9, seed=5, repetition_penalty=1.2)


def requests_of(kit, count, length, output, **fields):
    return [
        kit.ask(length + i, first=i, max_tokens=output + i, ignore_eos=True, **fields)
        for i in range(count)
    ]


def run(kit, parts, requests):
    """Finished events, in order of submission, which must have the model's tokens."""
    ends = []
    for request, events in zip(requests, kit.serve(parts, *requests), strict=True):
        end = events[-1]
        assert end.cause is None
        assert list(end.token_ids) == kit.expected(request, request.max_tokens)
        texts = [event.text for event in events if isinstance(event, TextDelta)]
        assert "".join(texts) == kit.text(end.token_ids)
        ends.append(end)
    return ends


def replays(ends):
    return sum(end.reuse.replayed_tokens for end in ends)


def counts_of(ends):
    prompt, reused = (sum(each) for each in zip(*(
        (end.usage.prompt_tokens, end.reuse.num_tokens) for end in ends), strict=True))
    output = sum(end.usage.output_tokens for end in ends)
    return TokenCounts(prompt, reused, prompt - reused, replays(ends), output)


@pytest.mark.parametrize("options", [{}, {"host_pages": 200}, {"cache": False}])
@pytest.mark.parametrize(("speculator", "sampling"), [
    (None, SamplingParams()), (MtpSpeculator, SamplingParams()), (NgramSpeculator, WARM),
])
def test_paused_while_decoding(kit, speculator, options, sampling):
    """Four that need 3 pages each in the end, in a pool of 6."""
    requests = requests_of(kit, 4, 30, 100, sampling=sampling)
    parts = kit.build(num_pages=6, max_sequences=4, speculator=speculator, **options)
    ends = run(kit, parts, requests)
    assert parts.engine.num_pauses == sum(end.reuse.num_pauses for end in ends) > 0
    assert ends[0].reuse.num_pauses == 0, "the oldest never gives way"
    if "host_pages" in options:
        assert replays(ends) == 0, "its state was kept"
    if "cache" in options:
        assert replays(ends) > 0
    assert parts.engine.status().tokens == counts_of(ends)
    assert parts.engine.status().tokens == counts_of(ends)


def test_drawn_drafts_go_on_after_a_pause(kit):
    """A seed gives the text that it gives alone, with the same drafts."""
    requests = requests_of(kit, 4, 30, 100, sampling=SamplingParams(temperature=0.7, seed=7))

    def parts(num_pages):
        made = kit.build(num_pages=num_pages, max_sequences=4, speculator=MtpSpeculator)
        made.model.predictor.errs = lambda position: position % 3 == 0
        return made

    alone = [kit.serve(parts(64), each)[0][-1].token_ids for each in requests]
    pressed = parts(6)
    together = [events[-1].token_ids for events in kit.serve(pressed, *requests)]
    assert pressed.engine.num_pauses > 0
    assert together == alone


def test_a_request_that_is_paused_in_its_prompt_goes_on_behind_what_it_has_read(kit):
    """By hand, at every chunk of the prompt and at every step of the answer."""
    request = kit.ask(300, max_tokens=6, ignore_eos=True)
    for cycles in range(1, 10):
        for options in ({}, {"cache": False}):
            parts, events = kit.build(chunk=64, **options), []
            request_id = parts.engine.submit(request, events.append)
            for _ in range(cycles):
                parts.engine.step()
            parts.engine.pause(request_id)
            assert parts.store.num_sequences == 0
            parts.engine.run_until_idle()
            parts.engine.audit()
            end = events[-1]
            assert list(end.token_ids) == kit.expected(request, 6)
            read = 64 * cycles if cycles < 5 else 300 + cycles - 5
            assert end.reuse.replayed_tokens == (0 if parts.engine.cache else read)
            assert (end.reuse.num_pauses, end.timings.prefill_tokens) == (1, 300)


def test_what_is_read_again_is_cut_as_it_was(kit, monkeypatch):
    """A prompt by its chunks, an answer by rows no longer than those that it came of: kernels that
    read prompts may round otherwise."""
    request = kit.ask(100, max_tokens=60, ignore_eos=True)
    parts, events, read = kit.build(chunk=64, cache=False), [], []
    forward = parts.model.forward

    def noted(batch, *arguments):
        begin, count = int(batch.context_len[0]), int(batch.row_start[1])
        read.append((begin, begin + count))
        return forward(batch, *arguments)

    monkeypatch.setattr(parts.model, "forward", noted)
    request_id = parts.engine.submit(request, events.append)
    for _ in range(52):
        parts.engine.step()
    before = list(read)
    parts.engine.pause(request_id)
    parts.engine.run_until_idle()
    again = read[len(before):]
    assert before[:2] == again[:2] == [(0, 64), (64, 100)]
    assert before[-1] == (149, 150)
    assert again[2:7] == [(100, 116), (116, 128), (128, 144), (144, 150), (150, 151)]
    assert list(events[-1].token_ids) == kit.expected(request, 60)


@pytest.mark.parametrize("fields", [{}, {"prompt_logprobs": 1}])
def test_a_prompt_is_read_again_in_the_chunks_that_it_was_read_in(kit, fields):
    """Also where restore points were wanted, and logits; points are left no second time."""
    request, events = kit.ask(300, max_tokens=9, ignore_eos=True, **fields), []
    request = evolve(request, prompt=evolve(request.prompt, num_stable=70, marks=(140,)))
    parts = kit.build(chunk=128, max_logits=40)
    request_id = parts.engine.submit(request, events.append)
    sequence = parts.engine._sequences[request_id]
    while not sequence.num_output:
        parts.engine.step()
    chunks, captured = list(parts.model.steps), parts.engine.cache.statistics.captured
    parts.engine.pause(request_id)
    parts.engine.cache.clear()
    while sequence.frontier < 300:
        parts.engine.step()
    assert parts.model.steps[len(chunks) :][: len(chunks)] == chunks
    assert parts.engine.cache.statistics.captured == captured + 1  # of the pause
    parts.engine.run_until_idle()
    assert list(events[-1].token_ids) == kit.expected(request, 9)


@pytest.mark.parametrize("cycles", range(1, 12))
@pytest.mark.parametrize("length", [19, 64, 100])
def test_a_speculator_is_not_told_of_decoding_while_tokens_are_read_again(kit, cycles, length):
    """The oracle compares what it is told with the tokens there are, and raises."""
    request = kit.ask(length, max_tokens=40, ignore_eos=True)
    parts, events = kit.build(chunk=64, speculator=kit.Oracle(2), cache=False), []
    request_id = parts.engine.submit(request, events.append)
    for _ in range(cycles):
        parts.engine.step()
    parts.engine.pause(request_id)
    parts.engine.run_until_idle()
    assert list(events[-1].token_ids) == kit.expected(request, 40)
    assert parts.engine._speculation.is_on


@pytest.mark.parametrize("cycles", [1, 3, 6])
def test_replay_from_an_earlier_point(kit, cycles):
    """What is left of a paused request's states may be less than all."""
    request = kit.ask(200, max_tokens=20, ignore_eos=True)
    parts, events = kit.build(chunk=64, speculator=MtpSpeculator), []
    request_id = parts.engine.submit(request, events.append)
    for _ in range(cycles):
        parts.engine.step()
    sequence = parts.engine._sequences[request_id]
    parts.engine.pause(request_id)
    parts.engine.cache.discard(sequence.points[-1])
    parts.engine.run_until_idle()
    parts.engine.audit()
    assert list(events[-1].token_ids) == kit.expected(request, 20)
    assert events[-1].reuse.replayed_tokens > 0
    assert parts.model.predictor.faults == []


def test_a_cancelled_request_that_is_paused_is_gone(kit):
    requests = requests_of(kit, 4, 30, 130)
    parts, events = kit.build(num_pages=8, max_sequences=4), [[] for _ in requests]
    ids = [parts.engine.submit(r, sink.append) for r, sink in zip(requests, events, strict=True)]
    while not parts.engine.num_pauses:
        parts.engine.step()
    parts.engine.cancel(ids[-1])
    parts.engine.step()
    assert events[-1][-1].reason == "cancelled"
    parts.engine.run_until_idle()
    parts.engine.audit()


def test_penalties_and_budgets_go_on_after_a_pause(kit):
    """Nothing is charged twice."""
    requests = requests_of(
        kit, 4, 30, 130, sampling=SamplingParams(presence_penalty=0.9, frequency_penalty=0.3),
    )
    requests = [evolve(each, thinking_budget=40, min_tokens=100) for each in requests]
    alone = [kit.serve(kit.build(), each)[0][-1].token_ids for each in requests]
    parts = kit.build(num_pages=8, max_sequences=4, cache=False)
    together = [events[-1].token_ids for events in kit.serve(parts, *requests)]
    assert parts.engine.num_pauses > 0
    assert together == alone


def test_twice_the_capacity_keeps_the_order_bounds(kit):
    """Eight at a time of 40 requests: nobody starves, and nobody is passed by more than eight."""
    parts, order = kit.build(num_pages=12, max_sequences=8), []
    requests = [
        kit.ask(20 + 37 * i % 200, first=i, max_tokens=10 + 13 * i % 60, ignore_eos=True)
        for i in range(40)
    ]
    for i, request in enumerate(requests):
        parts.engine.submit(request, lambda e, i=i: hasattr(e, "usage") and order.append((i, e)))
    passed = 0
    while parts.engine.step():
        passed = max([passed, *(s.passed for s in parts.engine._sequences.values())])
    parts.engine.audit()
    assert passed <= 8
    for i, end in order:
        assert list(end.token_ids) == kit.expected(requests[i], requests[i].max_tokens)


def test_every_decision_can_be_made_again(kit):
    requests = requests_of(kit, 4, 30, 130)
    parts = kit.build(num_pages=8, max_sequences=4)
    kit.serve(parts, *requests)
    decisions = [*parts.engine.trace]
    assert len(decisions) > 100
    assert all(each.is_reproduced(parts.engine.limits) for each in decisions)


@pytest.mark.parametrize("num_pages", [11, 12, 13])
def test_what_ends_in_a_cycle_takes_no_pages_that_were_granted_in_it(kit, num_pages):
    """Three answers end, and leave states, in the cycle in which a prompt needs two more pages."""
    short = [kit.ask(62, first=i, max_tokens=6 - i, ignore_eos=True) for i in (1, 2, 3)]
    long = kit.ask(260, first=4, max_tokens=4, ignore_eos=True)
    run(kit, kit.build(num_pages=num_pages, max_sequences=4, chunk=128), [*short, long])
