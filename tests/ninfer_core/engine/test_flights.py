"""Plain steps that are launched before the host has seen what the one before gave: answers, states
and counts are those of steps one after the other."""

import pytest
import torch
from attrs import evolve

from ninfer_core.api import SamplingParams
from ninfer_core.engine.faults import ModelError
from ninfer_fixtures.judges import Prompt

SAMPLING = [
    SamplingParams(), SamplingParams(temperature=0.8, top_k=20, seed=3),
    SamplingParams(temperature=1.0, min_p=0.1, seed=5),
]


@pytest.fixture
def fly(kit):
    """``(**options) -> Parts`` of an engine that launches ahead; ``parts.model.flown`` has the rows
    of each step so launched."""

    def build(**options):
        parts = kit.build(judge=Prompt(), **options)
        parts.model.flown, launch = [], parts.engine._execution._flights._launch

        def noted(sequences, behind):
            if behind is not None:
                parts.model.flown.append(len(sequences))
            return launch(sequences, behind)

        parts.engine._execution._flights._launch = noted
        return parts

    return build


def requests_of(kit, **fields):
    return [
        kit.ask(length, first=i, max_tokens=70 + i, ignore_eos=True, sampling=SAMPLING[i % 3],
                **fields)
        for i, length in enumerate((1, 62, 64, 130))
    ]


def tokens_of(kit, parts, requests):
    return [list(each[-1].token_ids) for each in kit.serve(parts, *requests)]


def test_answers_are_those_of_steps_one_after_the_other(kit, fly):
    requests, parts = requests_of(kit), fly()
    assert tokens_of(kit, parts, requests) == [kit.expected(e, e.max_tokens) for e in requests]
    assert parts.model.flown.count(4) > 40
    [status] = [parts.engine.status()]
    assert status.tokens.output == sum(each.max_tokens for each in requests)


def test_each_step_is_launched_before_the_tokens_of_the_last_are_told(kit, fly):
    parts, told = fly(), []
    request = kit.ask(5, max_tokens=20, ignore_eos=True)
    parts.engine.submit(request, lambda event: told.append(len(parts.model.steps)))
    parts.engine.step()
    for count in range(1, 15):
        parts.engine.step()
        assert len(parts.model.steps) == 2 + count  # the prompt, those that were told, and one more
        assert told[-1] == 2 + count


def test_nothing_is_launched_behind_the_last_token(kit, fly):
    parts = fly()
    [output] = tokens_of(kit, parts, [kit.ask(5, max_tokens=9, ignore_eos=True)])
    assert len(output) == 9
    assert len(parts.model.steps) == 9


def test_nothing_is_launched_ahead_while_a_prompt_is_read(kit, fly):
    parts, events = fly(), []
    parts.engine.submit(kit.ask(5, max_tokens=60, ignore_eos=True), events.append)
    for _ in range(4):
        parts.engine.step()
    before = len(parts.model.flown)
    parts.engine.submit(kit.ask(200, first=2, ignore_eos=True), print)
    for _ in range(3):
        parts.engine.step()
        assert len(parts.model.flown) == before
    parts.engine.run_until_idle()
    assert list(events[-1].token_ids) == kit.expected(kit.ask(5), 60)


@pytest.mark.parametrize("fields", [
    {"logprobs": 2}, {"min_tokens": 3}, {"sampling": SamplingParams(presence_penalty=1.0)}])
def test_what_needs_the_host_flies_not(kit, fly, fields):
    parts, request = fly(), kit.ask(max_tokens=12, ignore_eos=True, **fields)
    assert tokens_of(kit, parts, [request]) == [kit.expected(request, 12)]
    assert parts.model.flown == []


def test_requests_of_both_kinds_step_together(kit, fly):
    """One flies alone, then beside one that does not, then alone again."""
    parts = fly()
    free = kit.ask(5, max_tokens=60, ignore_eos=True)
    bound = kit.ask(9, first=3, max_tokens=8, logprobs=1, ignore_eos=True)
    events = {}
    parts.engine.submit(free, events.setdefault(1, []).append)
    for _ in range(10):
        parts.engine.step()
    parts.engine.submit(bound, events.setdefault(2, []).append)
    parts.engine.run_until_idle()
    parts.engine.audit()
    assert list(events[1][-1].token_ids) == kit.expected(free, 60)
    assert list(events[2][-1].token_ids) == kit.expected(bound, 8)
    assert len(parts.model.flown) > 30


