"""What a request hears of itself before its output, and what the engine says of all of them."""

import pytest

from ninfer_core.engine.request import Finished, Reading, Started
from ninfer_drafting.mtp import MtpSpeculator


def kinds(events):
    return [type(event) for event in events]


def test_a_request_hears_that_it_starts_and_how_far_it_has_read(kit):
    now = [0.0]
    parts, events = kit.build(chunk=64, max_sequences=1, clock=lambda: now[0]), ([], [])
    for sink in events:
        parts.engine.submit(kit.ask(150, max_tokens=2, ignore_eos=True), sink.append)
    for now[0] in range(1, 20):
        parts.engine.step()
    first, second = events
    assert [event for event in first if isinstance(event, Reading)] == [
        Reading(64), Reading(128), Reading(150)]
    assert kinds(first)[:4] == [Started, Reading, Reading, Reading]
    assert (first[0].queue_s, first[0].reuse.num_tokens) == (1.0, 0)
    assert second[0] == Started(second[-1].reuse, second[-1].timings.queue_s)
    assert second[0].queue_s > 3
    assert second[0].reuse.num_tokens == 128
    assert [event for event in second if isinstance(event, Reading)] == [Reading(150)]


@pytest.mark.parametrize("cycles", range(1, 8))
@pytest.mark.parametrize("cache", [True, False])
def test_nothing_is_read_twice_in_its_own_eyes(kit, cycles, cache):
    parts, events = kit.build(chunk=64, cache=cache), []
    number = parts.engine.submit(kit.ask(200, max_tokens=4, ignore_eos=True), events.append)
    for _ in range(cycles):
        parts.engine.step()
    parts.engine.pause(number)
    parts.engine.run_until_idle()
    parts.engine.audit()
    assert kinds(events).count(Started) == 1
    read = [event.num_tokens for event in events if isinstance(event, Reading)]
    assert read == sorted({*read}) and read[-1] == 200


@pytest.mark.parametrize("speculator", [None, MtpSpeculator])
@pytest.mark.parametrize("length", [1, 63, 64, 65, 200])
def test_a_prompt_alone_is_read_and_kept(kit, length, speculator):
    parts = kit.build(chunk=64, speculator=speculator)
    request = kit.ask(length, max_tokens=0)
    [events] = kit.serve(parts, request)
    assert kinds(events)[-1] == Finished and kinds(events)[-2] == Reading
    end = events[-1]
    assert (end.reason, end.token_ids, end.usage.output_tokens) == ("output-limit", (), 0)
    assert (end.timings.prefill_tokens, end.timings.decode_tokens) == (length, 0)
    follower = kit.ask(length, max_tokens=5, ignore_eos=True)
    [events] = kit.serve(parts, follower)
    assert list(events[-1].token_ids) == kit.expected(follower, 5)
    assert events[-1].reuse.num_tokens == (length - 1) // 64 * 64


@pytest.mark.parametrize("kind", [Started, Reading])
def test_a_sink_that_fails_early_fails_its_request_only(kit, kind):
    parts, ends = kit.build(chunk=64), []

    def sink(event):
        if isinstance(event, kind):
            raise ValueError("client gone")
        ends.append(event)

    parts.engine.submit(kit.ask(100, first=2), sink)
    [events] = kit.serve(parts, kit.ask(100, ignore_eos=True))
    assert events[-1].reason == "output-limit"
    assert [(end.reason, str(end.cause)) for end in ends if isinstance(end, Finished)] == [
        ("error", "client gone")]


def test_the_status_counts_requests_pages_and_cycles(kit):
    parts = kit.build(chunk=64, max_sequences=2, num_pages=16, host_pages=4)
    engine = parts.engine
    assert (engine.status().running, engine.status().waiting) == (0, 0)
    engine.submit(kit.ask(3, max_tokens=9, ignore_eos=True), lambda event: None)
    engine.submit(kit.ask(150, first=2, max_tokens=2, ignore_eos=True), lambda event: None)
    engine.submit(kit.ask(5, first=3, max_tokens=2, ignore_eos=True), lambda event: None)
    assert engine.status().waiting == 3
    engine.step()
    engine.step()
    found = engine.status()
    assert (found.cycle, found.running, found.reading, found.waiting) == (2, 2, 1, 1)
    assert (found.num_pages, found.host_pages, found.free_host_pages) == (16, 4, 4)
    assert found.sequence_pages == 16 - found.free_pages == 2
    engine.pause(2)
    assert (engine.status().running, engine.status().paused) == (1, 1)
    engine.run_until_idle()
    found = engine.status()
    assert (found.running, found.waiting, found.paused, found.pauses) == (0, 0, 0, 1)
    assert found.cache.captured > 0
    engine.audit()
