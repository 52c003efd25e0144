"""Rounds that are launched before the host has seen what came of the last: answers, states and
counts are those of rounds one after the other."""

import pytest
import torch
from attrs import evolve

from ninfer_core.api import SamplingParams
from ninfer_core.engine.faults import ModelError
from ninfer_drafting.mtp import MtpSpeculator
from ninfer_fixtures.judges import Prompt

DRAFTS = 3
ERRS = [lambda position: False, lambda position: True, lambda position: position % 3 == 0]


class AtOnce(MtpSpeculator):
    """Drafts on the device."""

    def __init__(self, context):
        super().__init__(evolve(context, judge=Prompt()))


@pytest.fixture
def fly(kit):
    """``(errs, **options) -> Parts`` of an engine that launches rounds ahead;
    ``parts.model.flown`` has the rows of each that was."""

    def build(errs=ERRS[0], **options):
        parts = kit.build(speculator=AtOnce, drafts=DRAFTS, judge=Prompt(), **options)
        parts.model.predictor.errs, parts.model.flown = errs, []
        rounds = parts.engine._execution._rounds
        launch = rounds._launch

        def noted(sequences, inputs, accepted=None):
            if accepted is not None:
                parts.model.flown.append(len(sequences))
            return launch(sequences, inputs, accepted)

        rounds._launch = noted
        return parts

    return build


def requests_of(kit, **fields):
    return [
        kit.ask(length, first=i, max_tokens=60 + i, ignore_eos=True, **fields)
        for i, length in enumerate((1, 62, 64, 130))
    ]


def tokens_of(kit, parts, requests):
    found = [list(each[-1].token_ids) for each in kit.serve(parts, *requests)]
    assert parts.engine._speculation.is_on
    return found


@pytest.mark.parametrize("errs", ERRS)
def test_answers_and_counts_are_those_of_rounds_one_after_the_other(kit, fly, errs):
    requests, parts = requests_of(kit), fly(errs)
    ends = [each[-1] for each in kit.serve(parts, *requests)]
    assert [list(e.token_ids) for e in ends] == [kit.expected(e, e.max_tokens) for e in requests]
    assert parts.model.flown.count(4) > 5
    plain = kit.build(speculator=MtpSpeculator, drafts=DRAFTS)
    plain.model.predictor.errs = errs
    assert [e.usage for e in ends] == [each[-1].usage for each in kit.serve(plain, *requests)]
    assert parts.engine.drafts == plain.engine.drafts
    assert parts.engine.status().tokens == plain.engine.status().tokens


@pytest.mark.parametrize("at", range(1, 10))
@pytest.mark.parametrize("how", ["stop-token", "stop-string", "output-limit"])
def test_drafts_behind_the_end_of_an_answer_count_as_accepted_to_nobody(kit, fly, how, at):
    """Whoever judges them: the device, which knows no stop strings, or the host."""
    request = kit.ask(70, max_tokens=60, ignore_eos=True)
    answer, usages = kit.expected(request, 60), []
    at = next(i for i in range(at, 60) if answer[i] not in answer[:i])
    request = evolve(request, **{
        "stop-token": {"stop_token_ids": (answer[at],)},
        "stop-string": {"stop": (kit.text([answer[at]]),)},
        "output-limit": {"max_tokens": at + 1}}[how])
    for parts in (fly(), kit.build(speculator=MtpSpeculator, drafts=DRAFTS)):
        [[*_, end]] = kit.serve(parts, request)
        assert (end.reason, list(end.token_ids)) == (how, answer[: at + 1])
        assert parts.engine.drafts.accepted == end.usage.accepted_tokens
        usages.append(end.usage)
    assert usages[0] == usages[1]
    assert usages[0].rounds + usages[0].accepted_tokens + usages[0].fallback_steps in (at, at + 1)


def test_each_round_is_launched_before_the_tokens_of_the_last_are_told(kit, fly):
    parts, told = fly(), []
    request = kit.ask(5, max_tokens=60, ignore_eos=True)
    parts.engine.submit(request, lambda event: told.append(len(parts.model.steps)))
    parts.engine.step()
    for count in range(1, 12):
        parts.engine.step()
        assert len(parts.model.steps) == 2 + count  # the prompt, those that were told, and one more
        assert told[-1] == 2 + count


