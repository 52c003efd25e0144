"""Clients under pressure."""

from random import Random

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_bench.demand import Choice, Kind, choose, half_of_what_is_asked, pages_of, requests_of
from ninfer_bench.load_report import Outcome, _problems
from ninfer_bench.residents import Residents, resident_bytes, sample_until
from ninfer_bench.tally import Tally
from ninfer_bench.watch import Watch
from ninfer_core.engine.engine import Engine
from ninfer_core.engine.request import Finished, Timings, Usage
from ninfer_core.engine.scheduler import Record, StepPlan
from ninfer_core.engine.trace import Decision
from ninfer_core.state.store import StateStore

SMALL = ("engine", "load", "--seconds", 2, "--kinds", 6, "--longest", 260, "--clients", 4)


def test_clients_get_their_answers_from_half_of_the_memory(bench):
    code, found = bench(*SMALL)
    assert (code, found["problems"]) == (0, [])
    assert found["requests"] == found["compared"] > 4
    assert found["differing"] == 0
    assert found["most_passed"] <= 8 and found["longest_idle_cycles"] <= 8
    assert found["pool_pages"] <= max(found["asked_pages"] * 0.5 + 1, 6)
    assert 0 < found["queue_s"]["p50"] <= found["queue_s"]["p99"] <= found["queue_s"]["max"]
    assert {*found["reasons"]} <= {"output-limit", "cancelled", "deadline"}
    assert found["cycles"] > 0


def test_answers_need_not_be_compared(bench):
    code, found = bench(*SMALL, "--seconds", 1, "--free-answers")
    assert (code, found["compared"]) == (0, 0)


def test_pages_that_are_lost_are_a_problem(bench, monkeypatch):
    close, leaked = StateStore.close, []

    def leak(store, state):
        if not leaked and store.num_sequences > 1:
            leaked.append(state.pages.pop())
        close(store, state)

    monkeypatch.setattr(StateStore, "close", leak)
    code, found = bench(*SMALL, "--seconds", 1, "--clients", 8)
    assert leaked
    assert code == 1
    assert "page accounting is broken" in str(found["problems"])


def test_wrong_answers_are_a_problem(bench, monkeypatch):
    submit = Engine.submit

    def misheard(engine, request, sink):
        if request.use_cache:  # not when it is alone
            ids = request.prompt.token_ids
            request = evolve(request, prompt=evolve(request.prompt, token_ids=(7, *ids[1:])))
        return submit(engine, request, sink)

    monkeypatch.setattr(Engine, "submit", misheard)
    code, found = bench(*SMALL)
    assert code == 1
    assert "are not those of the same requests alone" in found["problems"][-1]


@given(st.integers(0, 99), st.integers(1, 40), st.integers(64, 600), st.integers(1, 12))
@settings(max_examples=20)
def test_the_pool_holds_half_of_what_is_asked_for_and_each_request(seed, count, longest, clients):
    requests = requests_of(seed, count, longest, 256)
    pages = half_of_what_is_asked(requests, clients)
    asked = clients * sum(map(pages_of, requests)) / len(requests)
    largest = max(map(pages_of, requests))
    assert pages >= largest
    assert pages == largest or abs(pages - asked / 2) <= 1
    assert max(len(each.prompt.token_ids) for each in requests) <= longest
    assert requests == requests_of(seed, count, longest, 256)


def test_some_requests_are_cancelled_and_some_have_a_deadline():
    kinds = [Kind(each) for each in requests_of(1, 8, 200, 256)]
    choices = [choose(Random(i), kinds) for i in range(300)]
    assert 10 < sum(each.cancel_after is not None for each in choices) < 60
    assert 10 < sum(each.request.deadline_s is not None for each in choices) < 60


def finished(reason="output-limit", tokens=(1, 2, 3), cause=None):
    timings = Timings(0.5, 0.1, 10, 0.2, 2, 1, 1)
    return Finished(reason, Usage(10, len(tokens)), timings, tokens, None, cause)


def choice(alone=None):
    [request] = requests_of(0, 1, 64, 256)
    return Choice(Kind(request, alone), request, None)


