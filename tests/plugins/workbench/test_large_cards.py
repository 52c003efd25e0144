"""Plans of Flash-Next and GLM-5.3-Flash for four machines, beside what others counted."""

from __future__ import annotations

from functools import cache

import pytest

from ninfer_core.cli.main import main
from ninfer_fixtures.cards import Cards
from ninfer_workbench.memory import memory_rows
from ninfer_workbench.placement import cached_share, placed, placement_of
from ninfer_workbench.steps import model_steps

MODULES = (
    "ninfer_pack_flash_next.plugin", "ninfer_pack_glm.plugin", "ninfer_convert.plugin",
    "ninfer_profile_rtx5090.plugin", "ninfer_profile_hopper.plugin",
    "ninfer_profile_dgx_spark.plugin", "ninfer_profile_dgx_spark.dual_plugin",
    "ninfer_drafting.plugin", "ninfer_workbench.plugin", "ninfer_ops.plugin",
)
CARDS = Cards(MODULES)
FLASH_NEXT = "qwen3.8-flash-next-nvfp4"
GLM, COMPACT = "glm-5.3-flash-nvfp4", "glm-5.3-flash-compact"
GIB = 2**30
EXPERT = 2_764_800
"""Bytes of an expert of Flash-Next in NVFP4, all three matrices."""
TABLE = 320_001_536 * 162
"""FP8 codes and a scale for each row."""


@cache
def planned(name, profile, *, experts_on_host=False, **options):
    """``(plan, figures, placement)``."""
    plan = CARDS.plan(name, profile, **options)
    figures = plan.hardware.figures()
    return plan, figures, placement_of(plan, figures, experts_on_host=experts_on_host)


def lines_of(plan, placement):
    return {line.name: line.nbytes for line in placed(plan, placement).ledger.lines}


def test_flash_next_on_an_h200_has_its_table_beside_the_budget():
    """75.9 GiB are counted with the vision tower of 0.84 GiB."""
    plan, figures, placement = planned(FLASH_NEXT, "hopper", spec="mtp")
    assert plan.ledger.fits
    assert lines_of(plan, placement)["weights"] / GIB == pytest.approx(75.9 - 0.836, abs=0.1)
    rows = {name: value for name, value, _ in memory_rows(plan, placement)}
    assert rows["tables at the host"] == f"{TABLE:,} B"
    work = model_steps(plan, figures, placement).decode(0)
    assert work.host_bytes == 16 * 162


def test_flash_next_reads_the_published_bytes_a_token():
    """8.62 GB that every token needs, and 480 experts."""
    plan, figures, placement = planned(FLASH_NEXT, "hopper")
    steps = model_steps(plan, figures, placement)
    always = steps.target.body.nbytes + steps.target.head.nbytes
    assert always / 1e9 == pytest.approx(8.62, abs=5e-3)
    assert steps.target.body.read_of_experts(1) == pytest.approx(480 * EXPERT, rel=1e-6)
    beyond = steps.decode(200_000).nbytes - steps.decode(100_000).nbytes
    assert beyond == 100_000 * 12 * 128 * 4 // 4  # index keys alone, in fp32, one for four tokens


def test_flash_next_on_a_spark_maps_its_table_from_files():
    plan, figures, placement = planned(FLASH_NEXT, "dgx_spark", spec="mtp")
    assert plan.ledger.fits and plan.ledger.total_bytes + TABLE > plan.ledger.budget_bytes
    assert model_steps(plan, figures, placement).decode(0).host_bytes == 0  # it is one memory


def test_flash_next_on_a_5090_gets_its_experts_over_the_link():
    plan, figures, placement = planned(FLASH_NEXT, "rtx5090", experts_on_host=True)
    assert not plan.ledger.fits and placed(plan, placement).ledger.fits
    none_found = model_steps(plan, figures, placement, misses=1.0).decode(0)
    assert none_found.host_bytes == pytest.approx(480 * EXPERT + 16 * 162, rel=1e-6)
    frames = lines_of(plan, placement)["expert cache"] / EXPERT
    assert 6_500 < frames < 8_500  # of 24,576; engines on this card keep 8.1 to 9.7 thousand
    assert cached_share(plan, placement) == pytest.approx(frames / 24_576, rel=1e-3)
    usual = model_steps(plan, figures, placement, misses=0.05).decode(0)
    assert 98.5 < 1 / usual.seconds(figures) < 150  # 65 to 98.5 tok/s are reported