def test_nothing_is_launched_behind_the_last_whole_round(kit, fly):
    """One token and four rounds of four behind a prompt; for a fifth there is no room."""
    parts = fly()
    [output] = tokens_of(kit, parts, [kit.ask(5, max_tokens=17, ignore_eos=True)])
    assert len(output) == 17
    assert len(parts.model.steps) == 5


def test_nothing_is_launched_ahead_while_a_prompt_is_read(kit, fly):
    parts, events = fly(), []
    parts.engine.submit(kit.ask(5, max_tokens=90, ignore_eos=True), events.append)
    for _ in range(4):
        parts.engine.step()
    before = len(parts.model.flown)
    assert before
    parts.engine.submit(kit.ask(200, first=2, ignore_eos=True), print)
    for _ in range(3):
        parts.engine.step()
        assert len(parts.model.flown) == before
    parts.engine.run_until_idle()
    assert list(events[-1].token_ids) == kit.expected(kit.ask(5), 90)


@pytest.mark.parametrize("fields", [
    {"logprobs": 2}, {"min_tokens": 3}, {"sampling": SamplingParams(presence_penalty=1.0)},
    {"stop": ("zzz",)}, {"sampling": SamplingParams(temperature=0.5)}])
def test_what_needs_the_host_flies_not(kit, fly, fields):
    parts, request = fly(), kit.ask(max_tokens=30, ignore_eos=True, **fields)
    tokens_of(kit, parts, [request])
    assert parts.model.flown == []


def test_requests_of_both_kinds_step_together(kit, fly):
    """One flies alone, then beside one that does not, then alone again."""
    parts = fly(ERRS[2])
    free = kit.ask(5, max_tokens=90, ignore_eos=True)
    bound = kit.ask(9, first=3, max_tokens=8, logprobs=1, ignore_eos=True)
    events = {}
    parts.engine.submit(free, events.setdefault(1, []).append)
    for _ in range(6):
        parts.engine.step()
    before = len(parts.model.flown)
    parts.engine.submit(bound, events.setdefault(2, []).append)
    parts.engine.run_until_idle()
    parts.engine.audit()
    assert list(events[1][-1].token_ids) == kit.expected(free, 90)
    assert list(events[2][-1].token_ids) == kit.expected(bound, 8)
    assert 3 < before < len(parts.model.flown) - 3


@pytest.mark.parametrize("errs", ERRS)
@pytest.mark.parametrize("at", range(5, 14))
@pytest.mark.parametrize("how", ["stop-token", "stop-string", "cancelled"])
def test_a_request_that_ends_in_flight_leaves_the_state_that_it_ended_with(
    kit, fly, how, at, errs
):
    """Wherever in a round its end is; a conversation goes on from it, as from that of a plain run,
    and so do those in its company."""
    found = []
    for parts in (fly(errs), kit.build()):
        request = kit.ask(70, max_tokens=60, ignore_eos=True)
        answer = kit.expected(request, 60)
        at = next(i for i in range(at, 60) if answer[i] not in answer[:i])
        if how == "stop-token":
            request = evolve(request, stop_token_ids=(answer[at],))
        elif how == "stop-string":
            request = evolve(request, stop=(kit.text([answer[at]]),))
        other, events, beside = kit.ask(20, first=4, max_tokens=80, ignore_eos=True), [], []
        number = parts.engine.submit(request, events.append)
        parts.engine.submit(other, beside.append)
        if how == "cancelled":
            while len(parts.engine._sequences[number].tokens) < 70 + at:
                parts.engine.step()
            parts.engine.cancel(number)
        parts.engine.run_until_idle()
        parts.engine.audit()
        end = events[-1]
        assert end.reason == how
        assert list(beside[-1].token_ids) == kit.expected(other, 80)
        prompt = (*request.prompt.token_ids, *end.token_ids, 9, 8, 7)
        again = evolve(kit.ask(), prompt=evolve(request.prompt, token_ids=prompt))
        [[*_, last]] = kit.serve(parts, again)
        assert list(last.token_ids) == kit.expected(again, again.max_tokens)
        found.append((last.reuse.kind, last.reuse.num_tokens - len(end.token_ids)))
        if how != "cancelled":
            assert list(end.token_ids) == answer[: at + 1]
    assert found[0] == found[1]


