"""What the engine promises for a request, one at a time and together."""

import math

import pytest

from ninfer_core.api import CapacityError, PreparedPrompt, RequestError, SamplingParams
from ninfer_core.engine.request import Finished, TextDelta


def content(events):
    texts = [event.text for event in deltas(events)]
    assert all(texts), "an empty delta"
    assert isinstance(events[-1], Finished)
    return "".join(texts)


def deltas(events):
    return [event for event in events if isinstance(event, TextDelta)]


@pytest.mark.parametrize("length", [1, 5, 63, 64, 65, 200])
@pytest.mark.parametrize("chunk", [64, 128, 256])
def test_tokens_are_the_models_for_any_prompt_and_chunk(kit, length, chunk):
    request = kit.ask(length, max_tokens=12, ignore_eos=True)
    [events] = kit.serve(kit.build(chunk=chunk), request)
    assert list(events[-1].token_ids) == kit.expected(request, 12)
    assert content(events) == kit.text(events[-1].token_ids)
    assert events[-1].reason == "output-limit"


def test_requests_together_are_served_as_alone(kit):
    requests = [kit.ask(20 * i + 1, first=i, max_tokens=4 + i, ignore_eos=True) for i in range(8)]
    parts = kit.build()
    for request, events in zip(requests, kit.serve(parts, *requests), strict=True):
        assert list(events[-1].token_ids) == kit.expected(request, request.max_tokens)
    assert max(rows for rows, _ in parts.model.steps) > 1
    assert parts.engine._peak_sequences == 8


def test_sampling_does_not_depend_on_company(kit):
    sampling = SamplingParams(temperature=1.0, top_p=0.9, frequency_penalty=0.5, seed=7)
    request = kit.ask(9, sampling=sampling, ignore_eos=True)
    others = [kit.ask(30, first=i, sampling=SamplingParams(temperature=1.0)) for i in range(3)]
    [alone] = kit.serve(kit.build(), request)
    together = kit.serve(kit.build(), others[0], request, *others[1:])[1]
    assert alone[-1].token_ids == together[-1].token_ids == tuple(kit.expected(request, 8))


def test_a_prefill_does_not_hold_up_decoding(kit):
    """While a long prompt is read, the other request gets a token in every cycle."""
    parts = kit.build(chunk=64)
    fast, slow = [], []
    parts.engine.submit(kit.ask(3, max_tokens=8, ignore_eos=True), fast.append)
    parts.engine.submit(kit.ask(400, first=2, max_tokens=2, ignore_eos=True), slow.append)
    for cycle in range(1, 8):
        parts.engine.step()
        assert len(deltas(fast)) == cycle
    assert deltas(slow) == []


def test_two_prompts_are_read_in_turns(kit):
    """A short prompt behind a long one does not wait for all of it."""
    parts, first, second = kit.build(chunk=64), [], []
    parts.engine.submit(kit.ask(500, max_tokens=1), first.append)
    parts.engine.submit(kit.ask(3, first=2, max_tokens=1), second.append)
    for _ in range(3):
        parts.engine.step()
    assert deltas(second) and not deltas(first)


