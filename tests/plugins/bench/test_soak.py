"""Random schedules for as long as one likes."""

from ninfer_core.state.store import StateStore


def test_schedules_are_played_until_the_time_is_over(bench):
    code, found = bench("engine", "soak", "--seconds", 1, "--seed", 5)
    assert (code, found["problems"]) == (0, [])
    assert found["schedules"] > 0 and found["requests"] >= found["schedules"]
    assert found["steps"] > 0 and found["output_tokens"] > 0


def test_a_broken_promise_is_told_with_its_seed(bench, monkeypatch):
    def lost(store, state):
        store._sequences.remove(state)

    monkeypatch.setattr(StateStore, "close", lost)
    code, found = bench("engine", "soak", "--seconds", 30, "--seed", 11)
    assert code == 1
    [problem] = found["problems"]
    assert problem.startswith("seed 11: ") and "Schedule(" in problem
    assert found["schedules"] == 1
