"""Weights on several machines or in host memory: shares, copies and exchanges, counted by hand for
the mini model."""

from __future__ import annotations

import pytest
from attrs import evolve

from ninfer_core.api import UnsupportedError
from ninfer_workbench.memory import memory_rows
from ninfer_workbench.placement import Placement, cached_share, placed, placement_of
from ninfer_workbench.speed import speed_rows
from ninfer_workbench.steps import model_steps

SQUARE, ROUTER, EXPERT = 64 * 64, 4 * 64, 3 * 32 * 64
HEAD, TABLE, NORM = 256 * 64, 256 * 64, 64
EXPERTS = 2 * 4 * EXPERT
"""Bytes of all of them."""
SLOT, KV = 32 * 4, 2 * 16 * 2
REPLICATED = ("*/moe/router", "*norm*", "*/token_embedding", "memory")


@pytest.fixture
def plan(mini):
    """``(operations, **launch options)`` to a plan with these sizes beside its own."""
    return lambda sizes, **options: evolve(
        made := mini(**options), operations={**made.operations, **sizes})


@pytest.fixture
def figures(mini):
    """``(**changes)`` to the figures of the mini model's machine."""
    own = mini().hardware.figures()
    return lambda **changes: evolve(own, **changes)


@pytest.fixture
def two(figures):
    return figures(ranks=2, link_bytes_per_s=1e9, exchange_s=1e-5)


def rows_of(rows):
    return {name.removeprefix("- "): (value, why) for name, value, why in rows}


