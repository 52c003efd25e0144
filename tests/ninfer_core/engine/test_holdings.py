"""Who holds which memory, in numbers and in words."""

from ninfer_core.engine.holdings import RequestHolding


def test_requests_are_in_their_stages(kit):
    parts, ends = kit.build(num_pages=16, max_sequences=2), []
    ids = [parts.engine.submit(kit.ask(n, first=n, max_tokens=30, ignore_eos=True), ends.append)
           for n in (20, 200, 60)]
    parts.engine.step()
    parts.engine.step()
    found = parts.engine.holdings()
    assert found.requests == (
        RequestHolding(ids[0], "decoding", 21, 21, 1),
        RequestHolding(ids[1], "reading", 64, 200, 1), RequestHolding(ids[2], "waiting", 0, 60, 0),
    )
    parts.engine.pause(ids[1])
    paused = parts.engine.holdings()
    assert paused.requests[1] == RequestHolding(ids[1], "paused", 0, 200, 0)
    [kept] = paused.conversations
    assert (kept.kind, kept.num_tokens, kept.awaited) == ("prompt", 64, True)
    parts.engine.run_until_idle()
    assert parts.engine.holdings().requests == ()


def test_a_line_each(kit):
    parts = kit.build(num_pages=16, host_pages=4)
    kit.serve(parts, kit.ask(100, max_tokens=5, ignore_eos=True))
    events = []
    parts.engine.submit(kit.ask(30, first=2, max_tokens=9, ignore_eos=True), events.append)
    parts.engine.step()
    nbytes = parts.store.page_bytes
    assert [*parts.engine.holdings().lines()] == [
        f"request 2: decoding, 30 of 30 tokens, 1 pages ({nbytes:,} B)",
        "conversation: 104 tokens up to a turn point, 2 points, "
        f"device 4 pages ({4 * nbytes:,} B), 4 of them its own, "
        "last used 0 captures and restores ago",
    ]


def test_without_a_cache_there_are_no_conversations(kit):
    parts = kit.build(cache=False)
    kit.serve(parts, kit.ask(100))
    assert parts.engine.holdings().conversations == ()
