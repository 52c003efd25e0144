"""Messages come through as they are, however the stream is cut."""

from __future__ import annotations

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.api import (
    CallRules,
    CapacityError,
    ContextLengthError,
    Grammar,
    NInferError,
    PreparedPrompt,
    QueueTimeoutError,
    RequestError,
    SamplingParams,
    ToolCall,
)
from ninfer_core.config.launch import LaunchConfig
from ninfer_core.engine.faults import ModelError
from ninfer_core.engine.request import (
    Finished,
    GenerationRequest,
    Logprobs,
    Reading,
    Reuse,
    Started,
    TextDelta,
    Timings,
    TokenLogprob,
    Usage,
)
from ninfer_core.plugin_host import PluginSelection
from ninfer_serve import wire
from ninfer_serve.errors import HttpError
from ninfer_serve.service import EngineGone

END = Finished(
    "stop-string", Usage(3, 2, 4, 1, (1, 0), 2, 1), Timings(0.5, 1.5, 3, 0.25, 1, 2, 9),
    (7, 2**31), "END", None, Reuse(2, "prompt", "pool", 2, "a", "é", 1, 64),
)
EVENTS = [
    Started(Reuse(64, "turn", "host"), 0.25), Reading(7), TextDelta("reasoning", "🦊\n"),
    ToolCall(1, "f", '{"a": 1}'), END,
    Logprobs((TokenLogprob(3, -0.5, ((3, -0.5), (1, -2.0))), TokenLogprob(1, None)), True),
]


def sent(message, decoder):
    [body] = wire.Unpacker().feed(wire.pack(message))
    return decoder.decode(body)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_events_come_through(event):
    batch = wire.Events([wire.occurrence(5, event)])
    [came] = sent(batch, wire.to_server).occurrences
    assert came.number == 5
    assert wire.event_of(came) == event


@pytest.mark.parametrize("scope", [None, 3, "a", (1, ("b", 2.5), None), [1, [2]], {"a": (1,)}])
def test_requests_come_through_without_the_text(scope):
    tools = ({"type": "function", "function": {"name": "f", "parameters": {"x": [1.5, None]}}},)
    prompt = PreparedPrompt((1, 2**30), "secret", True, tools, 64, (64, 128), scope)
    request = GenerationRequest(
        prompt, SamplingParams(temperature=0.7, seed=2**64 - 1), 0, ["a", "é"], {3, 4}, True, 2.5,
        True, 0, 9, False, Grammar("regex", "[a-z]+"), CallRules(True, ("f",), False, {"f"}), 5, 0,
    )
    message = sent(wire.submission(9, request), wire.to_engine)
    came = wire.submitted(message)
    assert came.prompt.text == "" and "secret" not in repr(message)
    assert came == evolve(request, prompt=evolve(prompt, text="")) and message.number == 9
    assert repr(came.prompt.scope) == repr(scope)


@pytest.mark.parametrize("message", [
    wire.Launch(LaunchConfig(model="m", context_capacity="auto", kernels={"a": "b"}),
                PluginSelection(modules=("a",), names=("b",)), "info"),
    wire.Cancel(3), wire.Ask(), wire.Stop(),
])
def test_what_the_engine_hears(message):
    assert sent(message, wire.to_engine) == message


@pytest.mark.parametrize("message", [
    wire.Phase("reading", 3, 0), wire.Ready(64, 2, 300, ["a: b"]), wire.Accepted(2),
    wire.Refused(3, wire.Failure("RequestError", "x")), wire.Broken(wire.Failure("A", "b", "c")),
    wire.Held(["request 1: reading"]),
])
def test_what_the_server_hears(message):
    assert sent(message, wire.to_server) == message


@pytest.mark.parametrize(("error", "kind"), [
    (RequestError("what", where="w", why="y", fix="f"), RequestError),
    (ContextLengthError("x"), ContextLengthError), (QueueTimeoutError("x"), QueueTimeoutError),
    (CapacityError("x"), CapacityError), (ModelError("x", why="y"), NInferError),
    (EngineGone("x"), NInferError), (HttpError(404, "c", "x"), RequestError),
    (RuntimeError("boom"), NInferError), (ValueError(), NInferError),
])
def test_errors_come_through(error, kind):
    came = wire.error_of(sent(wire.Broken(wire.failure_of(error)), wire.to_server).failure)
    assert type(came) is kind
    if isinstance(error, NInferError):
        assert str(came) == str(error)
    else:
        assert f"{type(error).__name__}: {error}" in str(came)


def test_the_cause_of_an_end_comes_through():
    end = wire.occurrence(1, evolve(END, reason="error", cause=RequestError("x", why="y")))
    came = wire.event_of(sent(wire.Events([end]), wire.to_server).occurrences[0])
    assert (came.reason, str(came.cause)) == ("error", "x: y")


def test_lone_surrogates_stop_nothing():
    call = ToolCall(0, "f", '{"a": "\ud83d"}')
    batch = wire.Events([wire.Called(1, call), wire.Text(1, "c", "é")])
    called, text = sent(batch, wire.to_server).occurrences
    assert (called.call.arguments, text.text) == ('{"a": "\ufffd"}', "é")


@given(st.lists(st.integers(0, 300), max_size=8), st.lists(st.integers(1, 40), min_size=1))
def test_the_stream_may_be_cut_anywhere(lengths, cuts):
    messages = [wire.Events([wire.Text(n, "content", "x" * n)]) for n in lengths]
    stream = b"".join(map(wire.pack, messages))
    unpacker, came, begin = wire.Unpacker(), [], 0
    while begin < len(stream):
        width = cuts[begin % len(cuts)]
        came += map(wire.to_server.decode, unpacker.feed(stream[begin : begin + width]))
        begin += width
    assert came == messages
