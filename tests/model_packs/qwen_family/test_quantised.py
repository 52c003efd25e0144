"""Quantised checkpoints: the model is what transformers makes of the dequantised numbers."""

from __future__ import annotations

import re

import pytest
import torch

from ninfer_convert.conversion import convert_checkpoint
from ninfer_convert.recipe import load_recipe
from ninfer_convert.source import open_source
from ninfer_core.api import ArtifactError
from ninfer_core.artifact.container import open_artifact
from ninfer_fixtures.quantised import (
    compressed_tensors,
    fp8_blocks,
    fp8_rows,
    fp8_tensor,
    modelopt,
)

SIZES = {
    "hidden_size": 64, "num_hidden_layers": 2, "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
}
WIDTHS = {  # groups of NVFP4 are 16 wide, blocks of FP8 128
    "dense": {"intermediate_size": 160},
    "moe": {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 48},
}
TOKENS = torch.randint(283, (40,), generator=torch.Generator().manual_seed(3)).tolist()
MIXER = re.compile(r"(self_attn|linear_attn)\.(q|k|v|o|out|in)_proj(_qkv|_z)?\.weight$")
MLP = re.compile(r"(mlp\.|expert\.|experts\.\d+\.)(gate|up|down)_proj\.weight$|^lm_head\.weight$")

GROUPWISE = ("q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16")
SCHEMES = {  # how mixers and MLPs are stored, the predictor's too or not
    "fp8 blocks": (fp8_blocks, fp8_blocks, True),
    "modelopt": (fp8_tensor, modelopt, False),
    "compressed tensors": (fp8_rows, compressed_tensors, False),
    "nvfp4 throughout": (modelopt, modelopt, True),
}


@pytest.fixture
def quantised(tiny_checkpoint, quantise, tmp_path):
    """``(kind, scheme, change) -> (checkpoint, transformers' model of its numbers)``."""

    def make(kind, scheme, change=lambda tensors: tensors):
        for_mixer, for_mlp, with_predictor = SCHEMES.get(scheme, (None, None, False))

        def choose(name):
            chosen = for_mixer if MIXER.search(name) else for_mlp if MLP.search(name) else None
            if chosen is fp8_blocks and name == "lm_head.weight":
                return None
            return None if name.startswith("mtp.") and not with_predictor else chosen

        plain = tiny_checkpoint(tmp_path / "plain", kind, **SIZES, **WIDTHS[kind]).path
        return quantise(plain, choose, change)

    return make


@pytest.fixture
def converted(plugins, tmp_path):
    """``(kind, source, recipe=None, **options) -> artifact``."""

    def run(kind, source, recipe=None, **options):
        path, pack = tmp_path / "model.ninfer", plugins.registry.packs[f"qwen_{kind}"].spec
        convert_checkpoint(
            open_source(source), path, pack=pack.pack.load()(), registry=plugins.registry,
            recipe=recipe and load_recipe(recipe, pack.recipes), **options,
        )
        return path

    return run


@pytest.mark.parametrize("kind", ["dense", "moe"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_quantised_checkpoint_is_its_numbers(quantised, converted, read, scheme, kind):
    """And all that was quantised is stored as it was, bit for bit."""
    source, model = quantised(kind, scheme)
    path = converted(kind, source)
    for profile in (False, True):
        assert error(read(kind, path, profile=profile), model) < 1e-5
    assert formats_of(path) == {
        "fp8 blocks": {"fp32", "fp8_e4m3fn_row_bf16", "fp8_e4m3fn_g128_fp32"},
        "modelopt": {"fp32", "nvfp4", "fp8_e4m3fn_g128_fp32"},
        "compressed tensors": {"fp32", "nvfp4", "fp8_e4m3fn_row_bf16"},
        "nvfp4 throughout": {"fp32", "nvfp4"},
    }[scheme]


def error(reader, model):
    with torch.inference_mode():
        expected = model(torch.tensor([TOKENS])).logits[0]
    return ((reader.logits(TOKENS) - expected).abs().max() / expected.abs().max()).item()


def formats_of(path):
    objects = open_artifact(path).objects.values()
    return {each.format for each in objects if each.kind == "tensor"}


@pytest.mark.parametrize(("kind", "recipe", "scheme", "formats"), [
    ("dense", "qwen3_6_27b", None, {"bf16", "fp32", *GROUPWISE}),
    ("dense", "qwen3_8_27b", None, {"bf16", "fp32", *GROUPWISE} - {"q6_g64_fp16"}),
    ("dense", "qwen3_6_27b_nvfp4", "nvfp4 throughout", {"bf16", "fp32", "nvfp4", "q8_g32_fp16"}),
    ("dense", "qwen3_8_27b_nvfp4", "compressed tensors",
     {"bf16", "fp32", "nvfp4", "fp8_e4m3fn_row_bf16", "q8_g32_fp16"}),
    ("moe", "qwen3_6_35b_a3b", None, {"bf16", "fp32", *GROUPWISE}),
])
def test_official_recipes(quantised, converted, read, kind, recipe, scheme, formats):
    """The model stays close to the checkpoint, in one file and in many small ones alike."""
    source, model = quantised(kind, scheme)
    path = converted(kind, source, recipe)
    reader = read(kind, path)
    assert formats_of(path) == formats
    assert 1e-5 < error(reader, model) < 0.25
    logits = reader.logits(TOKENS)
    path.unlink()
    path = converted(kind, source, recipe, max_file_bytes=1 << 16)
    assert len([*path.parent.glob("model.ninfer*")]) > 3
    assert torch.equal(read(kind, path).logits(TOKENS), logits)


@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_a_missing_scale_is_named(quantised, converted, kind):
    name = "model.layers.0.linear_attn.in_proj_qkv.weight_scale_inv"
    source, _ = quantised(
        kind, "fp8 blocks", lambda tensors: {n: t for n, t in tensors.items() if n != name})
    with pytest.raises(ArtifactError, match=r"in_proj_qkv\.weight"):
        converted(kind, source)


def test_an_inverted_scale_is_refused(quantised, converted):
    def invert(tensors):
        return {name: 1 / each if name.endswith("_scale_2") else each
                for name, each in tensors.items()}

    source, _ = quantised("dense", "modelopt", invert)
    with pytest.raises(ArtifactError, match="not plausible"):
        converted("dense", source)
