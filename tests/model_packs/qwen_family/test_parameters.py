"""Names, shapes and inputs of parameters are those of official artifacts."""

from __future__ import annotations

from math import prod

import pytest

from ninfer_core.api import ParameterSpec
from ninfer_pack_qwen_dense.cards import qwen3_6_27b
from ninfer_pack_qwen_moe.cards import qwen3_6_35b_a3b
from ninfer_pack_qwen_moe.pack import QwenMoePack

V, H = 248320, 5120
MIXER = "text/layers/{}/mixer_input"
ATTENTION = {  # of Qwen3.6-27B: 24 heads in 4 groups, of 256
    "query": (6144, H), "gate": (6144, H), "key": (1024, H), "value": (1024, H),
    "query_norm": (256,), "key_norm": (256,), "output": (H, 6144),
}
GDN = {  # 16 key heads and 48 value heads of 128
    "query": (2048, H), "key": (2048, H), "value": (6144, H), "z": (6144, H),
    "a_projection": (48, H), "b_projection": (48, H), "convolution": (4, 10240), "a_log": (48,),
    "dt_bias": (48,), "norm": (128,), "output": (H, 6144),
}
MLP = {"gate": (17408, H), "up": (17408, H), "down": (H, 17408)}


def block(name, mixer, shapes):
    """Name -> shape and input of everything in a layer."""
    table = {"input_norm": ((H,), ""), "post_attention_norm": ((H,), "")}
    for part, shape in shapes.items():
        entered = "mixer_input" if part != "output" else f"{mixer}/gated_output"
        table[f"{mixer}/{part}"] = shape, entered if is_matrix(part, shape) else ""
    for part, shape in MLP.items():
        table[f"mlp/{part}"] = shape, "mlp/product" if part == "down" else "ffn_input"
    return {f"{name}/{part}": (shape, f"{name}/{entered}" if entered else "")
            for part, (shape, entered) in table.items()}


def is_matrix(part, shape):
    return len(shape) == 2 and part != "convolution"


def dense_table():
    table = {
        "text/token_embedding": ((V, H), ""), "text/final_norm": ((H,), ""),
        "text/output_head": ((V, H), "text/final_hidden mtp/final_hidden"),
        "mtp/input_projection": ((H, 2 * H), "mtp/stem_input"), "mtp/embedding_norm": ((H,), ""),
        "mtp/hidden_norm": ((H,), ""), "mtp/final_norm": ((H,), ""),
        "proposal/head": ((131072, H), "mtp/final_hidden"), "proposal/token_ids": ((131072,), ""),
        **block("mtp/layers/0", "attention", ATTENTION),
    }
    for layer in range(64):
        mixer = ("attention", ATTENTION) if (layer + 1) % 4 == 0 else ("gdn", GDN)
        table |= block(f"text/layers/{layer}", *mixer)
    return table


@pytest.fixture(scope="module")
def dense():
    return {each.spec.name: each for each in qwen3_6_27b().parameters}


@pytest.fixture(scope="module")
def experts():
    return {each.spec.name: each for each in qwen3_6_35b_a3b().parameters}


def test_dense_parameters_are_the_official_ones(dense):
    found = {name: (each.spec.shape, " ".join(each.spec.inputs)) for name, each in dense.items()}
    assert found == dense_table()


def test_what_is_multiplied_with_something_is_a_projection(dense):
    kinds = {name: each.spec.kind for name, each in dense.items()}
    table = dense_table()
    assert {n for n, kind in kinds.items() if kind == "projection"} == {
        name for name, (_, entered) in table.items() if entered}
    assert [name for name, kind in kinds.items() if kind == "table"] == ["text/token_embedding"]


def test_members_of_one_object_follow_each_other(dense, experts):
    """In the order in which blocks name them, so that one product reads them without a copy."""
    for parameters in (dense, experts):
        parents = [each.parent for each in parameters.values() if each.parent]
        changes = [parent for i, parent in enumerate(parents) if parents[i - 1] != parent]
        assert len(changes) == len(set(parents))
    members = {}
    for name, each in dense.items():
        members.setdefault(each.parent.removeprefix("text/layers/"), []).append(
            name.rpartition("/")[2])
    assert members["3/attention/query_key_gate_value"] == ["query", "key", "gate", "value"]
    assert members["4/gdn/query_key_value_z"] == ["query", "key", "value", "z"]
    assert members["4/gdn/a_b"] == ["a_projection", "b_projection"]
    assert members["4/mlp/gate_up"] == ["gate", "up"]


def test_experts_are_banks(experts):
    name = "text/layers/38/moe"
    inner = {"gate": (512, 2048), "up": (512, 2048), "down": (2048, 512)}
    for expert in (0, 255):
        for part, shape in inner.items():
            entered = f"moe/experts/{expert}/product" if part == "down" else "ffn_input"
            found = experts[f"{name}/experts/{expert}/{part}"]
            assert found.spec == ParameterSpec(
                f"{name}/experts/{expert}/{part}", shape, inputs=(f"text/layers/38/{entered}",))
    order = [each for each in experts if each.startswith(f"{name}/experts/")]
    assert order[:3] == [f"{name}/experts/{each}" for each in ("0/gate", "0/up", "1/gate")]
    assert order[512:514] == [f"{name}/experts/{each}" for each in ("0/down", "1/down")]
    assert len(order) == 768
    shapes = {part: experts[f"{name}/{part}"].spec.shape for part in (
        "router", "shared_score", "shared/gate", "shared/up", "shared/down")}
    assert shapes == {
        "router": (256, 2048), "shared_score": (1, 2048), "shared/gate": (512, 2048),
        "shared/up": (512, 2048), "shared/down": (2048, 512),
    }
    assert experts[f"{name}/shared/down"].spec.inputs == (f"{name}/shared/product",)
    assert "mtp/layers/0/moe/experts/255/down" in experts


def test_35b_has_its_published_number_of_parameters(experts):
    """35,951,822,704 with the vision tower of 27 layers, without it and the draft head less."""
    text = sum(prod(each.spec.shape) for name, each in experts.items()
               if not name.startswith("proposal/"))
    vision = vision_parameters(depth=27, width=1152, inner=4304, out=2048)
    assert text + vision == 35_951_822_704


def vision_parameters(depth, width, inner, out):
    layer = 4 * width + 4 * width * width + 4 * width + 2 * width * inner + inner + width
    merger = 2 * width + (4 * width) ** 2 + 4 * width + 4 * width * out + out
    return depth * layer + width * 1536 + width + 2304 * width + merger


def test_states():
    pack = QwenMoePack()
    config = pack.configure(pack.tiny())
    states = {each.name: each for each in pack.states(config)}
    assert states["kv"].layers == 1
    assert states["mtp_kv"].layers == 1
    assert [plane.shape for plane in states["kv"].planes] == [(1, 24), (1, 24)]
    convolution, recurrence = states["gdn_convolution"], states["gdn_state"]
    assert convolution.layers == recurrence.layers == 2
    assert (convolution.shape, convolution.record_shape) == ((3, 112), (112,))
    assert (recurrence.shape, recurrence.record_shape) == ((6, 16, 8), (2 * 16 + 6 * 8 + 12,))
    assert {convolution.dtype, recurrence.dtype} == {"float32"}
