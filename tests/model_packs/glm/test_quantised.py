"""Published kinds of quantised checkpoints: the model is what transformers makes of their numbers,
and all that was quantised is stored as it was."""

from __future__ import annotations

import re
from functools import partial

import pytest
import torch
from safetensors.torch import load_file

from ninfer_convert.conversion import convert
from ninfer_fixtures.quantised import compressed_tensors, fp8_blocks, modelopt, mxfp8
from ninfer_pack_glm.pack import GlmPack

PACK = GlmPack()
SIZES = {  # groups of NVFP4 are 16 wide
    "hidden_size": 64, "intermediate_size": 80, "moe_intermediate_size": 48, "q_lora_rank": 48,
    "kv_lora_rank": 48, "v_head_dim": 16, "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "indexed_attention", "linear_attention"],
    "mlp_layer_types": ["dense", "sparse", "sparse"],
}
TOKENS = torch.randint(283, (50,), generator=torch.Generator().manual_seed(3)).tolist()
EXPERT = re.compile(r"\.experts\.\d+\.\w+\.weight$")
SHARED = re.compile(r"shared_experts\.\w+\.weight$")
DENSE = re.compile(r"layers\.0\.mlp\.\w+\.weight$")
LATENT = re.compile(r"self_attn\.(q_a_proj|q_b_proj|kv_a_proj_with_mqa|o_proj)\.weight$")
LINEAR = re.compile(
    r"layers\.1\.self_attn\.\w+_proj\w*\.weight$|layers\.[02]\.self_attn\.[qkv]_proj")
MTP = "layers.3."
fp8 = partial(fp8_blocks, dtype=torch.float32)
BLOCKS = "fp8_e4m3fn_g128_fp32"
KINDS = {  # patterns in order, each with a form; of the predictor's experts; formats but for fp32
    "fp8": ({EXPERT: fp8, SHARED: fp8, DENSE: fp8, LATENT: fp8}, fp8, {BLOCKS}),
    "modelopt": ({EXPERT: modelopt, DENSE: modelopt}, None, {"nvfp4"}),
    "compressed tensors": (
        {EXPERT: compressed_tensors, SHARED: compressed_tensors}, compressed_tensors, {"nvfp4"}),
    "predictor in mxfp8": ({EXPERT: modelopt}, mxfp8, {"nvfp4", "bf16"}),
    "all but experts in mxfp8": (
        {EXPERT: modelopt, SHARED: mxfp8, DENSE: mxfp8, LINEAR: mxfp8}, modelopt,
        {"nvfp4", "bf16"}),
}


def chooser(kind):
    patterns, predictor, _ = KINDS[kind]

    def choose(name):
        if MTP in name and "visual" not in name:
            return predictor if EXPERT.search(name) else None
        return next((form for each, form in patterns.items() if each.search(name)), None)

    return choose


@pytest.fixture
def converted(tiny_glm, quantise, plugins, tmp_path):
    """``(kind) -> (artifact, report, numbers by tensor, transformers' model of them)``."""

    def make(kind):
        plain = tiny_glm(tmp_path / "plain", **SIZES).path
        folder, model = quantise(plain, chooser(kind))
        path = tmp_path / "model.ninfer"
        report = convert(folder, path, pack=PACK, registry=plugins.registry)
        return path, report, load_file(plain / "model.safetensors"), model

    return make


@pytest.mark.parametrize("kind", KINDS)
def test_a_quantised_checkpoint_is_its_numbers(converted, load, read_glm, kind):
    path, report, numbers, model = converted(kind)
    with torch.inference_mode():
        expected = model(torch.tensor([TOKENS])).logits[0]
    for profile in (False, True):
        logits = read_glm(path, profile=profile).logits(TOKENS)
        assert (logits - expected).abs().max() / expected.abs().max() < 1e-5
    weights = load(path)
    for name in (name for name in numbers if EXPERT.search(name)):
        layer, expert, part = re.search(r"layers\.(\d+).*\.(\d+)\.(\w+)_proj", name).groups()
        home = "mtp/layers/0" if layer == "3" else f"text/layers/{layer}"
        stored = weights.tensor(f"{home}/moe/experts/{expert}/{part}")
        assert torch.equal(stored.view(numbers[name].shape), numbers[name]), name
    assert report.formats.keys() == {"fp32", *KINDS[kind][-1]}
    assert all(each.kept == each.objects for each in report.formats.values())


def test_keys_of_a_quantised_projection_lie_across_its_scales(
    tiny_glm, quantise, plugins, load, tmp_path
):
    """So they are stored in bf16; its values keep their bits."""
    plain, up = tiny_glm(tmp_path / "plain", **SIZES).path, re.compile(r"kv_b_proj\.weight$")
    folder, _ = quantise(plain, lambda name: fp8 if up.search(name) else None)
    path = tmp_path / "model.ninfer"
    convert(folder, path, pack=PACK, registry=plugins.registry)
    numbers = load_file(plain / "model.safetensors")
    numbers = numbers["model.language_model.layers.1.self_attn.kv_b_proj.weight"]
    keys, values = numbers.unflatten(0, (3, -1)).split((10, 16), 1)
    key_up, value_up = (load(path).weight(f"text/layers/1/attention/{part}_up")
                        for part in ("key", "value"))
    assert (key_up.info.format.name, value_up.info.format.name) == ("bf16", BLOCKS)
    assert key_up.dense().equal(keys.mT.flatten(0, 1).bfloat16().float())
    assert value_up.dense().equal(values.flatten(0, 1))