class TestEnd:
    def test_the_limit_counts_every_token(self, kit):
        [events] = kit.serve(kit.build(), kit.ask(max_tokens=3, ignore_eos=True))
        assert (events[-1].reason, len(events[-1].token_ids)) == ("output-limit", 3)

    @pytest.mark.parametrize("own", [True, False])
    def test_an_end_token_counts_but_is_no_text(self, kit, own):
        tokens = kit.expected(kit.ask(), 8)
        ends = tokens.index(tokens[4])
        frontend = kit.LetterFrontend()
        frontend.eos_token_ids = frozenset({tokens[4]} if own else ())
        request = kit.ask(stop_token_ids=() if own else [tokens[4]])
        [events] = kit.serve(kit.build(frontend=frontend), request)
        assert events[-1].reason == "stop-token"
        assert list(events[-1].token_ids) == tokens[: ends + 1]
        assert content(events) == kit.text(tokens[:ends])

    def test_the_models_own_end_can_be_ignored(self, kit):
        frontend = kit.LetterFrontend()
        frontend.eos_token_ids = frozenset(kit.expected(kit.ask(), 8))
        [events] = kit.serve(kit.build(frontend=frontend), kit.ask(ignore_eos=True))
        assert (events[-1].reason, len(events[-1].token_ids)) == ("output-limit", 8)

    def test_a_stop_string_is_cut_from_the_text(self, kit):
        tokens = kit.expected(kit.ask(ignore_eos=True), 8)
        text = kit.text(tokens)
        [events] = kit.serve(kit.build(), kit.ask(stop=[text[3:6]], ignore_eos=True))
        at = text.index(text[3:6])
        assert (events[-1].reason, events[-1].stop) == ("stop-string", text[3:6])
        assert content(events) == text[:at]
        assert list(events[-1].token_ids) == tokens[: at + 3]

    def test_withheld_text_is_released_at_the_limit(self, kit):
        text = kit.text(kit.expected(kit.ask(), 8))
        [events] = kit.serve(kit.build(), kit.ask(stop=[text[-1] + "never"], ignore_eos=True))
        assert (content(events), events[-1].stop) == (text, None)

    def test_the_context_ends_the_output(self, kit):
        request = kit.ask(58, max_tokens=100, ignore_eos=True)
        [events] = kit.serve(kit.build(max_context=64), request)
        assert events[-1].reason == "context-capacity"
        assert list(events[-1].token_ids) == kit.expected(request, 6)

    def test_a_deadline_ends_a_running_and_a_waiting_request(self, kit):
        now = [0.0]
        parts, events = kit.build(max_sequences=1, clock=lambda: now[0]), ([], [])
        for sink in events:
            parts.engine.submit(kit.ask(max_tokens=99, deadline_s=5, ignore_eos=True), sink.append)
        for now[0] in (1.0, 2.0, 5.0):
            parts.engine.step()
        parts.engine.audit()
        running, waiting = events[0][-1], events[1][-1]
        assert (running.reason, waiting.reason) == ("deadline", "deadline")
        assert (running.usage.output_tokens, waiting.usage.output_tokens) == (2, 0)
        assert (running.timings.queue_s, running.timings.decode_s) == (1.0, 4.0)
        assert (waiting.timings.queue_s, waiting.timings.prefill_s) == (5.0, 0.0)

    @pytest.mark.parametrize("cycles", [0, 1, 3, 6])
    def test_cancelling_frees_all_within_a_step(self, kit, cycles):
        parts, events = kit.build(), []
        request = kit.ask(130, max_tokens=99, ignore_eos=True)
        request_id = parts.engine.submit(request, events.append)
        for _ in range(cycles):
            parts.engine.step()
        parts.engine.cancel(request_id)
        assert parts.engine.step() is False
        parts.engine.audit()
        assert events[-1].reason == "cancelled"
        assert list(events[-1].token_ids) == kit.expected(request, max(cycles - 2, 0))

    def test_cancelling_what_is_gone_does_nothing(self, kit):
        parts = kit.build()
        kit.serve(parts, kit.ask())
        parts.engine.cancel(1)
        parts.engine.cancel(99)
        assert parts.engine.step() is False