@pytest.mark.parametrize(("name", "profile", "rows", "columns", "given"), [
    # Queries, keys, values and gates of a delta network are the largest matrix.
    (FLASH_NEXT, "hopper", 16_384, 2560, 10 * 2560),
    (GLM, "dgx_spark", 3 * 8192 + 64 + 2 * 128, 4096, 8 * 4096),
])
def test_what_kernels_keep_for_a_prompt(name, profile, rows, columns, given):
    """A matrix in bf16 and both halves of a product, what experts give in fp32, and scores of
    blocks of four. Nothing is attended to in runs."""
    plan, _, placement = planned(name, profile)
    tokens = plan.config.step_tokens
    kept = 2 * rows * columns + 2 * tokens * rows + 4 * tokens * given
    assert lines_of(plan, placement)["kernels"] == kept + tokens * plan.config.max_context


@pytest.mark.parametrize(("name", "profile", "context", "selected"), [
    (FLASH_NEXT, "hopper", 12 * 2 * 4 * 128 // 4, 12 * 4 * 24 * 256),
    (GLM, "dgx_spark", 11 * 2 * 32 * 128 // 4, 11 * 2 * 64 * (512 + 512)),
])
def test_operations_of_a_step(name, profile, context, selected):
    """Two for each active parameter that is no table (6.67 and 16.74 billion), scores of the
    context, and attention to 2048 tokens of it."""
    plan, figures, placement = planned(name, profile)
    steps = model_steps(plan, figures, placement)
    at = {tokens: sum(steps.decode(tokens).flops.values()) for tokens in (0, 1024, 4096, 8192)}
    assert at[0] / 2e9 == pytest.approx({FLASH_NEXT: 6.67, GLM: 16.74}[name], abs=5e-3)
    assert at[1024] - at[0] == 1024 * (context + selected)
    assert at[4096] - at[0] == 4096 * context + 2048 * selected
    assert at[8192] - at[4096] == 4096 * context


def test_glm_needs_two_sparks():
    plan, _, placement = planned(GLM, "dgx_spark")
    assert not placed(plan, placement).ledger.fits
    plan, _, placement = planned(GLM, "dual_spark")
    lines = lines_of(plan, placement)
    assert placed(plan, placement).ledger.fits
    assert lines["weights"] / GIB == pytest.approx(88.3, abs=0.5)  # 88.89 measured
    plan, _, placement = planned(COMPACT, "dual_spark", spec="mtp")
    assert lines_of(plan, placement)["weights"] / GIB == pytest.approx(86.3, abs=0.7)


@pytest.mark.parametrize(("name", "gigabytes"), [(GLM, 10.96), (COMPACT, 6.96)])
def test_glm_on_two_sparks_reads_the_published_bytes(name, gigabytes):
    """And sends 8 KiB a token in each of 90 sums."""
    plan, figures, placement = planned(name, "dual_spark")
    work = model_steps(plan, figures, placement).decode(0)
    assert work.nbytes / 1e9 == pytest.approx(gigabytes, rel=0.02)
    assert (work.exchanges, work.link_bytes) == (90, 737_280)
    rows = {row[0]: row[2] for row in memory_rows(plan, placement)}
    assert f"({68 << 20:,} B" in rows["- kda_state"]  # half of 136 MiB


def test_two_sparks_are_for_plans_alone():
    profile = CARDS.report.registry.profiles["dual_spark"].spec
    assert profile.detect.load()().score is None
    for call in (profile.profile.load()().memory_budget,
                 lambda: profile.profile.load()().prepare(None)):
        with pytest.raises(Exception, match="no engine of this project shares a step"):
            call()


def test_the_command_says_what_it_only_plans(monkeypatch, capsys):
    monkeypatch.setenv("NINFER_PLUGINS", "")
    words = [word for module in MODULES for word in ("-p", module)]
    assert main(["plan", COMPACT, "--profile", "rtx5090", "--experts-on-host", *words]) == 0
    out = capsys.readouterr().out
    for text in ("expert cache", "experts at the host", "planned only", "0.0% of experts found",
                 "95.0% of experts found", "of the host a token"):
        assert text in out, text
