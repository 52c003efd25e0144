"""Headers of the published checkpoints, made of the tables of their sheet: ``ninfer doctor`` finds
a place for every tensor, and counts them."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path

import pytest

from ninfer_convert.survey import survey
from ninfer_fixtures.headers import Header, read_table, write_headers

DATA = Path(__file__).parent / "data"
PLE = "model.language_model.layers.1.ple.ple_embedding."
CONSTANTS = {  # published values
    "layer_multipliers": [23703573157769, 20109073645365, 8052911324071],
    "ngram_heads_vocab_sizes": [
        20000003, 20000023, 20000033, 20000047, 20000059, 20000063, 20000069, 20000077,
        20000081, 20000093, 20000107, 20000147, 20000153, 20000159, 20000161, 20000171],
    "ngram_heads_offsets": [
        0, 20000003, 40000026, 60000059, 80000106, 100000165, 120000228, 140000297,
        160000374, 180000455, 200000548, 220000655, 240000802, 260000955, 280001114, 300001275],
}
MAIN, MTP = "model.language_model.layers.{0..47}.mlp.experts", "mtp.layers.0.mlp.experts"
SHARD = f"{PLE}ngram_embedding.shard_{{0..127}}.weight"
STACKED = """
    {0}.gate_up_proj BF16 512 1280 2560
    {0}.down_proj BF16 512 2560 640
"""
FP8 = """
    {0}.{{0..511}}.{{gate,up}}_proj.weight F8_E4M3 640 2560
    {0}.{{0..511}}.{{gate,up}}_proj.weight_scale_inv BF16 5 20
    {0}.{{0..511}}.down_proj.weight F8_E4M3 2560 640
    {0}.{{0..511}}.down_proj.weight_scale_inv BF16 20 5
"""
NVFP4 = """
    {0}.{{0..511}}.{{gate,up}}_proj.weight U8 640 1280
    {0}.{{0..511}}.{{gate,up}}_proj.weight_scale F8_E4M3 640 160
    {0}.{{0..511}}.down_proj.weight U8 2560 320
    {0}.{{0..511}}.down_proj.weight_scale F8_E4M3 2560 40
    {0}.{{0..511}}.{{gate,up,down}}_proj.{{weight_scale_2,input_scale}} F32
"""
PLAIN_TABLE = f"{SHARD} BF16 2500012 160"
FP8_TABLE = f"""
    {SHARD} F8_E4M3 2500012 160
    {PLE}ngram_embedding.weight_scale BF16 1
