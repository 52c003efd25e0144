"""Constrained answers of a random model, with and without its predictor."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

import jsonschema_rs
import pytest
from attrs import evolve

from ninfer_core.api import (
    CallRules,
    Grammar,
    ModelDescription,
    PreparedPrompt,
    RequestError,
    SamplingParams,
    ToolCall,
)
from ninfer_core.config.launch import LaunchConfig
from ninfer_core.config.resolve import resolve
from ninfer_core.engine.load import load_engine
from ninfer_core.engine.request import Finished, GenerationRequest, TextDelta
from ninfer_core.plugin_host import PluginSelection, load_plugins
from ninfer_fixtures.tiny import TinyModel

MODULES = ("ninfer_pack_qwen_dense", "ninfer_profile_cpu", "ninfer_drafting")
WHOLE = os.environ.get("HYPOTHESIS_PROFILE") == "soak"
"""Whether all schemas are tried, and not some of each kind."""
SPECS = {"plain": {}, "mtp": {"spec": "mtp", "draft_tokens": 3}, "ngram": {"spec": "ngram"}}
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}{{ tools }}"
GREEDY, DRAWN = SamplingParams(), SamplingParams(temperature=1.5, seed=3)


@pytest.fixture(scope="module")
def plugins(lab):
    modules = (*(f"{name}.plugin" for name in MODULES), lab.module)
    return load_plugins(PluginSelection(modules=modules, names=()))


@pytest.fixture(scope="module")
def path(plugins, lab, tokenizer_json, tmp_path_factory):
    """A tiny Qwen with random weights and the lab's vocabulary."""
    pack = plugins.registry.packs["qwen_dense"].spec.pack.load()()
    tiny = pack.tiny()

    def wider(config):
        return {**config, "vocab_size": lab.vocab_size} if "vocab_size" in config else config

    model = ModelDescription(
        tiny.origin, tiny.architectures, wider(tiny.config),
        {name: wider(config) for name, config in tiny.components.items()},
    )
    parameters = pack.parameters(pack.configure(model))
    made = TinyModel(model, parameters, plugins.registry)
    path = tmp_path_factory.mktemp("tiny") / "model.ninfer"
    made.write(path, made.random_values(), texts={
        "tokenizer.json": tokenizer_json(), "chat_template.jinja": TEMPLATE.encode(),
        "generation_config.json": json.dumps({"eos_token_id": [*lab.end_ids]}).encode(),
    })
    return path


@pytest.fixture(scope="module", params=SPECS)
def engine(request, path, plugins, lab):
    """An engine whose model likes to close what it has opened, so that answers end."""
    config = LaunchConfig(model=str(path), profile="cpu", kv_dtype="fp32", max_context=1024,
                          max_concurrency=8, **SPECS[request.param])
    loaded = load_engine(resolve(config, plugins))
    forward = loaded.model.forward
    likes = [lab.ids(text)[-1] for text in ('"', "}", "]", "\n</parameter>\n")] + [*lab.end_ids]

    def biased(batch):
        logits = forward(batch)
        logits[:, likes] += 2.0
        return logits

    loaded.model.forward = biased
    return SimpleNamespace(spec=request.param, engine=loaded.engine)


@pytest.fixture(scope="module")
def greedy_answers(lab):
    """Token ids by test, so that speculators can be compared."""
    return {}


def request_of(lab, number=0, *, text="a prompt", is_open=False, tools=(), **fields):
    ids = tuple(lab.ids(f"{number} {text}"))
    prompt = PreparedPrompt(ids, text, reasoning_open=is_open, tools=tuple(tools))
    return evolve(GenerationRequest(prompt, GREEDY, 700), **fields)


def serve(engine, *requests):
    """Events of each, all served at once."""
    events = [[] for _ in requests]
    for request, sink in zip(requests, events, strict=True):
        engine.engine.submit(request, sink.append)
    engine.engine.run_until_idle()
    engine.engine.audit()
    assert engine.engine._speculation.is_on == (engine.spec != "plain")
    return events


def said(events, channel="content"):
    return "".join(e.text for e in events if isinstance(e, TextDelta) and e.channel == channel)


def finished(events) -> Finished:
    assert isinstance(events[-1], Finished)
    return events[-1]


def same_as_others(known, name, tokens):
    assert known.setdefault(name, tokens) == tokens


def accepted(lab, schema):
    try:
        lab.constraint("json_schema", schema)
    except RequestError:
        return False
    return True


def test_schemas(lab, engine, schemas, greedy_answers):
    """What ends is valid, and only a limit cuts an answer short; drafts change no greedy one."""
    wanted = [each for each in schemas if accepted(lab, each)]
    assert len(wanted) >= (200 if lab.engine == "llguidance" else 175)
    wanted = wanted if WHOLE else wanted[::7]
    ended = 0
    for number, schema in enumerate(wanted):
        request = request_of(lab, number, grammar=Grammar("json_schema", json.dumps(schema)),
                             max_tokens=150)
        drawn = (evolve(request, sampling=evolve(DRAWN, seed=seed)) for seed in range(3))
        greedy, *others = serve(engine, request, *drawn)
        same_as_others(greedy_answers, number, finished(greedy).token_ids)
        for events in (greedy, *others):
            end = finished(events)
            assert end.reason in ("stop-token", "output-limit"), end.cause
            if end.reason == "stop-token":
                jsonschema_rs.validate(schema, lab.parsed(said(events)))
                ended += 1
    assert ended > 2 * len(wanted)


