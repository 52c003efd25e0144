"""Cards of published sets, planned without weights: sizes and speeds beside what was published."""

from __future__ import annotations

import pytest

from ninfer_core.api import ArtifactError
from ninfer_core.cli.main import main
from ninfer_core.cli.models import artifact_path
from ninfer_fixtures.cards import Cards
from ninfer_workbench.steps import model_steps

MODULES = (
    "ninfer_pack_qwen_dense.plugin", "ninfer_pack_qwen_moe.plugin", "ninfer_convert.plugin",
    "ninfer_profile_rtx5090.plugin", "ninfer_drafting.plugin", "ninfer_workbench.plugin",
)
CARDS = Cards(MODULES)
FILE_BYTES = {
    "qwen3.6-27b": 17_495_365_888, "qwen3.6-27b-nvfp4": 18_324_064_000,
    "qwen3.8-27b": 18_210_531_328, "qwen3.8-27b-nvfp4": 21_492_695_040,
    "qwen3.6-35b-a3b": 22_783_246_080,
}
"""Of the published sets."""
DFLASH_BYTES = {"qwen3.6-35b-a3b": 385_906_176 * 17 // 16}
"""Parameters of the drafter that the set also has, in 8.5 bits."""
ARENA_GIB = {"qwen3.8-27b": (15.92, 16.67), "qwen3.8-27b-nvfp4": (18.98, 19.73)}
"""Published weight arenas: of the text model, and with MTP and draft head."""
DECODE = {  # KV type; decode tok/s at 7,680 and 260,096 tokens
    "qwen3.6-27b": ("int8", 77.6, 54.8), "qwen3.6-27b-nvfp4": ("int8", 86.4, 59.9),
    "qwen3.8-27b": ("fp8", 84.1, 59.2), "qwen3.8-27b-nvfp4": ("fp8", 74.1, 53.4),
    "qwen3.6-35b-a3b": ("int8", 338, 213),
}
MTP = {"spec": "mtp", "draft_tokens": 3, "lm_head_draft": True}


def plan(name, **options):
    return CARDS.plan(name, "rtx5090", **options)


def vision_bytes(hidden: int) -> int:
    """The tower by its formats: patches in Q6, merger in Q8, query, key, value and the first
    projection in Q4, the rest in Q5; norms, positions and biases in bf16."""
    formats, layouts = CARDS.report.registry.formats, CARDS.report.registry.layouts

    def stored(format, *shape):
        layout = next(each.spec for each in layouts.values() if format in each.spec.formats)
        assert format in formats
        return -(-layout.layout.load()().nbytes(format, shape) // 256) * 256

    def bf16(*shape):
        return stored("bf16", *shape)

    width, inner, merged = 1152, 4304, 4 * 1152
    stem = stored("q6_g64_fp16", width, 3 * 2 * 16 * 16) + bf16(width) + bf16(2304, width)
    layer = (
        4 * bf16(width)
        + stored("q4_g64_fp16", 3 * width, width) + bf16(3 * width)
        + stored("q5_g64_fp16", width, width) + bf16(width)
        + stored("q4_g64_fp16", inner, width) + bf16(inner)
        + stored("q5_g64_fp16", width, inner) + bf16(width)
    )
    merger = (
        2 * bf16(width) + stored("q8_g32_fp16", merged, merged) + bf16(merged)
        + stored("q8_g32_fp16", hidden, merged) + bf16(hidden)
    )
    return stem + 27 * layer + merger


def test_all_published_text_models_have_a_card():
    cards = {card.name for pack in CARDS.report.registry.packs.values() for card in pack.spec.cards}
    assert cards == FILE_BYTES.keys()


@pytest.mark.parametrize("name", FILE_BYTES)
def test_sizes_are_those_of_the_published_sets_but_for_resources(name):
    """Tokenizer and catalogue take 13 MB in each set."""
    hidden = CARDS.artifact(name).components["text"].config["hidden_size"]
    known = CARDS.artifact(name).nbytes + vision_bytes(hidden) + DFLASH_BYTES.get(name, 0)
    assert 12.9e6 < FILE_BYTES[name] - known < 13.3e6


@pytest.mark.parametrize("name", ARENA_GIB)
def test_weights_are_those_of_the_published_arenas(name):
    arenas = [plan(name, **options).ledger.lines[0].nbytes / 2**30 for options in ({}, MTP)]
    assert [round(each, 2) for each in arenas] == list(ARENA_GIB[name])


@pytest.mark.parametrize("name", FILE_BYTES)
def test_a_launch_with_and_without_drafts_is_planned(name):
    plain, drafting = plan(name), plan(name, **MTP)
    extra = {each.name.partition("/")[0] for each in drafting.parameters} - {"text"}
    assert extra == {"mtp", "proposal"} and drafting.ledger.fits
    assert {each.name for each in drafting.states} - {each.name for each in plain.states} == {
        "mtp_kv"}


@pytest.mark.parametrize("name", FILE_BYTES)
def test_steps_of_a_token_are_those_of_the_model(name):
    """Streamed parameters by hand: 25.62 and, of 35, 2.945 billion."""
    made = plan(name)
    steps = model_steps(made, made.hardware.figures())
    parameters = sum(sum(part.flops.values()) for part in (steps.target.body, steps.target.head))
    expected = 2.945e9 if "35b" in name else 25.62e9
    assert parameters / 2 == pytest.approx(expected, rel=2e-3)
    assert steps.predictor is None


@pytest.mark.parametrize("name", DECODE)
def test_published_decode_reaches_most_of_the_prediction_at_any_depth(name):
    kv, *published = DECODE[name]
    ratios = []
    for context, speed in zip((7_680, 260_096), published, strict=True):
        made = plan(name, max_context=context + 128, kv_dtype=kv)
        figures = made.hardware.figures()
        work = model_steps(made, figures).decode(context + 64)
        ratios.append(speed * work.seconds(figures))
    assert all(0.84 < ratio < 1 for ratio in ratios)
    assert ratios[0] == pytest.approx(ratios[1], abs=0.04)


def command(monkeypatch, capsys, *words):
    monkeypatch.setenv("NINFER_PLUGINS", "")
    code = main([*words, *(word for module in MODULES for word in ("-p", module))])
    return code, *capsys.readouterr()


def test_the_plan_of_a_card_for_a_card(monkeypatch, capsys):
    code, out, err = command(
        monkeypatch, capsys, "plan", "qwen3.8-27b-nvfp4", "--profile", "rtx5090", "--max-context",
        "240000", "--kv-dtype", "fp8", "--spec", "mtp", "--draft-tokens", "3")
    assert (code, err) == (0, "")
    for text in (
        "20,826,854,848 B", "nvfp4, 112 tensors", "33,280 B (16 layers, fp8)", "mtp_kv", "fits",
        "room for context", "predicted speed on NVIDIA GeForce RTX 5090", "decode at 239999",
        "prompt of 240000", "round at 239996", "verify 4 rows", "draft 3",
        "1.875 | 2.533 | 3.439 tokens a round",
    ):
        assert text in out, text


def test_a_card_passes_the_doctor(monkeypatch, capsys):
    code, out, _ = command(monkeypatch, capsys, "doctor", "qwen3.6-27b-nvfp4", "--profile",
                           "rtx5090")
    assert code == 0
    assert "963 of 963 parameters are bound" in out and "the model is an outline" in out
    assert "nvfp4 [5120, 17408]" in out


def test_a_card_cannot_be_run():
    with pytest.raises(ArtifactError, match="there are no weights"):
        artifact_path("qwen3.6-27b", CARDS.report.registry, lambda *_: None)
