"""Budgets and least lengths: the same answer with drafts and without, whoever drafts."""

import pytest
import torch
from attrs import evolve

from ninfer_core.api import CallRules, Grammar, PreparedPrompt, RequestError, SamplingParams
from ninfer_core.engine import engine as engine_module
from ninfer_core.engine.request import TextDelta
from ninfer_core.sampling.constraint import AllOf
from ninfer_core.text.parsers import ReasoningParser
from ninfer_drafting.mtp import MtpSpeculator
from ninfer_drafting.ngram import NgramSpeculator

OPEN, CLOSE, FORCED = 1, 2, [3, 2, 4]
SPECULATORS = [None, MtpSpeculator, NgramSpeculator]
SAMPLING = [SamplingParams(), SamplingParams(temperature=0.8, presence_penalty=0.5, seed=2)]


def thinking(kit, *, is_open=True, **fields):
    request = kit.ask(9, ignore_eos=True, **{"max_tokens": 30, **fields})
    return evolve(request, prompt=evolve(request.prompt, reasoning_open=is_open))


def answer(kit, request, speculator=None, **options):
    parts = kit.build(speculator=speculator, **options)
    [events] = kit.serve(parts, request)
    assert events[-1].cause is None
    assert speculator is None or parts.engine._speculation.is_on
    return list(events[-1].token_ids), events


def content(events):
    return "".join(event.text for event in events if isinstance(event, TextDelta))


class TestThinkingBudget:
    @pytest.mark.parametrize("speculator", SPECULATORS)
    @pytest.mark.parametrize("sampling", SAMPLING)
    @pytest.mark.parametrize("budget", [1, 2, 3, 4, 7, 12])
    def test_it_closes_reasoning_at_the_same_place(self, kit, prefer, budget, sampling, speculator):
        prefer(20)  # and so never closes it itself
        tokens, _ = answer(
            kit, thinking(kit, thinking_budget=budget, sampling=sampling), speculator)
        assert tokens[budget : budget + 3] == FORCED
        assert CLOSE not in tokens[:budget] and OPEN not in tokens[budget + 3 :]
        assert len(tokens) == 30  # forced tokens count

    @pytest.mark.parametrize("speculator", SPECULATORS)
    def test_a_model_that_opens_it_again_cannot(self, kit, prefer, speculator):
        prefer(OPEN, 20)
        tokens, _ = answer(kit, thinking(kit, thinking_budget=8), speculator)
        assert tokens == [OPEN] * 8 + FORCED + [20] + [OPEN] * 18  # those are text

    @pytest.mark.parametrize("speculator", SPECULATORS)
    @pytest.mark.parametrize("sampling", SAMPLING[:1])
    def test_any_answer_is_the_same_with_drafts(self, kit, sampling, speculator):
        for first in range(4):
            request = thinking(
                kit, first=first, thinking_budget=5, min_tokens=12, sampling=sampling)
            assert answer(kit, request, speculator)[0] == answer(kit, request)[0]

    @pytest.mark.parametrize("budget", [3, 40])
    @pytest.mark.parametrize("is_open", [True, False])
    def test_it_changes_nothing_before_it_is_spent(self, kit, prefer, is_open, budget):
        prefer(CLOSE if is_open else 20)
        request = thinking(kit, is_open=is_open)
        plain, limited = answer(kit, request), answer(kit, evolve(request, thinking_budget=budget))
        assert plain[0] == limited[0]
        assert plain[0][0] == (CLOSE if is_open else 20)

    def test_what_follows_is_content(self, kit, prefer):
        class Frontend(kit.LetterFrontend):
            def parser(self, prompt):
                return ReasoningParser(
                    reasoning_open=prompt.reasoning_open, opening="A", closing="B")

        prefer(OPEN, 20)
        _, events = answer(
            kit, thinking(kit, thinking_budget=4), MtpSpeculator, frontend=Frontend())
        texts = {"reasoning": "", "content": ""}
        for event in (each for each in events if isinstance(each, TextDelta)):
            texts[event.channel] += event.text
        assert texts == {"reasoning": "AAAAC", "content": "DT" + "A" * 22}

    def test_a_limit_within_the_forced_tokens_ends_the_output_there(self, kit, prefer):
        prefer(20)
        request = thinking(kit, thinking_budget=4, max_tokens=6)
        tokens, events = answer(kit, request, MtpSpeculator)
        assert (tokens, events[-1].reason) == ([20] * 4 + FORCED[:2], "output-limit")

    def test_a_model_without_reasoning_takes_none(self, kit):
        class Frontend(kit.LetterFrontend):
            reasoning_tokens = None

        engine = kit.build(frontend=Frontend()).engine
        with pytest.raises(RequestError, match="does not reason"):
            engine.submit(thinking(kit, thinking_budget=4), print)
        engine.submit(thinking(kit), print)

    def test_drafts_beyond_a_budget_are_not_even_verified(self, kit, prefer):
        """A speculator that knows nothing of masks is cut where it breaks them."""
        prefer(20)

        class Repeats(kit.Oracle):
            def _draft(self, request):
                return [20] * request.limit

        parts = kit.build(speculator=Repeats(4))
        [events] = kit.serve(parts, thinking(kit, thinking_budget=3, max_tokens=12))
        usage = events[-1].usage
        # a token; 2 drafts and a forced token; two more of those without a draft; 4 drafts
        assert list(events[-1].token_ids) == [20] * 3 + FORCED + [20] * 6
        assert usage.drafted_tokens == usage.accepted_tokens == 2 + 4
        assert (usage.rounds, usage.fallback_steps) == (2, 1)


