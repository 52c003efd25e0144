"""Predicted speeds: every number follows from the arithmetic beside it."""

from __future__ import annotations

import re

import pytest

from ninfer_workbench.speed import speed_rows
from ninfer_workbench.steps import model_steps

DRAFTS = {"spec": "mini.mtp", "draft_tokens": 3}


def numbers(text):
    return [float(each.replace(",", "")) for each in re.findall(r"\d[\d,]*(?:\.\d+)?", text)]


def rows_of(plan):
    """By name; of rounds, at context 0."""
    rows = {}
    for name, value, why in speed_rows(plan, plan.hardware.figures()):
        rows.setdefault(name, (value, why))
    return rows


def seconds_of(arithmetic):
    """Of ``max(B / GB/s, FLOP / GFLOP/s + ...) + N x us``."""
    nbytes, bandwidth, *products, launches, launch_us = numbers(arithmetic)
    computing = sum(a / b for a, b in zip(products[::2], products[1::2], strict=True))
    return max(nbytes / bandwidth, computing) / 1e9 + launches * launch_us / 1e6


def test_depths_reach_to_the_end_of_the_context(mini):
    assert [*rows_of(mini(max_context=1024))] == [
        "rates", "bytes", "operations", "decode at 0", "decode at 1023", "prefill at 0",
        "prefill at 960", "prompt of 1024"]


def test_a_context_of_one_token_has_one_depth(mini):
    names = [name for name in rows_of(mini(max_context=1)) if name.startswith("decode")]
    assert names == ["decode at 0"]


def test_decode_and_prefill_follow_from_their_arithmetic(mini):
    for name, (value, why) in rows_of(mini()).items():
        if "tok/s" in value and "prompt" not in name:
            tokens, rest = re.fullmatch(r"(\d+) / \((.*)\)", why).groups()
            assert numbers(value)[0] == pytest.approx(int(tokens) / seconds_of(rest), rel=1e-3)


def test_a_prompt_is_the_sum_of_its_chunks_the_last_of_which_may_be_short(mini):
    figures = mini().hardware.figures()
    steps = model_steps(mini(), figures)
    prompt, why = rows_of(mini(max_context=150))["prompt of 150"]
    chunks = [steps.prefill(64, 0), steps.prefill(64, 64), steps.prefill(22, 128)]
    seconds = sum(chunk.seconds(figures) for chunk in chunks)
    assert numbers(prompt)[0] == pytest.approx(150 / seconds, rel=1e-3)
    assert why.endswith("the sum of its 3 chunks")


def test_bytes_and_operations_of_a_token_add_up(mini):
    rows = rows_of(mini())
    total, (weights, experts, table, slots, kv) = numbers(rows["bytes"][0]), numbers(
        rows["bytes"][1])
    assert total[0] == weights + experts + table + slots
    assert (experts, table, slots, kv) == (24_576, 128, 256, 128)
    total, (layers, head, attention) = numbers(rows["operations"][0]), numbers(
        rows["operations"][1])
    assert total[0] == layers + head and attention == 128


def test_a_round_is_a_verification_and_its_drafts(mini):
    rows = rows_of(mini(**DRAFTS))
    names = ("round at 0", "- verify 4 rows", "- draft 3")
    round_ms, verify_ms, draft_ms = (numbers(rows[name][0])[0] for name in names)
    assert round_ms == pytest.approx(verify_ms + draft_ms, abs=0.011)
    assert verify_ms == pytest.approx(seconds_of(rows[names[1]][1]) * 1e3, abs=0.006)


def test_drafts_are_one_step_over_the_rows_and_the_others_over_one(mini):
    plan = mini(**DRAFTS)
    rows = [row for row in speed_rows(plan, plan.hardware.figures()) if row[0] == "- draft 3"]
    for _, value, why in rows:
        first, again, other = re.fullmatch(r"(.*us) \+ (\d) x \((.*)\)", why).groups()
        seconds = seconds_of(first) + int(again) * seconds_of(other)
        assert again == "2" and numbers(value)[0] == pytest.approx(seconds * 1e3, abs=0.006)


def test_tokens_of_a_round(mini):
    """1 + a + a^2 + a^3."""
    rows = rows_of(mini(**DRAFTS))
    speeds, tokens = rows["- accepting 0.5 | 0.7 | 0.9"]
    assert numbers(tokens) == [1.875, 2.533, 3.439]
    seconds = numbers(rows["round at 0"][0])[0] / 1e3
    assert numbers(speeds) == pytest.approx([each / seconds for each in numbers(tokens)], rel=0.02)


def test_looked_up_drafts_have_no_row(mini):
    rows = rows_of(mini(spec="mini.lookup", draft_tokens=3))
    assert "- verify 4 rows" in rows and "- draft 3" not in rows


def test_deeper_is_slower(mini):
    rows = rows_of(mini(**DRAFTS))
    speed = {name: numbers(value)[0] for name, (value, _) in rows.items()}
    assert speed["decode at 0"] > speed["decode at 1023"]
    assert speed["prefill at 0"] > speed["prefill at 960"]
    assert speed["round at 0"] < speed["round at 1020"]
