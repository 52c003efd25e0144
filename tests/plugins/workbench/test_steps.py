"""What steps read and compute, counted by hand for the mini model."""

from __future__ import annotations

from math import ceil

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.api import MachineFigures, UnsupportedError
from ninfer_workbench.matrices import Matrices
from ninfer_workbench.steps import model_steps
from ninfer_workbench.work import Work

SQUARE, ROUTER, EXPERT = 64 * 64, 4 * 64, 3 * 32 * 64
HEAD, DRAFT_HEAD, STEM = 256 * 64, 128 * 64, 64 * 128
ALWAYS = 2 * (2 * SQUARE + 64 + ROUTER)
"""Bytes of attention, norm and router in bf16."""
ROW = 2 * 64
"""Bytes of an embedding row."""
SLOT, RECORD_ROW = 32 * 4, 16 * 4
KV = 2 * 16 * 2
"""Bytes of a token of one layer in bf16."""


def steps_of(plan):
    return model_steps(plan, plan.hardware.figures())


def test_a_decoded_token_reads_its_share_of_the_experts(mini):
    work = steps_of(mini()).decode(0)
    assert work.nbytes == ALWAYS + ROW + 2 * HEAD + 2 * 2 * EXPERT + 2 * SLOT
    assert work.launches == 20


def test_context_is_read_and_met_by_attention(mini):
    steps = steps_of(mini())
    here, there = steps.decode(0), steps.decode(1000)
    assert there.nbytes - here.nbytes == 1000 * 2 * KV
    assert there.flops["bfloat16"] - here.flops["bfloat16"] == 1000 * 128


def test_operations_follow_the_activations_that_uses_allow(mini):
    """The query may be narrow: to FP8 on this machine, because it has no rate of FP4."""
    flops = steps_of(mini()).decode(0).flops
    others = SQUARE + ROUTER + 2 * EXPERT + HEAD
    assert flops == {"float8_e4m3fn": 2 * SQUARE, "bfloat16": 2 * others}


def test_without_a_rate_of_narrow_types_all_is_computed_alike(mini):
    plan = mini()
    figures = evolve(plan.hardware.figures(), flops={"bfloat16": 1e12})
    flops = model_steps(plan, figures).decode(0).flops
    assert flops == {"bfloat16": 2 * (2 * SQUARE + ROUTER + 2 * EXPERT + HEAD)}


def test_a_chunk_of_a_prompt_reads_weights_once_and_one_row_of_logits(mini):
    work = steps_of(mini()).prefill(64, 128)
    experts = 2 * 4 * EXPERT  # 64 rows want all of them
    assert work.nbytes == ALWAYS + 64 * ROW + 2 * HEAD + experts + 2 * SLOT + 128 * 2 * KV
    rows = 2 * (SQUARE + ROUTER + 2 * EXPERT)
    assert work.flops["bfloat16"] == 64 * rows + 2 * HEAD + 64 * (128 + 32) * 128


def test_verification_reads_distinct_experts_and_records_its_rows(mini):
    steps = steps_of(mini(spec="mini.mtp", draft_tokens=2))
    work = steps.verify(3, 10)
    experts = round(2 * 4 * EXPERT * (1 - 0.5**3))
    records = 3 * RECORD_ROW
    assert work.nbytes == (
        ALWAYS + 3 * ROW + 2 * HEAD + experts + 2 * (SLOT + records) + 10 * 2 * KV)
    assert work.flops["float8_e4m3fn"] == 3 * 2 * SQUARE


def test_a_draft_reads_the_predictor_its_cache_and_a_head(mini):
    for options, head in (({"lm_head_draft": True}, DRAFT_HEAD), ({}, HEAD)):
        work = steps_of(mini(spec="mini.mtp", draft_tokens=2, **options)).draft(1, 100)
        assert work.nbytes == 2 * (STEM + SQUARE) + 2 * head + 100 * KV
        assert work.flops == {"bfloat16": 2 * (STEM + SQUARE + head) + 100 * 64}
        assert work.launches == 5


def test_with_a_predictor_prompts_are_read_by_both(mini):
    plain = steps_of(mini()).prefill(64, 0)
    both = steps_of(mini(spec="mini.mtp", draft_tokens=2)).prefill(64, 0)
    assert both.nbytes - plain.nbytes == 2 * (STEM + SQUARE)
    assert both.launches - plain.launches == 5


def test_looked_up_drafts_cost_nothing(mini):
    steps = steps_of(mini(spec="mini.lookup", draft_tokens=2))
    assert steps.predictor is None
    assert steps.draft(1, 100).seconds(mini().hardware.figures()) == 0


def test_a_machine_without_a_rate_of_the_compute_type_is_refused(mini):
    plan = mini()
    with pytest.raises(UnsupportedError, match="no rate of bfloat16"):
        model_steps(plan, evolve(plan.hardware.figures(), flops={"float32": 1e12}))


@given(
    experts=st.integers(1, 64), chosen=st.integers(1, 64), rows=st.integers(1, 100),
    nbytes=st.integers(1, 10**12),
)
def test_more_rows_read_more_experts_but_never_more_than_there_are(experts, chosen, rows, nbytes):
    some = Matrices(expert_bytes=nbytes, chosen=min(chosen, experts), num_experts=experts)
    share = some.chosen / experts
    assert some.read(1) == pytest.approx(nbytes * share, abs=1)
    assert some.read(rows) <= some.read(rows + 1) <= nbytes
    assert some.read(rows) <= ceil(rows * nbytes * share) + 1


@given(nbytes=st.integers(0, 10**12), flops=st.integers(0, 10**15), launches=st.integers(0, 1000))
def test_a_step_waits_for_the_slower_of_reading_and_computing(nbytes, flops, launches):
    figures = MachineFigures("m", 1, 1e9, {"a": 1e12, "b": 2e12}, 1e-6, "")
    seconds = Work(nbytes, {"a": flops, "b": flops}, launches).seconds(figures)
    slower = max(nbytes / 1e9, flops * 1.5e-12)
    assert seconds == pytest.approx(slower + launches * 1e-6)