class TestAdmission:
    def test_a_prompt_that_cannot_fit_is_refused_with_both_numbers(self, kit):
        with pytest.raises(RequestError, match=r"64 tokens.*sequence of 64"):
            kit.build(max_context=64).engine.submit(kit.ask(64), print)

    def test_a_prompt_may_fill_the_context_if_nothing_follows(self, kit):
        parts = kit.build(max_context=64)
        [events] = kit.serve(parts, kit.ask(64, max_tokens=0))
        assert (events[-1].reason, events[-1].usage.output_tokens) == ("output-limit", 0)
        with pytest.raises(RequestError, match=r"65 tokens.*sequence of 64"):
            parts.engine.submit(kit.ask(65, max_tokens=0), print)

    def test_a_request_larger_than_the_pool_is_refused_with_both_numbers(self, kit):
        engine = kit.build(max_context=4096, num_pages=16).engine
        with pytest.raises(RequestError, match=r"1100 tokens may take 18 pages .* 16"):
            engine.submit(kit.ask(1000, max_tokens=100), print)
        for length, output in ((1025, 1), (1025, 0), (1000, 26)):
            with pytest.raises(RequestError, match=r"tokens may take 17 pages .* 16"):
                engine.submit(kit.ask(length, max_tokens=output), print)
        for length, output in ((1000, 25), (1024, 1), (1024, 0)):  # the last token has no state
            events = []
            request = kit.ask(length, max_tokens=output, ignore_eos=True)
            engine.submit(request, events.append)
            engine.run_until_idle()
            assert events[-1].usage.output_tokens == output
        engine.audit()

    @pytest.mark.parametrize("ids", [(-1,), (48,)])
    def test_tokens_that_do_not_exist_are_refused(self, kit, ids):
        with pytest.raises(RequestError, match="do not exist"):
            kit.build().engine.submit(kit.ask(prompt=PreparedPrompt(ids, "")), print)

    def test_the_queue_is_bounded(self, kit):
        parts = kit.build(max_sequences=1, max_queue=2)
        for _ in range(3):
            parts.engine.submit(kit.ask(), lambda event: None)
        with pytest.raises(CapacityError, match="3 of 3"):
            parts.engine.submit(kit.ask(), print)
        parts.engine.cancel(2)
        parts.engine.step()
        parts.engine.submit(kit.ask(), lambda event: None)
        parts.engine.run_until_idle()
        parts.engine.audit()

    def test_a_request_waits_for_pages_and_is_passed_a_bounded_number_of_times(self, kit):
        parts = kit.build(max_sequences=2, num_pages=5, max_context=320)
        order, lengths = [], {"first": 100, "large": 190} | {f"small {i}": 3 for i in range(4)}
        for name, length in lengths.items():
            output = 40 if name == "first" else 4
            parts.engine.submit(
                kit.ask(length, max_tokens=output, ignore_eos=True, use_cache=False),
                lambda e, n=name: isinstance(e, Finished) and order.append(n))
        parts.engine.run_until_idle()
        parts.engine.audit()
        assert order[:3] == ["small 0", "small 1", "first"], "two pass, and then nobody"
        assert len(order) == 6
        assert parts.engine._peak_pages <= 5

    def test_a_request_waits_no_longer_than_it_may(self, kit):
        now = [0.0]
        parts = kit.build(max_sequences=1, queue_timeout_s=5.0, clock=lambda: now[0])
        events = [], []
        for sink in events:
            parts.engine.submit(kit.ask(max_tokens=99, ignore_eos=True), sink.append)
        for now[0] in (1.0, 4.0, 5.0, 6.0):
            parts.engine.step()
        waiting = events[1][-1]
        assert (waiting.reason, waiting.timings.queue_s) == ("deadline", 5.0)
        assert "5.0 s in the queue" in str(waiting.cause)
        assert not isinstance(events[0][-1], Finished)

    @pytest.mark.parametrize("fields", [
        {"prompt": PreparedPrompt((), "")}, {"max_tokens": -1}, {"max_tokens": 2.5},
        {"stop": ["ok", ""]}, {"stop": [5]}, {"stop": None}, {"stop_token_ids": 5},
        {"deadline_s": math.nan}, {"deadline_s": "5"},
    ])
    def test_senseless_requests_are_refused(self, kit, fields):
        with pytest.raises(RequestError):
            kit.ask(**fields)

    def test_a_stop_string_alone_is_one(self, kit):
        assert kit.ask(stop="ab").stop == ("ab",)


