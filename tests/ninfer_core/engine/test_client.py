"""The engine on its own thread: events in order, cancelling, closing, faults."""

import threading

import pytest

from ninfer_core.api import NInferError, RequestError
from ninfer_core.engine.client import EngineClient
from ninfer_core.engine.request import Finished, TextDelta


def test_generations_run_together_and_end(kit):
    parts = kit.build()
    with EngineClient(parts.engine) as client:
        requests = [kit.ask(first=i, ignore_eos=True) for i in range(6)]
        generations = [client.submit(request) for request in requests]
        for request, generation in zip(requests, generations, strict=True):
            *before, last = generation
            assert list(last.token_ids) == kit.expected(request, 8)
            texts = [event.text for event in before if isinstance(event, TextDelta)]
            assert "".join(texts) == kit.text(last.token_ids)
    parts.engine.audit()


def test_an_idle_client_wakes_up_for_a_request(kit):
    with EngineClient(kit.build().engine) as client:
        for _ in range(3):
            assert [*client.submit(kit.ask())][-1].reason in ("output-limit", "stop-token")


def test_cancelling_from_another_thread(kit):
    parts, started = kit.build(max_context=4096, num_pages=64), threading.Event()
    parts.model.before = lambda batch: started.set()
    with EngineClient(parts.engine) as client:
        generation = client.submit(kit.ask(max_tokens=3000, ignore_eos=True))
        assert started.wait(10)
        generation.cancel()
        assert [*generation][-1].reason == "cancelled"
    parts.engine.audit()


def test_closing_ends_what_runs_and_what_waits(kit):
    parts = kit.build(max_sequences=1, max_context=4096)
    client = EngineClient(parts.engine)
    generations = [client.submit(kit.ask(max_tokens=3000, ignore_eos=True)) for _ in range(3)]
    client.close()
    assert [[*generation][-1].reason for generation in generations] == ["cancelled"] * 3
    parts.engine.audit()
    with pytest.raises(NInferError, match="closed"):
        client.submit(kit.ask())


def test_a_refusal_is_raised_where_the_request_is_made(kit):
    with EngineClient(kit.build(max_context=64).engine) as client, pytest.raises(RequestError):
        client.submit(kit.ask(100))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dead_engine_leaves_nobody_waiting(kit, monkeypatch):
    def broken_step(self):
        return bool(self._sequences and 1 / 0)

    monkeypatch.setattr("ninfer_core.engine.engine.Engine.step", broken_step)
    client = EngineClient(kit.build().engine)
    last = [*client.submit(kit.ask())][-1]
    assert isinstance(last, Finished)
    assert isinstance(last.cause, ZeroDivisionError)
    client.close()
    with pytest.raises(NInferError, match="closed"):
        client.submit(kit.ask())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_panic_leaves_nobody_waiting_either(kit):
    """What a panic of an extension raises is no `Exception`."""
    class Panic(BaseException):
        pass

    def panic(batch):
        raise Panic("of an extension")

    parts = kit.build()
    parts.model.before = panic
    client = EngineClient(parts.engine)
    last = [*client.submit(kit.ask())][-1]
    assert "Panic('of an extension')" in str(last.cause)
    client.close()
    with pytest.raises(NInferError, match="closed"):
        client.submit(kit.ask())
    parts.engine.audit()


def test_who_is_slow_to_be_taken_in_queues_behind_who_is_not(kit):
    """Each thread checks its own request; the order of ids, which says who gives way, is that of
    the queue. Two that do not go into the pool together."""
    inside, goes_on = threading.Event(), threading.Event()

    class Frontend(kit.LetterFrontend):
        def parser(self, prompt):
            if len(prompt.token_ids) == 60:
                inside.set()
                assert goes_on.wait(60)
            return super().parser(prompt)

    engine = kit.build(num_pages=4, frontend=Frontend()).engine
    slow, quick = (kit.ask(length, max_tokens=180, ignore_eos=True) for length in (60, 61))
    events: list[list[object]] = [[], []]
    thread = threading.Thread(target=engine.submit, args=(slow, events[0].append))
    thread.start()
    assert inside.wait(60)
    engine.submit(quick, events[1].append)
    goes_on.set()
    thread.join()
    engine.run_until_idle()
    assert [each[-1].cause for each in events] == [None, None]
    assert [list(each[-1].token_ids) for each in events] == [
        kit.expected(request, 180) for request in (slow, quick)]
    engine.audit()
