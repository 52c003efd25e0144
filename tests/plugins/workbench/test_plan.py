"""``ninfer plan``: the ledger adds up, and every predicted number follows from its arithmetic."""

from __future__ import annotations

import re

import pytest

from ninfer_core.cli.launch import prepare
from ninfer_core.cli.main import parser_of
from ninfer_core.config import resolve
from ninfer_workbench.plan import memory_rows, speed_rows
from ninfer_workbench.plugin import ninfer_commands


@pytest.fixture
def plan(skeletons, tiny_model, monkeypatch):
    monkeypatch.setenv("NINFER_PLUGINS", "")
    command = next(each for each in ninfer_commands() if each.name == "plan")
    arguments = parser_of(command, "ninfer plan").parse_args([
        str(tiny_model), "-p", skeletons["model-pack"], "-p", skeletons["hardware-profile"],
        "--profile", "skeleton_profile", "--max-context", "1024", "--prefill-chunk", "128",
    ])
    return resolve(*prepare(arguments, lambda *_: None), absent=True)


def numbers(text):
    return [float(each.replace(",", "")) for each in re.findall(r"[\d,]*\d(?:\.\d+)?", text)]


def test_an_absent_machine_gets_a_plan(ninfer, tiny_model):
    code, out, _ = ninfer("plan", tiny_model)
    assert code == 0
    for word in ("weights", "state", "budget", "decode at 0", "prefill at 0"):
        assert word in out


def test_the_ledger_adds_up(plan):
    *lines, total, budget = memory_rows(plan)
    assert sum(numbers(size)[0] for _, size, _ in lines) == numbers(total[1])[0]
    assert numbers(budget[1])[0] == plan.hardware.figures().memory_bytes
    assert total[2] == "fits"


def test_bytes_and_operations_are_those_of_the_model(plan):
    rows = {name: numbers(text) for name, _, text in speed_rows(plan, plan.hardware.figures())}
    table, head = 4 * 272 * 64, 4 * 272 * 64
    assert rows["bytes"] == [plan.ledger.lines[0].nbytes - table, 0, 2 * 2 * 2 * 16 * 4]
    layers = 2 * (64 * 64 + 2 * 32 * 64 + 64 * 64 + 3 * 96 * 64)
    assert rows["operations"] == [2 * layers, 2 * head / 4, 2 * 4 * 4 * 16]


def test_speeds_follow_from_their_arithmetic(plan):
    rows = [row for row in speed_rows(plan, plan.hardware.figures()) if "tok/s" in row[1]]
    assert [name for name, _, _ in rows] == [
        "decode at 0", "decode at 1023", "prefill at 0", "prefill at 896"]
    for _, speed, arithmetic in rows:
        tokens, nbytes, bandwidth, flops, rate, launches, launch_us = numbers(arithmetic)
        seconds = max(nbytes / bandwidth, flops / rate) / 1e9 + launches * launch_us / 1e6
        assert numbers(speed)[0] == pytest.approx(tokens / seconds, rel=0.02)


def test_more_context_is_slower(plan):
    rows = speed_rows(plan, plan.hardware.figures())
    speed = {name: numbers(value)[0] for name, value, _ in rows}
    assert speed["decode at 0"] > speed["decode at 1023"]
    assert speed["prefill at 0"] > speed["prefill at 896"]
