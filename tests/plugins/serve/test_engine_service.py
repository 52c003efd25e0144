"""Between dialects and engine: defaults, limits, choices, readers that are slow or gone."""

from __future__ import annotations

import asyncio
import gc
import threading
from contextlib import asynccontextmanager

import pytest

from ninfer_core.api import (
    CapacityError,
    ContextLengthError,
    PreparedPrompt,
    PromptOptions,
    QueueTimeoutError,
    RequestError,
)
from ninfer_core.engine.request import Finished, Reading, TextDelta
from ninfer_serve.answer import BACKLOG, joined
from ninfer_serve.serve_request import ServeRequest
from ninfer_serve.service import ChoiceEvent, EngineGone

HELLO = ({"role": "user", "content": "hello"},)


class Told:
    """An observer that remembers."""

    def __init__(self):
        self.outcomes, self.refusals = [], []

    def done(self, outcome):
        self.outcomes.append(outcome)

    def refused(self, request_id, error):
        self.refusals.append(error)


@pytest.fixture
def run(kit, frontend):
    """``(test(service, engine), **options)``: run a coroutine function with a fresh service."""

    def run(test, **options):
        async def inside():
            engine = kit.ScriptedEngine()
            service = kit.scripted_service(engine, frontend, **options)
            try:
                await test(service, engine)
                await settled(lambda: service.pending == engine.running == 0)
            finally:
                service.close()

        async def limited():
            async with asyncio.timeout(20):
                await inside()

        asyncio.run(limited())

    return run


async def settled(condition):
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it never settles")


async def all_of(service, **fields):
    request = ServeRequest(**{"messages": HELLO, **fields})
    async with await service.start(request) as answer:
        return [each async for batch in answer for each in batch]


def text_of(events, choice=0):
    return "".join(
        each.event.text for each in events
        if each.choice == choice and isinstance(each.event, TextDelta)
    )


def test_an_answer_from_prompt_to_end(run, kit):
    told = Told()

    async def test(service, engine):
        engine.script = kit.reply("Hel", "lo", cached=3)
        events = await all_of(service, record={"effort": "low"})
        assert text_of(events) == "Hello"
        assert isinstance(events[-1].event, Finished)
        [request] = engine.requests
        assert request.prompt.text.endswith("hello<|im_end|>\n<|im_start|>assistant\n<think>\n")
        await settled(lambda: told.outcomes)
        [outcome] = told.outcomes
        assert (outcome.num_choices, outcome.record) == (1, {"effort": "low"})
        assert [end.reason for end in outcome.ends] == ["stop-token"]
        assert 0 < outcome.prepare_s <= outcome.first_s <= outcome.total_s

    run(test, observers=[told])


def test_the_client_wins_over_the_server_and_that_over_the_model(run):
    async def test(service, engine):
        await all_of(service, sampling={"top_p": 0.5, "seed": 7})
        sampling = engine.requests[0].sampling
        assert (sampling.temperature, sampling.top_k, sampling.top_p) == (1.0, 9, 0.5)
        assert sampling.seed == 7
        await all_of(service)
        await all_of(service)
        assert engine.requests[1].sampling.seed != engine.requests[2].sampling.seed
        assert engine.requests[1].sampling.top_p == 0.25
        assert [each.max_tokens for each in engine.requests] == [33] * 3
        assert engine.requests[0].deadline_s == 60
        await all_of(service, deadline_s=5, thinking_budget=8, max_tokens=4)
        last = engine.requests[-1]
        assert (last.deadline_s, last.thinking_budget, last.max_tokens) == (5, 8, 4)
        await all_of(service, deadline_s=500)
        assert engine.requests[-1].deadline_s == 60

    run(test, sampling={"top_k": 9, "top_p": 0.25}, max_tokens=33, deadline_s=60,
        thinking_budget=12)


@pytest.mark.parametrize(("given", "is_open"), [
    (PromptOptions(), False), (PromptOptions(thinking=True), True),
])
def test_thinking_of_the_server_and_of_the_client(run, given, is_open):
    async def test(service, engine):
        prompt = await service.prepare(ServeRequest(messages=HELLO, options=given))
        assert prompt.reasoning_open == is_open

    run(test, options=PromptOptions(thinking=False))


def test_outputs_are_as_long_as_there_is_room(run, kit):
    async def test(service, engine):
        for wanted, expected in ((None, 30), (10**9, 30), (5, 5), (0, 0)):
            await all_of(service, prompt=[1] * 34, max_tokens=wanted)
            assert engine.requests[-1].max_tokens == expected
        await all_of(service, prompt=[1] * 64, max_tokens=0)
        for wanted in (1, None):
            with pytest.raises(ContextLengthError, match="prompt is too long: 64 tokens > 63 max"):
                await all_of(service, prompt=[1] * 64, max_tokens=wanted)

    run(test, facts=kit.FACTS.__class__("m", 0, 64, 2, 400))


def test_texts_and_ids_are_read_as_they_are(run, frontend):
    async def test(service, engine):
        await all_of(service, prompt="a<|im_end|>")
        await all_of(service, prompt=[5, 6])
        first, second = (each.prompt for each in engine.requests)
        assert first.token_ids == tuple(frontend.tokenizer.encode("a<|im_end|>", special=True))
        assert len(first.token_ids) == 2
        assert second.token_ids == (5, 6)
        with pytest.raises(RequestError):
            await all_of(service, prompt=[])

    run(test)