class TestMinTokens:
    @pytest.mark.parametrize("speculator", SPECULATORS)
    @pytest.mark.parametrize("least", [0, 1, 4])
    @pytest.mark.parametrize("length", [5, 50])
    @pytest.mark.parametrize("sampling", SAMPLING)
    def test_an_end_is_possible_first_after_it(
        self, kit, prefer, least, length, sampling, speculator
    ):
        """The model wants only to end, by either of two tokens; the prompt does not count."""
        prefer(kit.EOS, 30, 20)
        request = kit.ask(
            length, max_tokens=20, min_tokens=least, stop_token_ids=[30], sampling=sampling)
        tokens, events = answer(kit, request, speculator)
        assert len(tokens) == least + 1
        assert not {kit.EOS, 30} & {*tokens[:least]} and tokens[-1] in (kit.EOS, 30)
        assert events[-1].reason == "stop-token"

    def test_an_ignored_end_forbids_nothing(self, kit, prefer):
        last = kit.VOCAB - 1
        prefer(last, kit.EOS)
        request = kit.ask(max_tokens=6, min_tokens=4, ignore_eos=True)
        assert answer(kit, request)[0] == [last] * 6
        request = evolve(request, stop_token_ids=frozenset({-1}))
        assert answer(kit, request)[0] == [last] * 6

    @pytest.mark.parametrize("speculator", [None, MtpSpeculator])
    @pytest.mark.parametrize("least", [0, 1, 2, 3, 4, 5])
    def test_stop_strings_of_early_tokens_are_text(self, kit, least, speculator):
        """They are not found later either, nor when they begin early."""
        whole = kit.text(kit.expected(kit.ask(), 12))
        stop = whole[2:4]
        assert stop not in whole[4:]
        request = kit.ask(max_tokens=12, min_tokens=least, stop=[stop], ignore_eos=True)
        tokens, events = answer(kit, request, speculator)
        text = content(events)
        if least <= 2:
            assert (text, len(tokens), events[-1].reason) == (whole[:2], 4, "stop-string")
        else:
            assert (text, events[-1].reason) == (whole, "output-limit")
        assert events[-1].stop == (stop if least <= 2 else None)

    def test_a_stop_string_is_found_in_what_follows(self, kit, prefer):
        prefer(20)
        request = kit.ask(max_tokens=12, min_tokens=7, stop=["TT"], ignore_eos=True)
        tokens, events = answer(kit, request)
        assert (len(tokens), events[-1].reason) == (9, "stop-string")
        assert content(events) == "T" * 7

    @pytest.mark.parametrize("fields", [
        {"min_tokens": 9}, {"min_tokens": -1}, {"min_tokens": 1.5}, {"thinking_budget": 0},
        {"thinking_budget": -3}, {"thinking_budget": "8"},
    ])
    def test_senseless_limits_are_refused(self, kit, fields):
        with pytest.raises(RequestError):
            kit.ask(max_tokens=8, **fields)