@pytest.mark.parametrize("how", ["stop-token", "stop-string", "cancelled"])
def test_a_request_that_ends_in_flight_leaves_the_state_that_it_ended_with(kit, fly, how):
    """A conversation goes on from it, as from that of a plain run."""
    found = []
    for parts in (fly(), kit.build()):
        request = kit.ask(70, max_tokens=40, ignore_eos=True)
        answer = kit.expected(request, 40)
        at = next(i for i in range(5, 40) if answer[i] not in answer[:i])
        if how == "stop-token":
            request = evolve(request, stop_token_ids=(answer[at],))
        elif how == "stop-string":
            request = evolve(request, stop=(kit.text([answer[at]]),))
        others = [kit.ask(20, first=4, max_tokens=60, ignore_eos=True)]
        events = []
        number = parts.engine.submit(request, events.append)
        other = []
        parts.engine.submit(others[0], other.append)
        if how == "cancelled":
            for _ in range(9):
                parts.engine.step()
            parts.engine.cancel(number)
        parts.engine.run_until_idle()
        end = events[-1]
        assert end.reason == how
        assert list(other[-1].token_ids) == kit.expected(others[0], 60)
        prompt = (*request.prompt.token_ids, *end.token_ids, 9, 8, 7)
        again = evolve(kit.ask(), prompt=evolve(request.prompt, token_ids=prompt))
        [[*_, last]] = kit.serve(parts, again)
        assert list(last.token_ids) == kit.expected(again, again.max_tokens)
        found.append((end.token_ids, last.reuse.num_tokens, last.reuse.kind))
    assert found[0] == found[1]
    assert found[0][2] == "turn"


@pytest.mark.parametrize("cache", [False, True])
def test_a_request_that_pauses_in_flight_goes_on_as_it_would_have(kit, fly, cache):
    parts, requests, events = fly(cache=cache), requests_of(kit), [[] for _ in range(4)]
    ids = [parts.engine.submit(*each) for each in zip(requests, (e.append for e in events),
                                                      strict=True)]
    cycle = 0
    while parts.engine.step():
        cycle += 1
        if cycle % 7 == 0:
            parts.engine.pause(ids[cycle // 7 % 4])
    parts.engine.audit()
    for request, each in zip(requests, events, strict=True):
        assert list(each[-1].token_ids) == kit.expected(request, request.max_tokens)
    assert parts.engine.num_pauses > 4


@pytest.mark.parametrize("sampling", SAMPLING[:2])
def test_logits_that_are_not_finite_fail_their_request_alone(kit, fly, sampling):
    parts, events = fly(), [[], []]

    def spoil(batch, logits):
        for row in range(batch.num_rows):
            if int(batch.positions[row]) == 20 and batch.num_tokens == batch.num_rows:
                logits[row] = torch.nan

    parts.model.after = spoil
    requests = [kit.ask(10, max_tokens=30, ignore_eos=True, sampling=sampling),
                kit.ask(30, first=2, max_tokens=30, ignore_eos=True)]
    for request, each in zip(requests, events, strict=True):
        parts.engine.submit(request, each.append)
    parts.engine.run_until_idle()
    parts.engine.audit()
    assert isinstance(events[0][-1].cause, ModelError)
    assert list(events[0][-1].token_ids) == kit.expected(requests[0], 11)
    assert list(events[1][-1].token_ids) == kit.expected(requests[1], 30)


def test_a_pool_without_a_page_more_is_enough(kit, fly):
    requests = requests_of(kit)[:2]
    pages = sum(-(-(len(e.prompt.token_ids) + e.max_tokens - 1) // 64) for e in requests)
    parts = fly(num_pages=pages, cache=False)
    assert tokens_of(kit, parts, requests) == [kit.expected(e, e.max_tokens) for e in requests]