def test_choices_have_seeds_of_their_own_and_wait_for_the_first_to_read(run, kit):
    async def test(service, engine):
        order = []

        def script(request):
            order.append(("begins", request.sampling.seed))
            yield Reading(1)
            yield 0.02
            if request.sampling.seed == 7:
                order.append(("has read", 7))
            yield Reading(len(request.prompt.token_ids))
            yield from list(kit.reply(f"seed {request.sampling.seed}")(request))[2:]

        engine.script = script
        events = await all_of(service, num_choices=3, sampling={"seed": 7})
        assert [text_of(events, choice) for choice in range(3)] == ["seed 7", "seed 8", "seed 9"]
        assert order == [("begins", 7), ("has read", 7), ("begins", 8), ("begins", 9)]
        order.clear()
        await all_of(service, num_choices=2, sampling={"seed": 7}, use_cache=False)
        assert order == [("begins", 7), ("begins", 8), ("has read", 7)]

    run(test)


def test_a_choice_that_is_refused_fails_alone(run, kit):
    async def test(service, engine):
        def script(request):
            engine.refusal = CapacityError("too many requests")
            return kit.reply("one")(request)

        engine.script = script
        events = await all_of(service, num_choices=2)
        ends = {each.choice: each.event for each in events if isinstance(each.event, Finished)}
        assert (ends[0].reason, ends[1].reason) == ("stop-token", "error")
        assert isinstance(ends[1].cause, CapacityError)

    run(test)


def test_more_choices_than_run_at_once_are_refused(run):
    async def test(service, engine):
        with pytest.raises(RequestError, match="5 are asked for, and 4 run at once"):
            await all_of(service, num_choices=5)

    run(test)


@asynccontextmanager
async def silent(service, **fields):
    async with await service.start(ServeRequest(messages=HELLO, **fields)) as answer:
        yield answer


def test_what_waits_is_counted_until_it_is_read(run, kit):
    told = Told()

    async def test(service, engine):
        engine.script = kit.reply("a", 60)
        async with silent(service), silent(service):
            with pytest.raises(CapacityError, match="2 of 2"):
                await all_of(service)
            engine.script = kit.reply("b")
        await settled(lambda: service.pending == 0)
        assert len(engine.cancelled) == 2
        assert text_of(await all_of(service)) == "b"
        assert [type(each) for each in told.refusals] == [CapacityError]
        left = [outcome.ends for outcome in told.outcomes[:2]]
        assert left == [(), ()]

    run(test, max_pending=2, observers=[told])


def test_a_failure_to_start_leaves_nothing_behind(run, kit):
    async def test(service, engine):
        with pytest.raises(RequestError):
            await all_of(service, messages=())
        engine.refusal = EngineGone("no engine")
        with pytest.raises(EngineGone):
            await all_of(service)
        assert service.pending == 0

    run(test)


def test_an_answer_that_nobody_enters_is_cancelled(run, kit):
    async def test(service, engine):
        engine.script = kit.reply("a", 60)
        answer = await service.start(ServeRequest(messages=HELLO))
        assert engine.running == 1
        del answer
        gc.collect()
        await settled(lambda: service.pending == 0 and len(engine.cancelled) == 1)

    run(test)


def test_a_client_that_leaves_while_its_request_is_submitted(run, kit):
    async def test(service, engine):
        engine.script = kit.reply("a", 60)
        for delay in (0, 0.001, 0.003, 0.01):
            task = asyncio.ensure_future(all_of(service))
            await asyncio.sleep(delay)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await settled(lambda: service.pending == engine.running == 0)

    run(test)


def test_preparing_has_a_limit(run, monkeypatch):
    async def test(service, engine):
        may_end, ended = threading.Event(), []

        def prepare(self, *args, **kwargs):
            may_end.wait(60)
            ended.append(self)

        monkeypatch.setattr(service.frontend.__class__, "prepare", prepare)
        with pytest.raises(QueueTimeoutError, match=r"0\.05 s"):
            await all_of(service)
        assert not ended
        may_end.set()

    run(test, prepare_timeout_s=0.05)


def test_a_server_that_stops_takes_nothing_new(run, kit):
    async def test(service, engine):
        engine.script = kit.reply(0.05, "a")
        running = asyncio.ensure_future(all_of(service))
        await settled(lambda: engine.running == 1)
        service.draining = True
        with pytest.raises(EngineGone, match="stopping"):
            await all_of(service)
        assert text_of(await running) == "a"

    run(test)


def test_a_slow_reader_takes_no_more_memory_than_its_text(run, kit):
    async def test(service, engine):
        engine.script = kit.reply(*["ab"] * 5000, ("reasoning", "r"), *["c"] * 5000)
        async with silent(service) as answer:
            await settled(lambda: engine.running == 0)
            batches = [batch async for batch in answer]
        assert sum(map(len, batches)) < 4 * BACKLOG
        events = [each for batch in batches for each in batch]
        said = [(e.event.channel, e.event.text) for e in events if isinstance(e.event, TextDelta)]
        content = "".join(text for channel, text in said if channel == "content")
        assert content == "ab" * 5000 + "c" * 5000
        assert ("reasoning", "r") in said

    run(test)


def test_joining_changes_no_order():
    a, b, end = TextDelta("content", "a"), TextDelta("reasoning", "b"), Reading(3)
    events = [(0, a), (0, a), (1, a), (0, a), (0, b), (0, b), (0, end), (0, end), (0, a)]
    found = joined([ChoiceEvent(*each) for each in events])
    aa, bb = TextDelta("content", "aa"), TextDelta("reasoning", "bb")
    assert found == [ChoiceEvent(*each) for each in (
        (0, aa), (1, a), (0, a), (0, bb), (0, end), (0, end), (0, a))]


def test_the_answer_knows_its_prompt(run):
    async def test(service, engine):
        async with silent(service, sampling={"seed": 3}) as answer:
            assert isinstance(answer.prompt, PreparedPrompt)
            assert answer.sampling.seed == 3
            assert answer.id.isalnum()
            assert answer.id != (await service.start(ServeRequest(messages=HELLO))).id

    run(test)
