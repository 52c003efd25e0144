"""The plan of a cycle is a pure function with few rules."""

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_core.engine.scheduler import Limits, Record, StepPlan, num_pages, plan, wanted_pages
from ninfer_core.engine.trace import Decision, Trace

LIMITS = Limits(4096, 4, prefill_chunk=128)


def running(ticket, begin, end, **fields):
    """A record of somebody who has the pages of what was read."""
    return Record(**{
        "ticket": ticket, "running": True, "begin": begin, "end": end, "split": end,
        "most": begin + 1, "pages": num_pages(begin), "turn": 0, **fields,
    })


def waiting(ticket, end=100, **fields):
    return running(ticket, 0, end, running=False, **fields)


@st.composite
def records(draw):
    made = []
    for ticket in range(draw(st.integers(0, 9))):
        begin = draw(st.integers(0, 8)) * 64
        end = begin + draw(st.sampled_from([0, 0, 5, 64, 300]))
        is_running = draw(st.booleans()) and sum(r.running for r in made) < LIMITS.max_sequences
        made.append(running(
            ticket, begin, end, running=is_running, turn=draw(st.integers(0, 9)),
            split=draw(st.sampled_from([end, begin + 64])), passed=draw(st.integers(0, 5)),
            most=begin + draw(st.integers(1, 5)),
        ))
    return made


def granted(step, by_ticket):
    """Pages that a plan hands out."""
    total = sum(by_ticket[ticket].to_decode for ticket in step.decode)
    if step.prefill is not None:
        total += max(0, num_pages(step.prefill_end) - by_ticket[step.prefill].pages)
    return total


@given(records=records(), free=st.integers(0, 20))
def test_no_plan_hands_out_more_than_there_is(records, free):
    step, by_ticket = plan(records, LIMITS, free), {each.ticket: each for each in records}
    assert granted(step, by_ticket) <= free
    assert all(by_ticket[t].running and not by_ticket[t].reads for t in step.decode)
    if step.prefill is not None:
        reader = by_ticket[step.prefill]
        assert reader.begin < step.prefill_end <= min(reader.end, reader.split, reader.begin + 128)
        assert step.prefill_end % 64 == 0 or step.prefill_end in (reader.end, reader.split)
    for ticket in step.admit:
        assert not by_ticket[ticket].running
    assert sum(r.running for r in records) + len(step.admit) <= LIMITS.max_sequences


@given(records=records(), free=st.integers(0, 20))
def test_somebody_goes_on_or_makes_room(records, free):
    """Unless the oldest that runs is alone, and the pool has nothing for it."""
    step, active = plan(records, LIMITS, free), [each for each in records if each.running]
    if step.is_empty:
        assert len(active) == 1 if active else not records
    if step.pause is not None:
        assert len(active) > 1
        assert step == StepPlan(pause=active[-1].ticket)


@given(records=records())
def test_with_enough_pages_everybody_decodes_and_the_longest_waiting_reads(records):
    step = plan(records, LIMITS, 1000, admits=False)
    active = [each for each in records if each.running]
    assert list(step.decode) == [each.ticket for each in active if not each.reads]
    unread = [each for each in active if each.reads]
    assert (step.prefill is not None) == bool(unread)
    if unread:
        chosen = next(each for each in unread if each.ticket == step.prefill)
        assert chosen.turn == min(each.turn for each in unread)


@given(records=records())
def test_what_is_wanted_is_enough_for_all_that_run(records):
    wanted = wanted_pages(records, LIMITS)
    step = plan(records, LIMITS, wanted, admits=False)
    active = [each for each in records if each.running]
    assert step.pause is None
    assert list(step.decode) == [each.ticket for each in active if not each.reads]
    assert (step.prefill is None) == (not any(each.reads for each in active))


def test_the_youngest_gives_way_to_the_oldest():
    records = [running(1, 64, 64), running(2, 64, 64, pages=2), running(3, 100, 100)]
    assert plan(records, LIMITS, 0) == StepPlan(pause=3)
    assert plan(records[:2], LIMITS, 0) == StepPlan(pause=2)
    assert plan(records[:1], LIMITS, 0).is_empty
    assert plan(records[:1], LIMITS, 1) == StepPlan(decode=(1,))


def test_the_youngest_waits_for_the_others_to_end():
    records = [running(1, 60, 60), running(2, 64, 64)]
    assert plan(records, LIMITS, 0) == StepPlan(decode=(1,))


def test_a_reader_without_pages_does_not_keep_another_from_reading():
    records = [running(1, 70, 100, turn=5), running(2, 64, 100, turn=1)]
    assert plan(records, LIMITS, 0) == StepPlan(prefill=1, prefill_end=100)


def test_a_chunk_is_as_long_as_there_are_pages():
    record = running(1, 70, 1000)
    ends = [plan([record], LIMITS, free).prefill_end for free in (0, 1, 2)]
    assert ends == [128, 192, 192]


@pytest.mark.parametrize(("begin", "split", "end"), [
    (0, 1000, 128), (70, 1000, 192), (128, 200, 200), (128, 192, 192), (960, 1000, 1000),
])
def test_chunks_end_on_the_grid_or_where_they_must(begin, split, end):
    assert running(1, begin, 1000, split=split).chunk_end(LIMITS, 99) == end