def test_a_tally_adds_up():
    one, other = Tally(), Tally()
    one.add(choice((1, 2, 3)), finished(), 2.0)
    one.add(choice((1, 2, 3)), finished("cancelled", (1, 2)), 1.0)
    other.add(choice((1, 9)), finished(), 3.0)
    other.add(choice(), finished("error", (), RuntimeError("broken")), 3.0)
    whole = Tally.of([one, other])
    assert (whole.requests, whole.output_tokens, whole.longest_s) == (4, 8, 3.0)
    assert (whole.compared, whole.differing) == (3, 1)
    assert [*whole.queue_s] == [0.5] * 4
    assert whole.reasons == {"output-limit": 2, "cancelled": 1, "error": 1}
    assert whole.faults == ["a request ended with error: RuntimeError('broken')"]


def record(ticket, running, *, passed=0):
    return Record(ticket, running, 0, 10, 10, 11, 1, 0, passed)


def decision(*records, admits=True, **plan):
    return Decision(records, 4, admits, StepPlan(**plan))


class TestWatch:
    def test_it_sees_who_waits_and_how_often_he_is_passed(self):
        watch = Watch()
        for passed in range(3):
            watch.add(decision(record(1, True), record(2, False, passed=passed), decode=(1,)))
        watch.add(decision(record(1, True), record(2, True), decode=(1, 2)))
        watch.add(decision(record(2, True), record(3, False), decode=(2,)))
        assert (watch.cycles, watch.most_passed, watch.longest_wait) == (5, 2, 2)

    def test_a_cycle_may_have_several_decisions(self):
        watch = Watch()
        watch.add(decision(record(1, False), admit=(1,)))
        watch.add(decision(record(1, True), admits=False, prefill=1, prefill_end=10))
        assert (watch.cycles, watch.longest_idle) == (1, 0)

    def test_it_sees_an_oldest_request_that_does_not_step(self):
        watch = Watch()
        for _ in range(4):
            watch.add(decision(record(1, True), record(2, True), decode=(2,)))
        watch.add(decision(record(1, True), record(2, True), decode=(2,), prefill=1))
        watch.add(decision(record(2, True)))
        assert watch.longest_idle == 3

    def test_it_is_a_trace(self):
        watch = Watch()
        watch.add(decision(record(1, True), decode=(1,)))
        assert len([*watch]) == 1


def outcome(**changes):
    watch, tally = Watch(), Tally(requests=1)
    flat = Residents((1e9,) * 4)
    return evolve(Outcome(tally, watch, flat, 1.0, ()), **changes)


@pytest.mark.parametrize(("change", "words"), [
    (lambda o: setattr(o.watch, "most_passed", 9), "was passed 9 times"),
    (lambda o: setattr(o.watch, "longest_idle", 9), "no step for 9 cycles"),
    (lambda o: setattr(o.tally, "requests", 0), "no request has ended"),
    (lambda o: setattr(o.tally, "differing", 2), "2 answers are not"),
    (lambda o: o.tally.faults.append("it broke"), "it broke"),
])
def test_each_broken_promise_is_a_problem(change, words):
    made = outcome()
    assert [*_problems(made, 8)] == []
    change(made)
    [problem] = _problems(made, 8)
    assert words in problem


def test_memory_that_grows_is_a_problem():
    [problem] = _problems(outcome(residents=Residents((1e9, 1e9, 1.02e9, 1.04e9))), 8)
    assert "grew by 40.0 MB" in problem
    assert Residents((1e9, 1e9, 1e9, 1.01e9)).is_flat
    assert Residents((0.0,) * 4).is_flat, "where the system does not say"


def test_quarters_are_medians():
    assert Residents.of([1, 1, 9, 2, 2, 2, 3, 3, 3, 4, 4, 4]).quarters == (1, 2, 3, 4)
    assert Residents.of([]).quarters == (0, 0, 0, 0)


def test_memory_is_sampled(monkeypatch):
    monkeypatch.setattr("ninfer_bench.residents.EVERY_S", 0)
    rounds = iter([False, False, True])
    assert len(sample_until(lambda: next(rounds))) == 2
    found = resident_bytes()
    assert found is None or found > 10_000_000
