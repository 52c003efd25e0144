"""Logprobs of output and prompt: the model's own, whatever else a request asks for."""

import numpy as np
import pytest
import torch
from attrs import evolve

from ninfer_core.api import RequestError, SamplingParams
from ninfer_core.engine.request import Logprobs, TextDelta
from ninfer_drafting.mtp import MtpSpeculator
from ninfer_fixtures.hash_model import chain, digest, logits_of

PENALISED = SamplingParams(temperature=0.8, presence_penalty=1.0, seed=3)


def truth(tokens, first):
    """Logprobs of the tokens from a place on, as the model is defined."""
    state, found = 0, []
    for place, token in enumerate(tokens):
        if place >= first:
            row = torch.log_softmax(logits_of(state, digest(np.array(tokens[:place]))).double(), -1)
            found.append(float(row[token]))
        state = chain(state, token)
    return found


def run(kit, *requests, **options):
    """Of each request: logprobs of the prompt, those of the output, its last event."""
    found = []
    for events in kit.serve(kit.build(**options), *requests):
        scores = [each for each in events if isinstance(each, Logprobs)]
        prompt = [token for each in scores if each.of_prompt for token in each.tokens]
        output = [token for each in scores if not each.of_prompt for token in each.tokens]
        found.append((prompt, output, events[-1]))
    return found


def ask(kit, length=70, **fields):
    return kit.ask(length, **{"ignore_eos": True, "max_tokens": 24, "logprobs": 3, **fields})


@pytest.mark.parametrize("sampling", [SamplingParams(), PENALISED])
@pytest.mark.parametrize("speculator", [None, MtpSpeculator])
def test_output_is_told_in_the_models_own_distribution(kit, sampling, speculator):
    """Before penalties and temperature, with drafts as without."""
    request = ask(kit, sampling=sampling)
    [(prompt, output, last)] = run(kit, request, speculator=speculator)
    assert prompt == [] and [each.token_id for each in output] == list(last.token_ids)
    tokens = [*request.prompt.token_ids, *last.token_ids]
    assert [each.logprob for each in output] == pytest.approx(truth(tokens, 70), abs=1e-6)
    for each in output:
        assert len(each.top) == 3
        if sampling == SamplingParams():
            assert each.top[0] == (each.token_id, each.logprob)


def test_greedy_logprobs_are_the_same_with_and_without_drafts(kit):
    request = ask(kit)
    [(_, plain, _)] = run(kit, request)
    oracle = kit.Oracle(3, wrong=(False, True, False))
    assert [scores for _, scores, _ in run(kit, request, speculator=oracle)] == [plain]
    [(_, beside, _), *_] = run(kit, request, *(ask(kit, first=i) for i in range(2, 6)))
    assert beside == plain


def test_those_who_do_not_ask_get_none_and_others_as_many_as_they_asked_for(kit):
    asked = [None, 0, 5]
    found = run(kit, *(ask(kit, first=i, logprobs=most) for i, most in enumerate(asked, 1)))
    assert found[0][:2] == ([], [])
    for most, (_, output, last) in list(zip(asked, found, strict=True))[1:]:
        assert [each.token_id for each in output] == list(last.token_ids)
        assert {len(each.top) for each in output} == {most}


def test_tokens_are_named_before_their_text_and_only_those_that_are_kept(kit):
    """A stop string cuts a round of drafts."""
    request = ask(kit)
    text = kit.text(kit.expected(request, 24))
    parts = kit.build(speculator=kit.Oracle(3))
    [events] = kit.serve(parts, evolve(request, stop=(text[5:7],)))
    names = [type(each) for each in events]
    assert names.index(Logprobs) < names.index(TextDelta)
    told = [t.token_id for each in events if isinstance(each, Logprobs) for t in each.tokens]
    assert told == list(events[-1].token_ids) and kit.text(told) == text[:7]


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 200])
@pytest.mark.parametrize("max_logits", [1, 7, 64, 500])
@pytest.mark.parametrize("speculator", [None, MtpSpeculator])
def test_every_token_of_a_prompt_is_told(kit, length, max_logits, speculator):
    request = ask(kit, length, prompt_logprobs=2, max_tokens=4)
    [(prompt, output, last)] = run(
        kit, request, max_logits=max_logits, speculator=speculator, chunk=128)
    tokens = [*request.prompt.token_ids, *last.token_ids]
    assert [each.token_id for each in prompt] == list(request.prompt.token_ids)
    assert prompt[0].logprob is None and prompt[0].top == ()
    assert [each.logprob for each in prompt[1:]] == pytest.approx(truth(tokens[:length], 1))
    assert all(len(each.top) == 2 for each in prompt[1:])
    assert [each.logprob for each in output] == pytest.approx(truth(tokens, length))
    plain = evolve(request, prompt_logprobs=None, logprobs=None)
    assert run(kit, plain)[0][2].token_ids == last.token_ids


def test_what_others_have_read_is_read_again_to_be_told(kit):
    parts = kit.build(max_logits=64)
    request = ask(kit, 300, logprobs=None)
    kit.serve(parts, request)
    events, again = kit.serve(parts, evolve(request, prompt_logprobs=0), request)
    told = [t.token_id for e in events if isinstance(e, Logprobs) for t in e.tokens]
    assert told == list(request.prompt.token_ids)
    assert events[-1].reuse.num_tokens == 0 and again[-1].reuse.num_tokens >= 256


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("cycles", range(1, 9))
def test_a_pause_repeats_and_loses_nothing(kit, cache, cycles):
    request = ask(kit, 200, prompt_logprobs=1, max_tokens=6)
    [expected] = run(kit, request)
    parts, events = kit.build(max_logits=64, cache=cache), []
    number = parts.engine.submit(request, events.append)
    for _ in range(cycles):
        parts.engine.step()
    parts.engine.pause(number)
    parts.engine.run_until_idle()
    parts.engine.audit()
    assert events[-1].reuse.num_pauses == 1
    scores = [each for each in events if isinstance(each, Logprobs)]
    assert [t for each in scores if each.of_prompt for t in each.tokens] == expected[0]
    assert [t for each in scores if not each.of_prompt for t in each.tokens] == expected[1]


def test_logits_that_are_no_numbers_are_no_logprobs(kit):
    parts = kit.build(max_logits=64)
    parts.model.after = lambda batch, logits: logits[3:4].fill_(float("nan"))
    [events] = kit.serve(parts, ask(kit, prompt_logprobs=1))
    assert not any(isinstance(each, Logprobs) for each in events)
    assert events[-1].reason == "error" and "not finite" in str(events[-1].cause)


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
@pytest.mark.parametrize("value", [-1, 1.5, "3"])
def test_how_many_are_wanted_is_a_number(kit, name, value):
    with pytest.raises(RequestError, match=f"{name} must be an integer, 0 or more"):
        kit.ask(**{name: value})