class TestFaults:
    def test_a_fault_of_the_model_fails_the_running_requests_only(self, kit):
        parts, events = kit.build(max_sequences=2), [[], [], []]
        for i, sink in enumerate(events):
            parts.engine.submit(kit.ask(first=i, ignore_eos=True), sink.append)
        error = RuntimeError("kernel launch failed")
        for _ in range(3):
            parts.engine.step()
        parts.model.before = lambda batch: (_ for _ in ()).throw(error)
        parts.engine.step()
        parts.model.before = lambda batch: None
        parts.engine.run_until_idle()
        parts.engine.audit()
        assert [sink[-1].cause for sink in events] == [error, error, None]
        assert list(events[2][-1].token_ids) == kit.expected(kit.ask(first=2), 8)

    def test_logits_that_are_not_finite_fail_their_row_only(self, kit):
        parts = kit.build()
        parts.model.after = lambda batch, logits: (
            logits[0].fill_(float("nan")) if batch.num_rows == 2 else None
        )
        bad, good = kit.serve(parts, kit.ask(ignore_eos=True), kit.ask(first=2, ignore_eos=True))
        assert bad[-1].reason == "error"
        assert "not finite" in str(bad[-1].cause)
        assert list(good[-1].token_ids) == kit.expected(kit.ask(first=2), 8)

    def test_a_raising_sink_fails_its_request_only(self, kit, caplog):
        parts, good = kit.build(), []

        def broken(event):
            raise ConnectionError("client gone")

        parts.engine.submit(kit.ask(), broken)
        parts.engine.submit(kit.ask(first=2, ignore_eos=True), good.append)
        parts.engine.run_until_idle()
        parts.engine.audit()
        assert list(good[-1].token_ids) == kit.expected(kit.ask(first=2), 8)
        assert "client gone" in caplog.text

    def test_a_raising_parser_fails_its_request_only(self, kit):
        class Parser:
            def feed(self, text):
                raise ValueError("bad markup")

            def finish(self):
                return ()

        class Frontend(kit.LetterFrontend):
            def parser(self, prompt):
                return Parser()

        parsed, raw = kit.serve(
            kit.build(frontend=Frontend()), kit.ask(), kit.ask(raw=True, ignore_eos=True)
        )
        assert str(parsed[-1].cause) == "bad markup"
        assert list(raw[-1].token_ids) == kit.expected(kit.ask(), 8)

    def test_the_audit_finds_what_is_not_given_back(self, kit):
        parts = kit.build()
        parts.engine.submit(kit.ask(), print)
        with pytest.raises(Exception, match="not idle"):
            parts.engine.audit()
        parts.engine.close()
        parts.engine.audit()
        parts.store.pool.allocate(1)
        with pytest.raises(Exception, match="page"):
            parts.engine.audit()

    def test_a_closed_engine_takes_no_request(self, kit):
        parts, events = kit.build(), []
        parts.engine.submit(kit.ask(), events.append)
        parts.engine.step()
        parts.engine.close()
        assert events[-1].reason == "cancelled"
        with pytest.raises(Exception, match="closed"):
            parts.engine.submit(kit.ask(), print)


def test_counts_and_timings(kit):
    now = iter(range(1000))
    parts = kit.build(clock=lambda: float(next(now)), cache=False)
    [events] = kit.serve(parts, kit.ask(70, ignore_eos=True))
    last = events[-1]
    assert (last.usage.prompt_tokens, last.usage.output_tokens) == (70, 8)
    assert (last.timings.prefill_tokens, last.timings.decode_tokens) == (70, 7)
    assert min(last.timings.queue_s, last.timings.prefill_s, last.timings.decode_s) > 0
    assert (last.timings.peak_sequences, last.timings.peak_pages) == (1, 2)


def test_channels_come_from_the_models_parser(kit):
    from ninfer_core.text.parsers import ReasoningParser

    class Frontend(kit.LetterFrontend):
        def parser(self, prompt):
            return ReasoningParser(reasoning_open=True, closing=text[3])

    text = kit.text(kit.expected(kit.ask(), 8))
    [events] = kit.serve(kit.build(frontend=Frontend()), kit.ask(ignore_eos=True, stop=[text[1]]))
    at = text.index(text[3])
    said = deltas(events)
    assert "".join(d.text for d in said if d.channel == "reasoning") == text[:at]
    rest = "".join(d.text for d in said if d.channel == "content")
    assert rest == text[at + 1 :].split(text[1])[0], "a stop string is searched in content only"