class Fussy:
    """A constraint of a grammar's kind, made to fail."""

    def __init__(self, fault, after=2):
        self.fault, self.left = fault, after

    def mask(self, pending):
        if len(pending) < self.left:
            return None
        if self.fault == "mask":
            raise RuntimeError("the grammar is broken")
        return torch.zeros(48, dtype=torch.bool) if self.fault == "dead end" else None

    def commit(self, token_ids):
        self.left -= len(token_ids)
        if self.fault == "commit" and self.left <= 0:
            raise RuntimeError("the grammar is broken")


@pytest.mark.parametrize("speculator", SPECULATORS)
@pytest.mark.parametrize(("fault", "words"), [
    ("mask", "grammar is broken"), ("commit", "grammar is broken"),
    ("dead end", "no token may follow"),
])
def test_a_constraint_at_fault_fails_its_own_request(kit, monkeypatch, fault, words, speculator):
    def constrain(request, *_):
        return AllOf([Fussy(fault)]) if request.max_tokens == 11 else None

    monkeypatch.setattr(engine_module, "constrain", constrain)
    parts = kit.build(speculator=speculator)
    requests = [kit.ask(first=i, max_tokens=10 + i, ignore_eos=True) for i in range(3)]
    events = kit.serve(parts, *requests)
    assert [each[-1].reason for each in events] == ["output-limit", "error", "output-limit"]
    assert words in str(events[1][-1].cause)
    assert isinstance(events[1][-1].cause, RequestError) == (fault == "dead end")
    for i in (0, 2):
        assert list(events[i][-1].token_ids) == kit.expected(requests[i], 10 + i)


@pytest.mark.parametrize("drafts", ["none", "mtp", "right", "wrong", "mixed"])
@pytest.mark.parametrize("fault", ["mask", "dead end"])
@pytest.mark.parametrize("after", range(1, 7))
def test_a_fault_is_met_where_a_plain_run_meets_it(kit, monkeypatch, fault, after, drafts):
    """Drafts neither hide what was said before it, nor bring it about beyond a rejected one."""
    wrong = {"right": (False,), "wrong": (True,), "mixed": (False, True, True)}.get(drafts)
    speculator = kit.Oracle(4, wrong) if wrong else {"mtp": MtpSpeculator}.get(drafts)
    monkeypatch.setattr(engine_module, "constrain", lambda *_: AllOf([Fussy(fault, after)]))
    request = kit.ask(max_tokens=9, ignore_eos=True)
    [events] = kit.serve(kit.build(speculator=speculator), request)
    expected = kit.expected(request, after)
    assert events[-1].reason == "error"
    assert list(events[-1].token_ids) == expected
    assert content(events) == kit.text(expected)


def test_prompts_say_where_reasoning_stands(kit):
    """A request without a budget is left alone, wherever its prompt ends."""
    prompt = PreparedPrompt((5, 6), "", reasoning_open=True)
    request = kit.ask(prompt=prompt, max_tokens=9, ignore_eos=True)
    tokens, events = answer(kit, request)
    assert tokens == kit.expected(request, 9)
    assert content(events) == kit.text(tokens)


class Spelling:
    """A compiler whose grammars are the letters of an answer; others are malformed."""

    def __init__(self):
        self.asked = []

    def compile(self, grammar, calls, tools):
        self.asked.append((grammar, calls, tools))
        if not grammar.source.isupper():
            raise RequestError("malformed", where=grammar.kind)
        letters = [ord(each) - 64 for each in grammar.source]
        return lambda end_ids: Spelt(letters, end_ids)


class Spelt:
    def __init__(self, letters, end_ids):
        self.letters, self.end_ids = letters, end_ids

    def mask(self, pending):
        mask = torch.zeros(48, dtype=torch.bool)
        left = self.letters[len(pending) :]
        mask[[*self.end_ids] if not left else left[:1]] = True
        return mask

    def commit(self, token_ids):
        self.letters = self.letters[len(token_ids) :]