"""
CHECKPOINTS = {  # and the GiB of their files
    "bf16": ([STACKED.format(MAIN), STACKED.format(MTP), PLAIN_TABLE], 335.28),
    "fp8": ([FP8.format(MAIN), FP8.format(MTP), FP8_TABLE], 172.78),
    "nvidia": ([NVFP4.format(MAIN), FP8.format(MTP), FP8_TABLE], 123.5),
    "radixark": ([NVFP4.format(MAIN), STACKED.format(MTP), FP8_TABLE], 125.87),
    "inferact": ([NVFP4.format(MAIN), NVFP4.format(MTP), PLAIN_TABLE], 170.2),
}
FOUR_LAYERS = (
    ("{0..44..4,1..45..4,2..46..4}", "{0..2}"), ("{3..47..4}", "3"), ("{0..47}", "{0..3}"))


def headers_of(name, cuts=()):
    """Of a published checkpoint by tensor, with fewer layers if ``cuts`` are made."""
    text = (DATA / "tensors.txt").read_text() + "\n".join(CHECKPOINTS[name][0])
    for whole, part in cuts:
        text = text.replace(whole, part)
    return read_table(text)


@pytest.fixture
def write(tmp_path):
    """``(headers, num_layers=48) -> folder`` of a checkpoint without its weights."""

    def make(headers, num_layers=48):
        values = {f"{PLE}{part}": struct.pack(f"<{len(each)}q", *each)
                  for part, each in CONSTANTS.items()}
        config = json.loads((DATA / "config.json").read_text())
        text = config["text_config"]
        text["num_hidden_layers"] = num_layers
        text["layer_types"] = text["layer_types"][:num_layers]
        return write_headers(tmp_path / "headers", headers, config=config, values=values)

    return make


def test_the_doctor_counts_the_published_parameters_and_tensors(write, doctor):
    code, out, _ = doctor("flash_next", write(headers_of("bf16")))
    rows = [re.split(r"\s{2,}", line) for line in out.splitlines()[:9]]
    assert code == 0
    assert rows[:8] == [
        ["claim", "flash_next", "score 100: architecture Qwen4ExpForCausalLM"],
        ["checkpoint", "179,999,981,424 parameters", "in 1,658 tensors, with scales 1,658"],
        ["- BF16", "179,999,981,424 elements", "in 1,655 tensors"],
        ["- I64", "35 elements", "in 3 tensors"],
        ["- used", "179,551,050,368 parameters", "in 1,322 tensors"],
        ["- ignored", "448,931,056 parameters",
         "in 333 tensors: the vision tower is not part of the text model"],
        ["- ignored", "0 parameters", "in 3 tensors: computed from the config"],
        ["weights", "76459 of 76459 parameters are bound"],
    ]


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_files_have_the_published_size(name):
    """So the tables are those of the files."""
    size = sum(header.nbytes for header in headers_of(name).values()) / 2**30
    assert size == pytest.approx(CHECKPOINTS[name][1], abs=0.06)


def test_a_checkpoint_of_mixed_precision(write, plugins):
    """NVFP4 experts with a number for each, a predictor in blocks of FP8, a table with one scale
    for all its pieces."""
    artifact = survey(write(headers_of("nvidia", FOUR_LAYERS), 4), plugins)
    found = artifact.provenance["checkpoint"]
    assert found["stored"]["U8"] == [4 * 512 * 3, 4 * 512 * 3 * 640 * 2560 // 2]
    stored = {each.id: (each.shape, each.layout) for each in artifact.objects.values()
              if each.kind == "tensor"}
    assert stored["text/layers/1/ngram/table"] == ((320_001_536, 160), "row_scale_v1")
    assert stored["text/layers/3/moe/experts/gate_up"] == (
        (1024, 640, 2560), "expert_block_scale_k16_m128x4_v1")
    assert stored["mtp/layers/0/moe/experts/down"] == ((512 * 2560, 640), "row_scale_g128_v1")


@pytest.mark.parametrize(("change", "message"), [
    (lambda tensors: tensors.pop("model.language_model.layers.2.mlp.gate.weight"),
     "lacks a tensor.*layers.2.mlp.gate.weight"),
    (lambda tensors: tensors.update({"mtp.fc_hidden.weight": Header("BF16", (2560, 2561))}),
     r"another shape \[mtp.fc_hidden.weight\].*2560, 2561"),
    (lambda tensors: tensors.update({"model.extra.weight": Header("BF16", (2, 2))}),
     "no place in the model: model.extra.weight"),
    (lambda tensors: tensors.update(
        {f"{PLE}ngram_embedding.shard_100.weight": Header("BF16", (2500011, 160))}),
     "tensors do not make up a parameter"),
    (lambda tensors: tensors.update(
        {f"{PLE}ngram_embedding.shard_128.weight": tensors.pop(
            f"{PLE}ngram_embedding.shard_127.weight")}),
     "lacks a tensor.*shard_127.weight"),
    (lambda tensors: tensors.update(
        {f"{MTP}.511.gate_proj.weight": Header("BF16", (640, 2560))}),
     "no place in the model: mtp.layers.0.mlp.experts.511.gate_proj.weight"),
    (lambda tensors: tensors.pop("mtp.hyper_connection_mixer.hc_norm.weight"),
     "lacks a tensor.*mtp.hyper_connection_mixer.hc_norm.weight"),
    (lambda tensors: tensors.update(
        {"model.hyper_connection_mixer.block_inject_weight.weight": Header("BF16", (4, 10240))}),
     "no place in the model: model.hyper_connection_mixer"),
])
def test_what_is_missing_or_too_much_is_named(write, doctor, change, message):
    headers = headers_of("bf16", FOUR_LAYERS)
    change(headers)
    code, out, err = doctor("flash_next", write(headers, 4))
    assert code == 1 and re.search(message, err) and not out
