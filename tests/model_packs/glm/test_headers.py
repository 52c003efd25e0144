"""Headers of the published checkpoints, made of the tables of their sheet: ``ninfer doctor`` finds
a place for every tensor, and counts them."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

from ninfer_convert.survey import survey
from ninfer_fixtures.headers import Header, read_table, write_headers

DATA = Path(__file__).parent / "data"
L = "model.language_model.layers."
MATRICES = {  # layers; name, rows, columns
    "dense": ("{0..2}", (("mlp.{gate,up}_proj", 12288, 4096), ("mlp.down_proj", 4096, 12288))),
    "shared": ("{3..45}", (("mlp.shared_experts.{gate,up}_proj", 2048, 4096),
                           ("mlp.shared_experts.down_proj", 4096, 2048))),
    "latent": ("{3..43..4,45}", (
        ("self_attn.q_a_proj", 1536, 4096), ("self_attn.q_b_proj", 16384, 1536),
        ("self_attn.kv_a_proj_with_mqa", 512, 4096), ("self_attn.o_proj", 4096, 16384))),
    "experts": ("{3..44}", (("mlp.experts.{0..287}.{gate,up}_proj", 2048, 4096),
                            ("mlp.experts.{0..287}.down_proj", 4096, 2048))),
    "mtp": ("45", (("mlp.experts.{0..287}.{gate,up}_proj", 2048, 4096),
                   ("mlp.experts.{0..287}.down_proj", 4096, 2048))),
}
BF16 = "{0}.weight BF16 {1} {2}\n"
FP8 = "{0}.weight F8_E4M3 {1} {2}\n{0}.weight_scale_inv F32 {3} {4}\n"
NVFP4 = ("{0}.weight U8 {1} {5}\n{0}.weight_scale F8_E4M3 {1} {6}\n"
         "{0}.{{weight_scale_2,input_scale}} F32\n")
FORMS = {
    "bf16": dict.fromkeys(MATRICES, BF16), "fp8": dict.fromkeys(MATRICES, FP8),
    "nvidia": {**dict.fromkeys(MATRICES, BF16), "dense": NVFP4, "experts": NVFP4},
}
KEPT = {  # vectors and mHC: what else is in FP32
    "bf16": "F32", "fp8": "F32", "nvidia": "BF16",
}
CHECKPOINTS = {  # tensors, bytes of files
    "bf16": (38_770, 642_676_397_788), "fp8": (76_108, 328_326_771_576),
    "nvidia": (147_661, 204_439_103_396),
}
FIVE_LAYERS = (  # of which one has experts
    ("{0..44..4,1..41..4,2..42..4}", "{0..2}"), ("{3..43..4,45}", "{3,4}"), ("{0..45}", "{0..4}"),
    ("{0..44}", "{0..3}"), ("{3..45}", "{3,4}"), ("{3..44}", "3"), ("layers.45", "layers.4"))
LINEAR = {"num_heads": 64, "head_dim": 128, "short_conv_kernel_size": 4, "gate_lower_bound": -5.0}
KINDS = ["linear_attention"] * 3 + ["deepseek_sparse_attention"]
TEXT = {
    "model_type": "glm5_next_text", "vocab_size": 154880, "hidden_size": 4096,
    "num_nextn_predict_layers": 1, "rms_norm_eps": 1e-5, "intermediate_size": 12288,
    "moe_intermediate_size": 2048, "first_k_dense_replace": 3, "n_routed_experts": 288,
    "num_experts_per_tok": 8, "n_shared_experts": 1, "routed_scaling_factor": 2.5,
    "swiglu_limit": 10.0, "num_attention_heads": 64, "q_lora_rank": 1536, "kv_lora_rank": 512,
    "qk_nope_head_dim": 256, "qk_rope_head_dim": 0, "v_head_dim": 256,
    "linear_attn_config": LINEAR, "index_n_heads": 32, "index_head_dim": 128, "index_topk": 2048,
    "index_kpool": 4, "hc_mult": 4, "hc_eps": 1e-6, "hc_sinkhorn_iters": 20,
    "max_position_embeddings": 1048576,
}


def headers_of(name, cuts=()):
    """Of a published checkpoint by tensor, with fewer layers if ``cuts`` are made."""
    text = (DATA / "tensors.txt").read_text()
    text += f"{L}{{0..44}}.hc_{{attn,ffn}}_base {KEPT[name]} 24\n"
    text += f"{L}{{0..44}}.hc_{{attn,ffn}}_scale {KEPT[name]} 3\n"
    convolutions = "F32" if name == "nvidia" else "BF16"
    linear = "{0..44..4,1..41..4,2..42..4}"
    text += f"{L}{linear}.self_attn.{{q,k,v}}_conv1d.weight {convolutions} 8192 1 4\n"
    for kind, (layers, matrices) in MATRICES.items():
        for matrix, rows, columns in matrices:
            text += FORMS[name][kind].format(
                f"{L}{layers}.{matrix}", rows, columns, -(-rows // 128), -(-columns // 128),
                columns // 2, columns // 16)
    for whole, part in cuts:
        text = text.replace(whole, part)
    return read_table(text)


@pytest.fixture
def write(tmp_path):
    """``(headers, num_layers=45) -> folder`` of a checkpoint without its weights."""

    def make(headers, num_layers=45):
        text = {**TEXT, "num_hidden_layers": num_layers, "layer_types": (KINDS * 12)[:num_layers]}
        config = {"architectures": ["Glm5NextForConditionalGeneration"],
                  "model_type": "glm5_next", "text_config": text}
        one = struct.pack("<f", 1.0)  # matrices that are no experts are grouped by these
        values = {name: one for name in headers if re.search(r"mlp\.\w+\.weight_scale_2", name)}
        return write_headers(tmp_path / "headers", headers, config=config, values=values)

    return make


def test_the_doctor_counts_the_published_parameters_and_tensors(write, doctor):
    """Of the primary upload, which is in blocks of FP8."""
    code, out, err = doctor("glm", write(headers_of("fp8")))
    rows = [re.split(r"\s{2,}", line) for line in out.splitlines()[:9]]
    assert code == 0, err
    assert rows[1:7] == [
        ["checkpoint", "321,323,031,390 parameters", "in 38,770 tensors, with scales 76,108"],
        ["- BF16", "6,926,096,640 elements", "in 1,141 tensors"],
        ["- F32", "19,484,766 elements", "in 37,629 tensors"],  # as published
        ["- F8_E4M3", "314,396,639,232 elements", "in 37,338 tensors"],
        ["- used", "320,759,404,382 parameters", "in 38,423 tensors"],
        ["- ignored", "563,627,008 parameters",
         "in 347 tensors: the vision tower is not part of the text model"],
    ]


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_files_have_the_published_tensors_and_size(name):
    """So the tables are those of the files. Of one the bytes are those of tensors alone, of the
    others with headers, or with more vectors in FP32 than are known."""
    headers, (tensors, size) = headers_of(name), CHECKPOINTS[name]
    assert len(headers) == tensors
    left = size - sum(header.nbytes for header in headers.values())
    assert left == 0 if name == "fp8" else 0 < left < 1.5e-4 * size


def test_a_checkpoint_of_nvfp4_with_a_plain_predictor(write, plugins):
    artifact = survey(write(headers_of("nvidia", FIVE_LAYERS), 4), plugins)
    found = artifact.provenance["checkpoint"]
    assert found["stored"]["U8"] == [9 + 288 * 3, 9 * 12288 * 2048 + 288 * 3 * 2048 * 2048]
    stored = {each.id: (each.format, each.layout) for each in artifact.objects.values()
              if each.kind == "tensor"}
    bank = ("nvfp4", "expert_block_scale_k16_m128x4_v1")
    assert stored["text/layers/3/moe/experts/gate_up"] == bank
    assert stored["text/layers/0/mlp/gate_up"] == ("nvfp4", "block_scale_k16_m128x4_v1")
    assert stored["mtp/layers/0/moe/experts/down"] == ("bf16", "contiguous_le_v1")
    assert stored["text/layers/0/kda/convolution"] == ("fp32", "contiguous_le_v1")


EXPERT = f"{L}3.mlp.experts."


@pytest.mark.parametrize(("change", "message"), [
    (lambda tensors: tensors.pop(f"{EXPERT}287.down_proj.weight"),
     r"lacks a tensor.*experts\.287\.down_proj"),
    (lambda tensors: tensors.update(
        {f"{EXPERT}288.down_proj.weight": Header("BF16", (4096, 2048))}),
     r"no place in the model: .*experts\.288"),
    (lambda tensors: tensors.update(
        {f"{EXPERT}down_proj": Header("BF16", (288, 4096, 2048))}),
     r"no place in the model: .*experts\.0\.down_proj"),
    (lambda tensors: tensors.update(
        {f"{L}3.mlp.gate.weight_scale_inv": Header("F32", (3, 32))}),
     r"not understood .*mlp\.gate\.weight.*weight_scale_inv"),
    (lambda tensors: tensors.pop(f"{L}4.shared_head.norm.weight"), r"lacks .*4\.shared_head\.norm"),
    (lambda tensors: tensors.pop(f"{L}4.eh_proj.weight"), r"no place in the model: .*layers\.4\."),
    (lambda tensors: tensors.update({f"{L}4.hc_attn_fn": Header("BF16", (24, 16384))}),
     r"no place in the model: .*4\.hc_attn_fn"),
    (lambda tensors: tensors.update({"model.norm.weight": Header("BF16", (4096,))}),
     r"no place in the model: model\.norm\.weight"),
    (lambda tensors: tensors.update({
        f"{L}3.self_attn.indexer.index_kpool_compress_ape": Header("BF16", (16, 128))}),
     r"another shape .*\[16, 128\].*should be \[4, 128\]"),
])
def test_what_is_missing_or_too_much_is_named(write, doctor, change, message):
    """A predictor with half its tensors, or another's; matrices stacked and apart; the pools that
    are transformers' default."""
    headers = headers_of("bf16", FIVE_LAYERS)
    change(headers)
    code, out, err = doctor("glm", write(headers, 4))
    assert code == 1 and re.search(message, err) and not out, err