TOOL = {"type": "function", "function": {"name": "f"}}


class TestGrammars:
    @pytest.mark.parametrize("speculator", SPECULATORS)
    @pytest.mark.parametrize("sampling", SAMPLING)
    def test_the_answer_is_what_the_grammar_says(self, kit, sampling, speculator):
        request = kit.ask(max_tokens=30, grammar=Grammar("regex", "HELLOWORLD"), sampling=sampling)
        tokens, events = answer(kit, request, speculator, compiler=Spelling())
        assert kit.text(tokens) == "HELLOWORLD$"
        assert events[-1].reason == "stop-token"

    @pytest.mark.parametrize("speculator", SPECULATORS)
    @pytest.mark.parametrize("budget", [1, 2, 3, 5])
    def test_it_begins_behind_the_reasoning(self, kit, prefer, budget, speculator):
        prefer(20)
        request = thinking(kit, thinking_budget=budget, grammar=Grammar("regex", "DHELLO"))
        request = evolve(request, ignore_eos=False)
        tokens, _ = answer(kit, request, speculator, compiler=Spelling())
        assert kit.text(tokens) == "T" * budget + "CBDHELLO$"

    def test_it_begins_at_once_without(self, kit, prefer):
        prefer(20)
        request = thinking(
            kit, is_open=False, thinking_budget=3, grammar=Grammar("regex", "HELLO"))
        request = evolve(request, ignore_eos=False)
        assert kit.text(answer(kit, request, compiler=Spelling())[0]) == "HELLO$"

    def test_every_end_of_the_request_is_one(self, kit, prefer):
        prefer(30)
        request = kit.ask(max_tokens=30, stop_token_ids=[30], grammar=Grammar("regex", "AB"))
        assert answer(kit, request, compiler=Spelling())[0] == [1, 2, 30]

    @pytest.mark.parametrize("speculator", SPECULATORS)
    def test_paused_and_gone_on_it_is_where_it_was(self, kit, speculator):
        letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ" * 2
        parts = kit.build(speculator=speculator, compiler=Spelling())
        request, events = kit.ask(max_tokens=80, grammar=Grammar("regex", letters)), []
        number, cycle = parts.engine.submit(request, events.append), 0
        while parts.engine.step():
            cycle += 1
            if cycle % 3 == 0:
                parts.engine.pause(number)
        assert kit.text(events[-1].token_ids) == letters + "$" and parts.engine.num_pauses > 3

    def test_what_the_compiler_refuses_is_refused_at_once(self, kit):
        engine = kit.build(compiler=Spelling()).engine
        with pytest.raises(RequestError, match="malformed"):
            engine.submit(kit.ask(grammar=Grammar("regex", "x")), print)
        assert not engine.step()

    def test_without_an_engine_of_grammars_it_is_said_what_to_install(self, kit):
        engine = kit.build().engine
        with pytest.raises(RequestError, match="ninfer-constraints"):
            engine.submit(kit.ask(grammar=Grammar("json")), print)
        engine.submit(kit.ask(), print)

    @pytest.mark.parametrize(("rules", "tools", "why"), [
        (CallRules(required=True), (), "nothing to call"),
        (CallRules(required=True, names=()), (TOOL,), "nothing to call"),
        (CallRules(names=("g",)), (TOOL,), "no such tool.*g"),
        (CallRules(strict=frozenset({"g"})), (TOOL,), "no such tool.*g"),
        (CallRules(required=True), (TOOL,), "writes none"),
    ])
    def test_rules_that_nothing_can_meet(self, kit, rules, tools, why):
        engine = kit.build(compiler=Spelling()).engine
        prompt = PreparedPrompt((3,), "", tools=tools)
        with pytest.raises(RequestError, match=why):
            engine.submit(kit.ask(prompt=prompt, calls=rules), print)

    def test_rules_of_calls_that_cannot_be_hold_nothing(self, kit):
        compiler, prompt = Spelling(), PreparedPrompt((3,), "", tools=(TOOL,))
        request = kit.ask(prompt=prompt, calls=CallRules(names=("f",), parallel=False))
        assert answer(kit, request, compiler=compiler)[0] == kit.expected(request, 8)
        assert compiler.asked == []
