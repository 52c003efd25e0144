"""Preview, accept, publish: what is kept, what the state is told, what is sent."""

import pytest

from ninfer_core.api import OutputPart, ToolCall
from ninfer_core.engine import commit
from ninfer_core.engine.output import TextOutput
from ninfer_core.engine.request import TextDelta
from ninfer_core.engine.sequence import Sequence
from ninfer_core.state.store import SequenceState
from ninfer_core.text.parsers import PlainParser, ReasoningParser

A, B, C, D, END = 1, 2, 3, 4, 0  # as the test tokenizer has it


def make(kit, *, stop=(), parser=None, max_tokens=9, limit=99, sink=print):
    request = kit.ask(3, max_tokens=max_tokens)
    output = TextOutput(kit.LetterFrontend.tokenizer.token_bytes, parser or PlainParser(), stop)
    return Sequence(
        id=1, request=request, sink=sink, output=output, end_ids=frozenset({END}), limit=limit,
        tokens=list(request.prompt.token_ids), last_cycle=0, submitted_at=0.0,
        frontier=3, state=SequenceState(1, [1]),
    )


@pytest.mark.parametrize(("options", "candidates", "kept", "text", "reason"), [
    ({}, [A, B, C], 3, "ABC", None),
    ({}, [A, END, C], 2, "A", "stop-token"),
    ({"stop": ["BC"]}, [A, B, C, D], 3, "A", "stop-string"),
    ({"stop": ["BC"]}, [A, B], 2, "A", None),
    ({"stop": ["BC"]}, [A, B, END], 3, "AB", "stop-token"),
    ({"max_tokens": 2}, [A, B, C], 2, "AB", "output-limit"),
    ({"limit": 5}, [A, B, C], 2, "AB", "context-capacity"),
    ({"max_tokens": 2}, [A, END, C], 2, "A", "stop-token"),
    ({"max_tokens": 2, "stop": ["BC"]}, [A, B, C], 2, "AB", "output-limit"),
    ({"max_tokens": 2, "stop": ["AB"]}, [A, B, C], 2, "", "stop-string"),
    ({"parser": ReasoningParser(reasoning_open=True, closing="BC"), "stop": ["A"]},
     [A, B, C, D, A], 5, "AD", "stop-string"),
    ({"parser": ReasoningParser(reasoning_open=False, opening="AB"), "stop": ["A"]},
     [A, END], 2, "", "stop-string"),
])
def test_preview(kit, options, candidates, kept, text, reason):
    found = commit.preview(make(kit, **options), candidates)
    assert found.token_ids == candidates[:kept]
    assert "".join(part.text for part in found.parts) == text
    assert found.reason == reason


def test_an_output_ended_from_outside_gives_its_withheld_text(kit):
    sequence = make(kit, stop=["BC"])
    assert commit.preview(sequence, [B]).parts == []
    last = commit.preview(sequence, [], "deadline")
    assert (last.token_ids, last.reason) == ([], "deadline")
    assert last.parts == [OutputPart("content", "B")]


@pytest.mark.parametrize(("certain", "replay"), [(True, 0), (False, 2)])
def test_accept_moves_the_frontier_to_the_last_token(kit, certain, replay):
    sequence = make(kit)
    commit.accept(sequence, [A, B], certain=certain)
    assert (sequence.num_output, sequence.frontier) == (2, 4)
    assert sequence.state.replay == replay


def test_publish_sends_one_delta_for_each_run_of_a_channel(kit):
    sent = []
    parts = [OutputPart("reasoning", "a"), OutputPart("reasoning", "b"), OutputPart("content", "c")]
    commit.publish(make(kit, sink=sent.append), parts)
    assert sent == [TextDelta("reasoning", "ab"), TextDelta("content", "c")]


CALLS = [ToolCall(0, "ping", "{}"), ToolCall(1, "ping", '{"a": 1}')]


def test_publish_sends_each_tool_call_in_its_place(kit):
    sent = []
    a, b, c = (OutputPart("content", text) for text in "abc")
    parts = [a, b, *CALLS, c]
    commit.publish(make(kit, sink=sent.append), parts)
    assert sent == [TextDelta("content", "ab"), *CALLS, TextDelta("content", "c")]


class Calling(PlainParser):
    """Takes the letter C for a call."""

    def feed(self, text):
        return [CALLS[0]] if text == "C" else super().feed(text)


@pytest.mark.parametrize(("stop", "candidates", "expected"), [
    ((), [A, C, B], ["A", CALLS[0], "B"]),
    (("AB",), [A, C, B], ["A", CALLS[0], "B"]),  # a call comes between, and what was held before it
    (("AB",), [A, B, C], []),  # nothing follows a stop string
    (("BD",), [C, B], [CALLS[0], "B"]),
])
def test_calls_pass_the_search_for_stop_strings(kit, stop, candidates, expected):
    sequence = make(kit, stop=stop, parser=Calling(), max_tokens=len(candidates))
    found = commit.preview(sequence, candidates).parts
    assert [part if isinstance(part, ToolCall) else part.text for part in found] == expected


def test_accept_tells_history_and_constraint(kit):
    class Heard(list):
        def append(self, token):
            super().append(("history", token))

        def commit(self, token_ids):
            super().append(("constraint", token_ids))

    sequence, heard = make(kit), Heard()
    sequence.history = sequence.constraint = heard
    commit.accept(sequence, [A, B], certain=True)
    assert heard == [("history", A), ("history", B), ("constraint", [A, B])]


@pytest.mark.parametrize(("early", "tokens", "text", "matched"), [
    (0, [A, B], "", "AB"), (2, [A, B], "AB", None), (1, [A, B], "AB", None),
    (2, [A, B, A, B], "AB", "AB"), (3, [A, B, A, B], "ABAB", None),
    (2, [A, B, B, A], "ABBA", None), (0, [B, B, A], "BBA", None),
])
def test_text_of_early_tokens_is_part_of_no_stop_string(kit, early, tokens, text, matched):
    output = TextOutput(kit.LetterFrontend.tokenizer.token_bytes, PlainParser(), ("AB",), early)
    parts = [part for token in tokens for part in output.feed(token)]
    parts += [] if output.matched else output.finish()
    assert ("".join(part.text for part in parts), output.matched) == (text, matched)