def test_two_machines_hold_halves_but_of_what_is_replicated(plan, two):
    made = plan({"replicated": REPLICATED})
    placement = placement_of(made, two)
    assert placement == Placement(2, REPLICATED)
    lines = {line.name: line for line in placed(made, placement).ledger.lines}
    assert lines["weights"].nbytes == (
        2 * SQUARE + EXPERTS // 2 + HEAD + 2 * (ROUTER + NORM + TABLE))
    assert "on each of 2 machines" in lines["weights"].arithmetic
    pages = 1024 // 64 + 1
    state = next(each.nbytes for each in made.ledger.lines if each.name == "state")
    slots = state - pages * 64 * 2 * KV  # replicated
    assert lines["state"].nbytes == pages * 64 * KV + slots
    rows = rows_of(memory_rows(made, placement))
    assert rows["text/attention"][0] == f"{2 * SQUARE:,} B"
    assert rows["text/moe"][0] == f"{2 * ROUTER:,} B"
    assert rows["kv"][0] == f"{pages * 64 * KV:,} B"
    assert rows["total"][0] == f"{placed(made, placement).ledger.total_bytes:,} B"


def test_one_machine_is_as_without_placement(mini):
    made = mini()
    placement = placement_of(made, made.hardware.figures())
    assert placed(made, placement) is made
    assert [*memory_rows(made, placement)] == [*memory_rows(made)]


def test_a_step_of_two_machines_reads_halves_and_exchanges_sums(plan, two):
    made = plan({"replicated": REPLICATED, "exchanges_per_step": 4, "exchange_width": 64})
    work = model_steps(made, two, placement_of(made, two)).decode(100)
    assert work.nbytes == (
        2 * SQUARE + 2 * (NORM + ROUTER) + 2 * 64 + HEAD + 2 * EXPERT + 2 * SLOT + 100 * KV)
    assert (work.exchanges, work.link_bytes) == (4, 4 * 2 * 64)
    assert work.flops["bfloat16"] == SQUARE + 2 * ROUTER + 2 * EXPERT + HEAD + 100 * 128
    alone = work.seconds(evolve(two, exchange_s=0.0, link_bytes_per_s=1e30))
    assert work.seconds(two) - alone == pytest.approx(4e-5 + 512e-9)
    assert "+ 4 x 10.00 us + 512 B / 1.0 GB/s" in work.arithmetic(two)


def test_prompts_exchange_a_sum_for_each_row(plan, two):
    made = plan({"replicated": (), "exchanges_per_step": 4, "exchange_width": 64})
    work = model_steps(made, two, placement_of(made, two)).prefill(64, 0)
    assert (work.exchanges, work.link_bytes) == (4, 64 * 4 * 2 * 64)


def test_experts_at_the_host_leave_the_card_to_a_cache(mini, figures):
    made, host = mini(), figures(host_bytes_per_s=1e8)
    placement = placement_of(made, host, experts_on_host=True)
    lines = {line.name: line.nbytes for line in placed(made, placement).ledger.lines}
    others = made.ledger.total_bytes - EXPERTS
    assert lines["expert cache"] == made.ledger.budget_bytes - others
    rows = rows_of(memory_rows(made, placement))
    assert rows["experts at the host"][0] == f"{EXPERTS:,} B"
    assert "planned only" in rows["experts at the host"][1]
    assert "text/moe/experts" not in rows
    page = 64 * 2 * KV
    pages = (made.ledger.budget_bytes - others + 16 * page) // page  # those there are count too
    assert rows["room for context"][0] == f"{64 * pages:,} tokens"


def test_what_the_cache_has_no_room_for_comes_over_the_link(mini, figures):
    made, host = mini(), figures(host_bytes_per_s=1e8)
    placement = placement_of(made, host, experts_on_host=True)
    small = evolve(made, ledger=evolve(
        made.ledger, budget_bytes=made.ledger.total_bytes - EXPERTS + EXPERTS // 4))
    assert cached_share(small, placement) == 0.25
    plain = model_steps(made, host).decode(0)
    for misses in (0.0, 0.75, 1.0):
        work = model_steps(small, host, placement, misses=misses).decode(0)
        assert work.host_bytes == misses * EXPERTS / 2  # two of four are chosen
        assert work.nbytes == plain.nbytes + work.host_bytes
    rows = rows_of(speed_rows(small, host, placement))
    assert rows["25.0% of experts found"][1].startswith("18,432 B of the host a token (all alike)")
    assert rows["0.0% of experts found"][1].startswith("24,576 B of the host a token;")
    assert rows["decode at 0"][0] == rows["25.0% of experts found"][0]
    assert ", 18,432 B / 0.1 GB/s)" in rows["decode at 0"][1]


def test_copies_overlap_with_reading(mini, figures):
    host = figures(host_bytes_per_s=1e8)
    placement = placement_of(mini(), host, experts_on_host=True)
    work = model_steps(mini(), host, placement, misses=1.0).decode(0)
    assert work.seconds(host) == pytest.approx(EXPERTS / 2 / 1e8 + 20e-6)


def test_rows_of_tables_at_the_host_are_counted_apart(plan, figures):
    name = "text/token_embedding"
    made = plan({"gathered_rows": {name: 16}})
    far = tuple(evolve(each, on_host=each.name == name) for each in made.parameters)
    made = evolve(made, parameters=far)
    host = model_steps(made, figures(host_bytes_per_s=1e8)).decode(0)
    shared = model_steps(made, figures()).decode(0)
    assert host.host_bytes == 16 * 2 * 64 and shared.host_bytes == 0
    assert shared.nbytes - host.nbytes == host.host_bytes
    rows = rows_of(memory_rows(made))
    assert rows["tables at the host"][0] == f"{2 * TABLE:,} B"
    assert name not in rows


def test_selected_tokens_bound_what_is_read_and_computed(plan):
    made = plan({"selected_states": ("kv",), "selected_tokens": 10, "selected_flops_per_token": 7})
    steps = model_steps(made, made.hardware.figures())
    here, there, beyond = (steps.decode(context) for context in (0, 10, 1000))
    assert there.nbytes - here.nbytes == beyond.nbytes - here.nbytes == 10 * 2 * KV
    assert beyond.flops["bfloat16"] - here.flops["bfloat16"] == 1000 * 128 + 10 * 7
    assert steps.prefill(64, 1000).nbytes - steps.prefill(64, 0).nbytes == 640 * 2 * KV


@pytest.mark.parametrize(("changes", "host", "why"), [
    ({}, True, "its memory is the host's"),
    ({"ranks": 2, "link_bytes_per_s": 1e9, "exchange_s": 1e-6}, False, "does not say"),
])
def test_what_cannot_be_planned_is_refused(mini, figures, changes, host, why):
    with pytest.raises(UnsupportedError, match=why):
        placement_of(mini(), figures(**changes), experts_on_host=host)


def test_a_model_without_experts_has_none_to_move(mini, figures):
    made = mini()
    dense = evolve(made, parameters=tuple(
        each for each in made.parameters if "/experts/" not in each.name))
    with pytest.raises(UnsupportedError, match="the model has none"):
        placement_of(dense, figures(host_bytes_per_s=1e9), experts_on_host=True)
