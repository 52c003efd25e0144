"""The engine's own time in a step."""

from types import SimpleNamespace

import pytest

from ninfer_bench import stopwatch
from ninfer_bench.stopwatch import Stopwatch


@pytest.mark.parametrize(("limit", "code"), [(1e9, 0), (0, 1)])
def test_a_step_is_measured_in_phases(bench, limit, code):
    found_code, found = bench(
        "engine", "host", "--rows", 3, "--steps", 20, "--context", 70, "--limit", limit)
    assert (found_code, len(found["problems"])) == (code, code)
    assert 0 < found["median_us"] <= found["p99_us"]
    phases = found["phases_us"]
    assert {"plan", "build the batch", "accept", "publish", "rest"} <= phases.keys()
    assert "model" not in phases
    assert all(each["median"] > 0 for each in phases.values())


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=0)
    monkeypatch.setattr(stopwatch, "perf_counter_ns", lambda: clock.now)
    return clock


class Work:
    def __init__(self, clock):
        self.clock = clock

    def outer(self):
        self.clock.now += 5
        self.inner(3)
        self.inner(4)
        return "done"

    def inner(self, took):
        self.clock.now += took
        if took > 9:
            raise RuntimeError("too long")


def test_what_an_inner_phase_took_is_not_the_outer_ones(clock):
    work, watch = Work(clock), Stopwatch()
    with watch.watching([("outer", work, "outer"), ("inner", work, "inner")]):
        assert work.outer() == "done"
    assert watch.spent == {"outer": 5, "inner": 7}
    work.outer()
    assert watch.spent == {"outer": 5, "inner": 7}, "nobody looks any more"
    assert not {"outer", "inner"} & vars(work).keys()


def test_a_phase_that_raises_is_counted(clock):
    work, watch = Work(clock), Stopwatch()
    with watch.watching([("inner", work, "inner")]):
        with pytest.raises(RuntimeError):
            work.inner(10)
        work.inner(1)
    assert watch.spent == {"inner": 11}


def test_functions_of_a_module_are_put_back(clock):
    module = SimpleNamespace(call=lambda: 1)
    before, watch = module.call, Stopwatch()
    with watch.watching([("one", module, "call")]):
        assert module.call is not before
    assert module.call is before
