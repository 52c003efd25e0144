"""The plan of a cycle is a pure function with few rules."""

import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.engine.scheduler import Limits, plan


@frozen
class Record:
    num_prompt: int = 100
    num_pages: int = 2
    frontier: int = 0
    last_cycle: int = 0


RECORDS = st.lists(st.builds(
    Record, num_prompt=st.integers(1, 500), num_pages=st.integers(0, 8),
    frontier=st.integers(0, 8).map(lambda n: n * 64), last_cycle=st.integers(0, 9),
), max_size=8)
WAITING = st.lists(st.builds(Record, num_pages=st.integers(1, 8)), max_size=10)


@given(waiting=WAITING, running=RECORDS, limit=st.integers(8, 12), free=st.integers(0, 20))
def test_admission_is_the_longest_beginning_of_the_queue_that_fits(waiting, running, limit, free):
    admit = plan(waiting, running, Limits(4096, limit), free).admit
    assert list(admit) == waiting[: len(admit)]
    assert sum(record.num_pages for record in admit) <= free
    assert len(running) + len(admit) <= limit
    if len(admit) < len(waiting) and len(running) + len(admit) < limit:
        assert sum(record.num_pages for record in waiting[: len(admit) + 1]) > free


@given(running=RECORDS, waiting=WAITING)
def test_every_decoding_sequence_steps_and_one_chunk_is_read(running, waiting):
    step = plan(waiting, running, Limits(4096, prefill_chunk=128), 0)
    assert list(step.decode) == [r for r in running if r.frontier >= r.num_prompt]
    unread = [r for r in running if r.frontier < r.num_prompt]
    assert (step.prefill is not None) == bool(unread)
    if step.prefill:
        assert step.prefill.last_cycle == min(r.last_cycle for r in unread)
        assert step.num_prefill == min(128, step.prefill.num_prompt - step.prefill.frontier)


@given(waiting=WAITING, free=st.integers(8, 20))
def test_an_idle_engine_always_admits_what_fits_at_all(waiting, free):
    step = plan(waiting, [], Limits(4096), free)
    assert bool(step.admit) == bool(waiting)
    assert (step.prefill is not None) == bool(waiting)


@pytest.mark.parametrize("fields", [
    {"max_context": 0}, {"max_sequences": 0}, {"max_queue": -1}, {"prefill_chunk": 0},
    {"prefill_chunk": 100},
])
def test_limits_are_checked(fields):
    with pytest.raises(ValueError):
        Limits(**{"max_context": 64, **fields})