TOOLS = [{"type": "function", "function": {"name": name, "parameters": {
    "type": "object", "required": ["n"], "additionalProperties": False,
    "properties": {"n": {"type": "integer", "minimum": 3, "maximum": 99},
                   "s": {"enum": ["a", "more"]}}}}} for name in ("get", "put")]


@pytest.mark.parametrize("rules", [
    CallRules(required=True, strict=frozenset({"get", "put"})),
    CallRules(required=True, names=("put",), parallel=False, strict=frozenset({"put"})),
])
def test_calls(lab, engine, greedy_answers, rules):
    requests = [request_of(lab, i, tools=TOOLS, calls=rules, sampling=sampling, max_tokens=300)
                for i, sampling in enumerate([GREEDY, DRAWN, evolve(DRAWN, seed=8)])]
    every = serve(engine, *requests)
    for events in every:
        if finished(events).reason == "output-limit" and rules.parallel:
            continue  # one call after the other
        assert finished(events).reason == "stop-token", finished(events).cause
        calls = [event for event in events if isinstance(event, ToolCall)]
        assert calls and said(events) == ""
        for call in calls:
            assert rules.names is None or call.name in rules.names
            schema = TOOLS[0]["function"]["parameters"]
            jsonschema_rs.validate(schema, json.loads(call.arguments))
    same_as_others(greedy_answers, str(rules), finished(every[0]).token_ids)


SCHEMA = {"type": "object", "required": ["ok"], "additionalProperties": False,
          "properties": {"ok": {"type": "boolean"}}}
OBJECT = Grammar("json_schema", json.dumps(SCHEMA))


def test_without_thinking_the_first_token_is_held_to_it(lab, engine):
    [events] = serve(engine, request_of(lab, grammar=OBJECT, is_open=False))
    assert json.loads(said(events)).keys() == {"ok"}
    assert said(events, "reasoning") == ""


@pytest.mark.parametrize("budget", [1, 2, 3, 4, 5, 9])
@pytest.mark.parametrize("sampling", [GREEDY, DRAWN])
def test_thinking_is_free_and_what_follows_is_held_to_it(
    lab, engine, greedy_answers, budget, sampling
):
    """The block is closed by force, so that rounds of drafts cross its end at every place."""
    request = request_of(
        lab, is_open=True, grammar=OBJECT, thinking_budget=budget, sampling=sampling)
    [events] = serve(engine, request)
    assert finished(events).reason == "stop-token", finished(events).cause
    jsonschema_rs.validate(SCHEMA, json.loads(said(events)))
    tokens = finished(events).token_ids
    assert lab.ids("</think>")[0] in tokens[: budget + 3]
    if sampling is GREEDY:
        same_as_others(greedy_answers, f"budget {budget}", tokens)


def test_an_answer_cannot_end_within_its_thinking(lab, engine):
    """Nor is one cut off there an answer."""
    [events] = serve(engine, request_of(lab, is_open=True, grammar=OBJECT, max_tokens=40))
    tokens = finished(events).token_ids
    closing = lab.ids("</think>")[0]
    if closing in tokens:
        assert not lab.end_ids & {*tokens[: tokens.index(closing)]}
    else:
        assert (finished(events).reason, said(events)) == ("output-limit", "")


def test_paused_in_mid_answer_it_goes_on_as_if_it_had_not_been(lab, engine):
    """Every few cycles one gives way, with what it had drafted."""
    line = json.dumps({"type": "array", "items": SCHEMA, "minItems": 8, "maxItems": 8})
    requests = [request_of(lab, i, grammar=Grammar("json_schema", line)) for i in range(2)]
    expected = [finished(events).token_ids for events in serve(engine, *requests)]
    events = [[], []]
    ids = [engine.engine.submit(*pair)
           for pair in zip(requests, [each.append for each in events], strict=True)]
    cycle = 0
    while engine.engine.step():
        cycle += 1
        if cycle % 5 == 0:
            engine.engine.pause(ids[cycle // 5 % 2])
    assert [finished(each).token_ids for each in events] == expected
    for each in events:
        assert len(json.loads(said(each))) == 8


def test_a_dead_end_fails_its_own_request(lab, engine):
    """It must not end before forty tokens, and may not go on after four."""
    requests = [
        request_of(lab, 0, grammar=Grammar("choice", '["yes"]'), min_tokens=40),
        request_of(lab, 1, grammar=Grammar("choice", '["yes"]')),
    ]
    first, second = serve(engine, *requests)
    assert finished(first).reason == "error"
    assert isinstance(finished(first).cause, RequestError)
    assert (finished(second).reason, said(second)) == ("stop-token", "yes")


@pytest.mark.parametrize(("fields", "why"), [
    ({"grammar": OBJECT, "ignore_eos": True}, "no token may end it"),
    ({"grammar": Grammar("json_schema", '{"not": {}}')}, "not"),
    ({"calls": CallRules(required=True)}, "nothing to call"),
    ({"calls": CallRules(names=("other",))}, "no such tool"),
])
def test_what_cannot_be_is_refused(lab, engine, fields, why):
    with pytest.raises(RequestError, match=why):
        engine.engine.submit(request_of(lab, **fields), print)


def test_rules_without_tools_hold_nothing(lab, engine):
    free = request_of(lab, max_tokens=20)
    ruled = evolve(free, calls=CallRules(names=(), parallel=False))
    first, second = serve(engine, free, ruled)
    assert finished(first).token_ids == finished(second).token_ids
