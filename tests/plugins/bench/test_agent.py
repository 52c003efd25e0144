"""The trace of an agent, and what could have been reused of it."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_bench.reuse import Known, Served, explains
from ninfer_bench.trace import SIDE_EVERY, agents
from ninfer_bench.writing import Writer, size_of, tools
from ninfer_core.api import PreparedPrompt
from ninfer_core.engine.request import Reuse
from ninfer_core.text.frontend import ChatFrontend
from ninfer_fixtures.tiny import tiny_resources

SMALL = ("engine", "agent", "--turns", 5, "--system-tokens", 400)


def test_an_agent_reuses_what_it_repeats(bench):
    code, found = bench(*SMALL, "--least", 90)
    assert (code, found["problems"]) == (0, [])
    assert found["reused_percent"] >= 90
    labels = [each["label"] for each in found["requests"]]
    assert len(labels) == len({*labels}) == 5 + 1 + 2 * 2
    assert labels[0] == "turn 1" and "title 5" in labels
    first = found["requests"][0]
    assert (first["reusable"], first["reused"], first["diverged_at"]) == (0, 0, 0)
    kinds = {each["kind"] for each in found["requests"]}
    assert {"turn", "stable"} <= kinds
    assert found["cache"]["refused"] == 0


def test_too_little_reuse_is_a_problem(bench):
    code, found = bench(*SMALL, "--least", 100)
    assert code == 1
    assert "of the reusable tokens are reused, and 100 % are wanted" in found["problems"][0]


def test_a_nonce_is_shown_in_the_record_of_every_miss(bench):
    code, found = bench(*SMALL, "--nonce", "--least", 100)
    assert (code, found["problems"]) == (0, [])
    assert all(each["is_explained"] for each in found["requests"])
    assert found["reused"] < found["prompt_tokens"] / 2
    assert {each["kind"] for each in found["requests"]} == {"", "branch"}, "tools before a nonce"


TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=12)


@given(st.lists(TOKENS, max_size=4), TOKENS)
def test_reusable_is_the_longest_beginning_that_was_computed(sequences, prompt):
    known = Known()
    for each in sequences:
        known.add(each)
    best = 0
    for each in sequences:
        for length in range(len(prompt)):
            if each[:-1][:length] == prompt[:length]:
                best = max(best, length)
    assert known.reusable(prompt) == best


def test_why_less_was_reused():
    def loss(reusable, reused):
        return Served("", 0, 0, reusable, reused, "", "", None, "", "", False, 0.0).loss

    assert loss(100, 100) == loss(100, 120) == ""
    assert loss(100, 64) == "up to the grid of pages"
    assert loss(1000, 64) == "no state is kept between 64 and 1,000"


class Characters:
    def encode(self, text, *, special=False):
        return [*text]


@pytest.mark.parametrize(("at", "known", "new", "wanted"), [
    (3, "id ", "abc", True), (0, "", "id abc", True), (5, "id ab", "c rest", True),
    (6, "id abc", " rest", False), (None, "", "", False), (3, "id ", "xyz", False),
])
def test_a_miss_is_explained_by_text_before_the_end_of_the_nonce(at, known, new, wanted):
    prompt = PreparedPrompt((1,), "id abc rest")
    reuse = Reuse(diverged_at=at, known=known, new=new)
    assert explains(reuse, prompt, "abc", Characters()) is wanted


@pytest.fixture(scope="module")
def tokenizer():
    return ChatFrontend(tiny_resources()).tokenizer


def test_texts_have_the_length_that_is_wanted(tokenizer):
    writer = Writer(tokenizer, 1)
    for tokens in (1, 16, 300):
        count = len(tokenizer.encode(writer.text(tokens)))
        assert tokens <= count <= tokens + 10
    assert Writer(tokenizer, 1).text(50) == Writer(tokenizer, 1).text(50)
    assert len(tools(tokenizer, 0)) == 1
    assert 1 < len(tools(tokenizer, 2000)) <= size_of(tools(tokenizer, 2000), tokenizer) <= 2000


def test_the_trace_has_what_an_agent_does(tokenizer):
    begins, makers = zip(*agents(tokenizer, 30, 2000), strict=True)
    assert begins[0] == 1 and all(begin > 1 for begin in begins[1:])
    answer, systems, labels, roles = {"role": "assistant", "content": "x"}, [], [], set()
    main = makers[0]()
    batch = next(main)
    while True:
        labels += [turn.label for turn in batch]
        systems.append(batch[0].messages[0]["content"])
        roles |= {message["role"] for message in batch[0].messages}
        assert batch[0].tools
        try:
            batch = main.send([answer] * len(batch))
        except StopIteration:
            break
    assert len(systems) == 30 and len({*systems}) == 4
    assert all(after.startswith(before) for before, after in pairwise(systems))
    assert sum(not label.startswith("turn") for label in labels) == 30 // SIDE_EVERY
    assert roles == {"system", "user", "assistant", "tool"}
    first, second = (next(make())[0] for make in makers[1:])
    assert first.messages[0] == second.messages[0] and first.messages[1] != second.messages[1]


def test_known_sequences_take_little_room():
    known = Known()
    known.add(range(5))
    assert known.sequences[0].dtype == np.int32