@pytest.mark.parametrize("begin, most, end", [
    (0, 64, 64), (64, 96, 128), (70, 64, 128), (0, 500, 128), (0, 1, 1), (5, 7, 12), (995, 7, 1000),
])
def test_a_prompt_that_is_told_is_read_as_far_as_its_logits_fit(begin, most, end):
    limits = evolve(LIMITS, max_logits=most)
    assert running(1, begin, 1000, scores=True).chunk_end(limits, 99) == end
    plain = running(1, begin, 1000)
    assert plain.chunk_end(limits, 99) == plain.chunk_end(LIMITS, 99)


class TestAdmission:
    @given(sizes=st.lists(st.integers(1, 500), min_size=1, max_size=9), free=st.integers(0, 40))
    def test_an_idle_engine_admits_the_first_whatever_there_is(self, sizes, free):
        records = [waiting(i, size) for i, size in enumerate(sizes)]
        assert plan(records, LIMITS, free).admit[:1] == (0,)

    def test_there_must_be_room_for_the_prompt_and_a_page_for_each_that_runs(self):
        records = [running(1, 60, 60), waiting(2, 127)]
        assert [plan(records, LIMITS, free).admit for free in (2, 3)] == [(), (2,)]
        assert plan([records[0], evolve(records[1], pages=1)], LIMITS, 2).admit == (2,)

    def test_one_that_does_not_fit_is_passed_a_bounded_number_of_times(self):
        records = [running(1, 60, 60), waiting(2, 900), waiting(3), waiting(4)]
        assert plan(records, LIMITS, 9).admit == (3, 4)
        records[1] = evolve(records[1], passed=3)
        assert plan(records, LIMITS, 9).admit == (3,)
        records[1] = evolve(records[1], passed=4)
        assert plan(records, LIMITS, 9).admit == ()

    def test_nobody_is_admitted_while_pages_are_lacking(self):
        records = [running(1, 60, 60), running(2, 64, 64), waiting(3, 1)]
        assert plan(records, LIMITS, 0).admit == ()


class Machine:
    """The least that executes plans: requests are numbers, and a pool is one."""

    def __init__(self, jobs, pool):
        self.pool, self.cycle = pool, 0
        self.waiting = [waiting(i, prompt) for i, (prompt, _) in enumerate(jobs)]
        self.left = {i: output for i, (_, output) in enumerate(jobs)}
        self.running, self.order = {}, []

    @property
    def free(self):
        return self.pool - sum(each.pages for each in self.running.values())

    def step(self):
        self.cycle += 1
        admits = True
        while True:
            records = sorted([*self.running.values(), *self.waiting], key=lambda r: r.ticket)
            step = plan(records, LIMITS, self.free, admits=admits)
            assert not (step.is_empty and self.running)
            if step.pause is not None:
                self._pause(self.running.pop(step.pause))
            elif step.admit:
                self._admit(step.admit)
            else:
                return self._run(step)
            admits = False

    def _pause(self, record):
        self.waiting.append(evolve(record, running=False, begin=0, pages=0, passed=0))
        self.waiting.sort(key=lambda each: each.ticket)

    def _admit(self, tickets):
        for each in list(self.waiting):
            if each.ticket in tickets:
                self.waiting.remove(each)
                self.running[each.ticket] = evolve(each, running=True, pages=0)
        self.waiting = [
            evolve(each, passed=each.passed + sum(each.ticket < ticket for ticket in tickets))
            for each in self.waiting
        ]
        assert all(each.passed <= LIMITS.max_sequences for each in self.waiting)

    def _run(self, step):
        for ticket in step.decode:
            self.left[ticket] -= 1
            record = self.running[ticket]
            at = record.begin + 1
            self._move(record, at, at)
        if step.prefill is not None:
            record = self.running[step.prefill]
            self._move(record, step.prefill_end, record.end)
        assert self.free >= 0

    def _move(self, record, begin, end):
        pages = max(record.pages, num_pages(begin))
        self.running[record.ticket] = evolve(
            record, begin=begin, end=end, split=end, most=begin + 1, pages=pages, turn=self.cycle)
        if not self.left[record.ticket]:
            del self.running[record.ticket]
            self.order.append(record.ticket)


@settings(max_examples=60, deadline=None)
@given(
    jobs=st.lists(st.tuples(st.integers(1, 500), st.integers(1, 150)), min_size=1, max_size=12),
    spare=st.integers(0, 12),
)
def test_every_request_ends_in_any_pool_that_holds_it(jobs, spare):
    pool = max(num_pages(prompt + output) for prompt, output in jobs) + spare
    machine = Machine(jobs, pool)
    while len(machine.order) < len(jobs):
        machine.step()
        assert machine.cycle < 40_000, "no progress"


@given(records=records(), free=st.integers(0, 20), admits=st.booleans())
def test_a_trace_can_be_decided_again(records, free, admits):
    lines = []
    trace = Trace(size=2, write=lines.append)
    decision = Decision(tuple(records), free, admits, plan(records, LIMITS, free, admits=admits))
    for _ in range(3):
        trace.add(decision)
    assert [*trace] == [decision] * 2
    assert [Decision.from_json(line) for line in lines] == [decision] * 3
    assert decision.is_reproduced(LIMITS)
    assert not evolve(decision, plan=StepPlan(pause=99)).is_reproduced(LIMITS)


@pytest.mark.parametrize("fields", [
    {"max_context": 0}, {"max_sequences": 0}, {"max_queue": -1}, {"prefill_chunk": 0},
    {"prefill_chunk": 100}, {"anchor_tokens": 100}, {"queue_timeout_s": 0},
])
def test_limits_are_checked(fields):
    with pytest.raises(ValueError):
        Limits(**{"max_context": 64, **fields})
