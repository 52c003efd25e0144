"""The ledger of a plan: every part by hand, and all parts together what is stored and allocated."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
from attrs import evolve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ninfer_core.api import ParameterSpec
from ninfer_core.state.store import StateStore
from ninfer_workbench.memory import memory_rows, role, state_rows, weight_rows

DRAFTS = {"spec": "mini.mtp", "draft_tokens": 2, "lm_head_draft": True}


def numbers(text):
    return [int(each.replace(",", "")) for each in re.findall(r"\d[\d,]*", text)]


def sizes(rows):
    return {name.removeprefix("- "): numbers(size)[0] for name, size, _ in rows}


@pytest.mark.parametrize(("name", "kind", "expected"), [
    ("text/token_embedding", "table", "text/token_embedding"),
    ("text/output_head", "projection", "text/output_head"),
    ("text/final_norm", "direct", "text/direct"),
    ("text/layers/3/attention/query", "projection", "text/attention"),
    ("text/layers/3/attention/query_norm", "direct", "text/direct"),
    ("text/layers/12/moe/experts/255/gate", "projection", "text/moe/experts"),
    ("text/layers/12/moe/router", "projection", "text/moe"),
    ("mtp/input_projection", "projection", "mtp/input_projection"),
    ("mtp/layers/0/mlp/up", "projection", "mtp/mlp"),
    ("proposal/token_ids", "direct", "proposal/direct"),
])
def test_the_role_of_a_parameter(name, kind, expected):
    assert role(ParameterSpec(name, (1, 1), kind)) == expected


def test_weights_by_role_and_format(mini):
    assert list(weight_rows(mini())) == [
        ("text/attention", "16,384 B", "bf16, 2 tensors"),
        ("text/direct", "128 B", "bf16, 1 tensors"),
        ("text/moe", "512 B", "bf16, 1 tensors"),
        ("text/moe/experts", "49,152 B", "bf16, 2 tensors"),
        ("text/output_head", "32,768 B", "bf16, 1 tensors"),
        ("text/token_embedding", "32,768 B", "bf16, 1 tensors"),
    ]


def test_drafts_add_their_components(mini):
    plain, drafting = sizes(weight_rows(mini())), sizes(weight_rows(mini(**DRAFTS)))
    assert drafting == plain | {
        "mtp/input_projection": 16_384, "mtp/attention": 8192, "proposal/head": 16_384}


def test_state_by_name(mini):
    pages, token = 1 + 1024 // 64, 2 * 16 * 2
    assert list(state_rows(mini(**DRAFTS))) == [
        ("kv", f"{pages * 64 * 2 * token:,} B", "17 pages x 64 tokens x 128 B (2 layers, bf16)"),
        ("mtp_kv", f"{pages * 64 * token:,} B", "17 pages x 64 tokens x 64 B (1 layers, bf16)"),
        ("memory", f"{2 * (128 + 192):,} B",
         "2 slots x (128 B + record 192 B) (1 layers, float32)"),
    ]


def test_claims_sum_budget_and_room(mini):
    plan = mini()
    rows = {name: (size, why) for name, size, why in memory_rows(plan) if name[0] != "-"}
    assert list(rows) == ["weights", "state", "workspace", "total", "budget", "room for context"]
    total = sum(numbers(rows[name][0])[0] for name in ("weights", "state", "workspace"))
    assert numbers(rows["total"][0])[0] == total
    assert rows["total"][1] == "fits" and rows["budget"][0] == "4,000,000 B"
    room = (4_000_000 - (total - 16 * 64 * 128)) // (64 * 128) * 64
    assert rows["room for context"][0] == f"{room:,} tokens"


def test_a_kept_state_is_counted(mini):
    """A committed state of 128 B and its record, each in a page, and the last page of tokens."""
    rows = {name: (size, why) for name, size, why in memory_rows(mini(prefix_cache=True))}
    assert rows["kept state"][0] == f"{3 * 64 * 128:,} B"
    assert "at most 3 of 19 pages" in rows["kept state"][1]


def test_other_memories_are_beside_the_budget(mini):
    plan = mini(prefix_cache=True, host_capacity=100_000, disk_cache="/tmp/states")
    on_cpu = evolve(plan, hardware=SimpleNamespace(device="cpu"))
    assert "pinned host memory" not in [name for name, _, _ in memory_rows(on_cpu)]
    rows = {name: (size, why) for name, size, why in memory_rows(plan)}
    assert rows["pinned host memory"] == (
        f"{13 * 8192:,} B",
        "(12 + 1 padding) pages x 8,192 B for states that leave the pool; not of the budget")
    assert rows["state tier shelf"] == (f"{16 << 30:,} B", "at most, in /tmp/states")


def test_the_room_is_what_fits_and_not_a_page_more(mini):
    room = numbers(dict(row[:2] for row in memory_rows(mini()))["room for context"])[0]
    pages = room // 64
    assert mini(context_capacity=pages * 64 * 128).ledger.fits
    assert not mini(context_capacity=(pages + 1) * 64 * 128).ledger.fits


def test_a_smaller_kv_type_makes_room(mini):
    rooms = [sizes(memory_rows(mini(kv_dtype=name)))["room for context"]
             for name in ("fp32", "bf16", "fp8")]
    assert rooms == sorted(rooms) and rooms[0] < rooms[-1]


def test_without_room_there_are_no_tokens(mini):
    plan = mini()
    plan = evolve(plan, ledger=evolve(plan.ledger, budget_bytes=1000))
    rows = {name: (size, why) for name, size, why in memory_rows(plan)}
    assert rows["total"][1] == "DOES NOT FIT"
    assert numbers(rows["room for context"][0]) == [0]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(
    context=st.integers(1, 4096), sequences=st.integers(1, 8), drafts=st.integers(0, 5),
    kv=st.sampled_from(["fp32", "bf16", "int8", "fp8"]),
)
def test_parts_add_up_to_what_is_stored_and_allocated(mini, context, sequences, drafts, kv):
    options = {"spec": "mini.mtp", "draft_tokens": drafts} if drafts else {}
    plan = mini(max_context=context, max_concurrency=sequences, kv_dtype=kv, **options)
    lines = {line.name: line.nbytes for line in plan.ledger.lines}
    unused = {"mtp/input_projection", "mtp/layers/0/attention/query"} if not drafts else set()
    stored = {id_: each.bytes for id_, each in plan.artifact.objects.items()
              if id_ not in {*unused, "proposal/head"}}
    assert sum(sizes(weight_rows(plan)).values()) == sum(stored.values()) == lines["weights"]
    store = StateStore(
        plan.states, plan.kv, num_pages=plan.num_pages, max_sequences=sequences,
        max_context=context, max_verify_rows=plan.max_verify_rows)
    allocated = (store.memory.rows.nbytes, store._slots.nbytes, store._records.nbytes)
    assert sum(sizes(state_rows(plan)).values()) == sum(allocated) == lines["state"]
    assert plan.ledger.total_bytes == sum(lines.values())
