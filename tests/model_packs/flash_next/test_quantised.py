"""Published kinds of quantised checkpoints: the model is what transformers makes of their numbers,
and all that was quantised is stored as it was."""

from __future__ import annotations

import re
from functools import partial

import pytest
import torch
from safetensors.torch import load_file, save_file

from ninfer_convert import objects
from ninfer_convert.conversion import convert
from ninfer_core.artifact.container import open_artifact
from ninfer_fixtures.quantised import fp8_blocks, fp8_shard, modelopt, mxfp8, nvfp4_shard
from ninfer_pack_flash_next.pack import FlashNextPack

PACK = FlashNextPack()
SIZES = {  # groups of NVFP4 are 16 wide
    "hidden_size": 64, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48,
    "ple_embed_dim": 64, "num_hidden_layers": 3, "ple_layer_ids": [2],
    "layer_types": ["linear_attention", "linear_attention", "indexed_attention"],
}
TOKENS = torch.randint(283, (40,), generator=torch.Generator().manual_seed(3)).tolist()
EXPERT, TABLE = re.compile(r"\.experts\.\d+\."), re.compile(r"\.shard_\d+\.weight$")
MIXER = re.compile(r"self_attn\..*proj\.weight$|linear_attn\.(in|out)_proj|shared_expert\.")
NGRAMS, ROWS, BLOCKS = "text/layers/1/ngram/table", "fp8_e4m3fn_row_bf16", "fp8_e4m3fn_g128_fp32"
fp8_in_fp32 = partial(fp8_blocks, dtype=torch.float32)
KINDS = {  # experts of the model and of its predictor, table, mixers; formats but for fp32
    "fp8": (fp8_blocks, fp8_blocks, fp8_shard, None, {ROWS}),  # a block is whole rows here
    "fp8 in fp32": (fp8_in_fp32, fp8_in_fp32, fp8_shard, None, {BLOCKS, ROWS}),
    "mixed precision": (modelopt, fp8_in_fp32, fp8_shard, None, {"nvfp4", BLOCKS, ROWS}),
    "nvfp4, plain predictor": (modelopt, None, fp8_shard, None, {"nvfp4", ROWS}),
    "nvfp4, plain table": (modelopt, modelopt, None, None, {"nvfp4"}),
    "nvfp4 and mxfp8": (modelopt, modelopt, nvfp4_shard, mxfp8, {"nvfp4", "bf16"}),
}


def chooser(kind):
    main, predictor, table, mixer, _ = KINDS[kind]

    def choose(name):
        if EXPERT.search(name):
            return predictor if name.startswith("mtp.") else main
        if TABLE.search(name):
            return table
        return mixer if MIXER.search(name) and not name.startswith("mtp.") else None

    return choose


def split_banks(path):
    """One tensor for each matrix of the predictor's banks, as those who quantise store them."""
    tensors = load_file(path)
    for name in [name for name in tensors if re.search(r"experts\.(gate_up|down)_proj$", name)]:
        stem, _, kind = name.rpartition(".")
        parts = ("gate", "up") if kind == "gate_up_proj" else ("down",)
        for expert, bank in enumerate(tensors.pop(name)):
            for part, matrix in zip(parts, bank.chunk(len(parts)), strict=True):
                tensors[f"{stem}.{expert}.{part}_proj.weight"] = matrix.clone()
    save_file(tensors, path, {"format": "pt"})


@pytest.fixture
def checkpoint(tiny_checkpoint, quantise, tmp_path):
    """``(kind) -> (checkpoint, numbers by tensor, transformers' model of them)``."""

    def make(kind):
        plain = tiny_checkpoint(tmp_path / "plain", "flash_next", **SIZES).path
        if KINDS[kind][1] is not None:
            split_banks(plain / "model.safetensors")
        folder, model = quantise(plain, chooser(kind))
        return folder, load_file(plain / "model.safetensors"), model

    return make


@pytest.mark.parametrize("kind", KINDS)
def test_a_quantised_checkpoint_is_its_numbers(checkpoint, plugins, load, read, tmp_path, kind):
    folder, numbers, model = checkpoint(kind)
    path = tmp_path / "model.ninfer"
    convert(folder, path, pack=PACK, registry=plugins.registry)
    with torch.inference_mode():
        expected = model(torch.tensor([TOKENS])).logits[0]
    for profile in (False, True):
        logits = read(path, profile=profile).logits(TOKENS)
        assert (logits - expected).abs().max() / expected.abs().max() < 1e-5
    weights = load(path)
    shards = [name for name in numbers if TABLE.search(name)]
    ordered = sorted(shards, key=lambda name: int(re.search(r"shard_(\d+)", name)[1]))
    assert torch.equal(weights.tensor(NGRAMS), torch.cat([numbers[name] for name in ordered]))
    for name in (name for name in numbers if EXPERT.search(name)):
        layer, expert, part = re.search(r"layers\.(\d+).*\.(\d+)\.(\w+)_proj", name).groups()
        home = "mtp" if name.startswith("mtp.") else "text"
        stored = weights.tensor(f"{home}/layers/{layer}/moe/experts/{expert}/{part}")
        assert torch.equal(stored.view(numbers[name].shape), numbers[name]), name


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_rounded_on_the_way(checkpoint, plugins, tmp_path, kind):
    path = tmp_path / "model.ninfer"
    report = convert(checkpoint(kind)[0], path, pack=PACK, registry=plugins.registry)
    assert report.formats.keys() == {"fp32", *KINDS[kind][-1]}
    assert all(each.kept == each.objects for each in report.formats.values())


@pytest.mark.parametrize("kind", ["fp8", "mixed precision", "nvfp4 and mxfp8"])
def test_ranges_of_rows_make_the_same_bytes(checkpoint, plugins, tmp_path, monkeypatch, kind):
    folder, payloads = checkpoint(kind)[0], []
    for most in (1 << 24, 1):
        monkeypatch.setattr(objects, "RANGE_ELEMENTS", most)
        path = tmp_path / f"{most}.ninfer"
        convert(folder, path, pack=PACK, registry=plugins.registry)
        artifact = open_artifact(path)
        last = [*artifact.objects.values()][-1]
        payloads.append(b"".join(artifact.shards.read(0, last.offset + last.bytes)))
        assert artifact.objects[NGRAMS].shape[0] > objects.RANGE_ROWS
    assert payloads[0] == payloads[1]