@pytest.mark.parametrize("errs", ERRS)
@pytest.mark.parametrize("cache", [False, True])
def test_a_request_that_pauses_in_flight_goes_on_as_it_would_have(kit, fly, cache, errs):
    parts, requests, events = fly(errs, cache=cache), requests_of(kit), [[] for _ in range(4)]
    ids = [parts.engine.submit(*each) for each in zip(requests, (e.append for e in events),
                                                      strict=True)]
    cycle = 0
    while parts.engine.step():
        cycle += 1
        if cycle % 7 == 0:
            parts.engine.pause(ids[cycle // 7 % 4])
    parts.engine.audit()
    assert parts.model.flown
    for request, each in zip(requests, events, strict=True):
        assert list(each[-1].token_ids) == kit.expected(request, request.max_tokens)
    assert parts.engine.num_pauses > 2


def test_logits_that_are_not_finite_fail_their_request_alone(kit, fly):
    parts, events = fly(), [[], []]

    def spoil(batch, logits):
        for token in range(batch.num_tokens):
            row = int(batch.token_row[token])
            if row == 0 and int(batch.positions[token]) == 30 and len(logits) == batch.num_tokens:
                logits[token] = torch.nan

    parts.model.after = spoil
    requests = [kit.ask(10, max_tokens=60, ignore_eos=True),
                kit.ask(50, first=2, max_tokens=60, ignore_eos=True)]
    for request, each in zip(requests, events, strict=True):
        parts.engine.submit(request, each.append)
    parts.engine.run_until_idle()
    parts.engine.audit()
    assert isinstance(events[0][-1].cause, ModelError)
    assert list(events[0][-1].token_ids) == kit.expected(requests[0], 21)
    assert list(events[1][-1].token_ids) == kit.expected(requests[1], 60)


def test_a_pool_without_a_page_more_is_enough(kit, fly):
    requests = requests_of(kit)[:2]
    pages = sum(-(-(len(e.prompt.token_ids) + e.max_tokens - 1) // 64) for e in requests)
    parts = fly(num_pages=pages, cache=False)
    assert tokens_of(kit, parts, requests) == [kit.expected(e, e.max_tokens) for e in requests]
    assert parts.model.flown


def test_a_speculator_that_fails_in_flight_costs_no_request(kit, fly, caplog):
    parts, requests = fly(ERRS[2]), requests_of(kit)
    draft, calls = parts.speculator.draft_ahead, iter(range(99))

    def failing(*args):
        if next(calls) == 12:
            raise RuntimeError("kernel launch failed")
        return draft(*args)

    parts.speculator.draft_ahead = failing
    found = [list(each[-1].token_ids) for each in kit.serve(parts, *requests)]
    assert found == [kit.expected(each, each.max_tokens) for each in requests]
    assert "switched off" in caplog.text and parts.model.flown


@pytest.mark.parametrize("call", ["draft_ahead", "drafted_ahead"])
@pytest.mark.parametrize("change", [
    lambda inputs: inputs[:, :-1], lambda inputs: torch.cat((inputs, inputs), 1),
    lambda inputs: inputs[:-1], lambda inputs: inputs.int(), lambda inputs: inputs.double()])
def test_a_speculator_whose_drafts_are_no_round_costs_no_request(kit, fly, caplog, call, change):
    parts, requests = fly(), requests_of(kit)
    right = getattr(parts.speculator, call)

    def wrong(*args):
        inputs = right(*args)
        return None if inputs is None else change(inputs)

    setattr(parts.speculator, call, wrong)
    reading = kit.ask(200, first=9, max_tokens=0)  # so that some rounds are not launched ahead
    found = [list(each[-1].token_ids) for each in kit.serve(parts, *requests, reading)]
    assert found[:-1] == [kit.expected(e, e.max_tokens) for e in requests]
    assert "switched off" in caplog.text
