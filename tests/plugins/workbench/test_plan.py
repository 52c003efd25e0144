"""``ninfer plan``: for models and machines that are not here."""

from __future__ import annotations


def test_an_absent_machine_gets_a_plan(ninfer, tiny_model):
    code, out, _ = ninfer("plan", tiny_model)
    assert code == 0
    for word in ("choices", "weights", "state", "budget", "room for context", "predicted speed",
                 "decode at 0", "prefill at 0", "prompt of 2048"):
        assert word in out


def test_the_sections_are_aligned_tables(ninfer, tiny_model):
    _, out, _ = ninfer("plan", tiny_model)
    assert [part.splitlines()[0].split()[0] for part in out.split("\n\n")] == [
        "choices", "memory", "predicted"]
