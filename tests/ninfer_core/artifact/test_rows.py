"""Rows of parameters: cut out of objects and stacked, as views where that is possible."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace

import pytest
import torch

from ninfer_artifact_writer.writer import ArtifactWriter
from ninfer_core.api import ArtifactError, LayoutSpec
from ninfer_core.artifact.catalogue import Part
from ninfer_core.artifact.container import open_artifact
from ninfer_core.artifact.layouts.planar import PlanarLayout
from ninfer_core.artifact.rows import rows_of, shape_of
from ninfer_core.artifact.store import load_weights

GROUPED = ["q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16"]
ROW_FORMATS = ["fp32", "bf16", "fp8_e4m3fn_row_bf16", *GROUPED]


def pointers(weight) -> dict[str, int]:
    return {name: plane.data_ptr() for name, plane in weight.planes.items()}


@pytest.mark.parametrize("name", ROW_FORMATS)
def test_parts_are_rows_of_their_object(loaded, codec, name):
    values = torch.randn(8, 130)
    store = loaded(
        {"w": (values, name)},
        bind={"q": [("w", (0, 390))], "k": [("w", (390, 1040))], "last": [("w", (910, 1040))]},
    )
    whole = codec(name).dequantize(codec(name).quantize(values))
    assert torch.equal(store.tensor("w"), whole)
    assert torch.equal(store.tensor("q"), whole[:3])
    assert torch.equal(store.tensor("k"), whole[3:])
    assert torch.equal(store.tensor("last"), whole[7:])
    assert store.weight("k").info.shape == (5, 130)
    assert store.weight("last").info.format.name == name


@pytest.mark.parametrize("name", ROW_FORMATS)
def test_consecutive_rows_stack_without_a_copy(loaded, name):
    store = loaded(
        {"w": (torch.randn(8, 130), name)},
        bind={"q": [("w", (0, 390))], "k": [("w", (390, 1040))]},
    )
    assert pointers(store.weight("q", "k")) == pointers(store.weight("w"))
    assert store.weight("q", "k").info == store.weight("w").info


@pytest.mark.parametrize("name", ROW_FORMATS)
def test_other_rows_are_concatenated_once_and_not_held_twice(loaded, codec, name):
    gate, up = torch.randn(3, 130), torch.randn(5, 130)
    store = loaded({"gate": (gate, name), "up": (up, name)})
    stacked = store.weight("up", "gate")
    apart = [codec(name).dequantize(codec(name).quantize(values)) for values in (up, gate)]
    assert torch.equal(stacked.dense(), torch.cat(apart))
    assert store.weight("up", "gate") is stacked
    for single, values in zip(("up", "gate"), apart, strict=True):
        assert torch.equal(store.tensor(single), values)
        for plane, tensor in store.weight(single).planes.items():
            memory = tensor.untyped_storage().data_ptr()
            assert memory == stacked.planes[plane].untyped_storage().data_ptr()


def test_interleaved_parts_become_one_parameter(loaded):
    heads = torch.arange(32.0).view(8, 4)
    store = loaded(
        {"w": heads},
        bind={"query": [("w", (0, 8)), ("w", (16, 24))], "gate": [("w", (8, 16)), ("w", (24, 32))]},
    )
    assert torch.equal(store.tensor("query"), heads[[0, 1, 4, 5]])
    assert torch.equal(store.weight("query", "gate").dense(), heads[[0, 1, 4, 5, 2, 3, 6, 7]])


def test_vectors_and_scalars(loaded):
    store = loaded(
        {"v": torch.arange(6.0), "s": torch.tensor(2.5)},
        bind={"one": [("v", (3, 4))], "same": [("s", (0, 1))]},
    )
    assert store.tensor("s").shape == ()
    assert store.tensor("s") == 2.5
    assert store.tensor("one").tolist() == [3.0]
    assert store.tensor("same") == 2.5
    assert store.weight("v", "one").dense().tolist() == [0, 1, 2, 3, 4, 5, 3]
    with pytest.raises(ArtifactError, match="do not stack"):
        store.weight("s", "same", "s")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("half",), "whole rows"), (("w", "other"), "do not stack"),
        (("w", "wide"), "do not stack"), (("w", "absent"), "no parameter 'absent'"),
    ],
)
def test_rows_that_do_not_fit_are_refused(loaded, names, message):
    store = loaded(
        {"w": torch.ones(4, 8), "wide": torch.ones(4, 9), "other": (torch.ones(4, 8), "bf16")},
        bind={"half": [("w", (0, 12))]},
    )
    with pytest.raises(ArtifactError, match=message):
        store.weight(*names)


def nvfp4(rows: int, divisor: float, *bank: int) -> dict[str, torch.Tensor]:
    words = torch.randint(0, 0x7F, (*bank, rows, 4), dtype=torch.uint8)
    return {
        "codes": torch.randint(0, 16, (*bank, rows, 64), dtype=torch.uint8),
        "scales": words.view(torch.float8_e4m3fn),
        "divisor": torch.full(bank, divisor) if bank else torch.tensor(divisor),
    }


@pytest.fixture
def nvfp4_store(tmp_path, codec, layout, formats, layouts):
    """A store of NVFP4 matrices, and their values."""

    def make(matrices, bind=()):
        values = {}
        with ArtifactWriter(tmp_path / "n.ninfer", components={"text": {"config": {}}}) as writer:
            for name, parts in matrices.items():
                kind = "block_scale_k16_m128x4_v1"
                kind = f"expert_{kind}" if parts["codes"].ndim == 3 else kind
                writer.add_tensor(
                    name, parts["codes"].shape, "nvfp4", kind, layout(kind).pack("nvfp4", parts)
                )
                writer.bind(name, name)
                values[name] = codec("nvfp4").dequantize(parts)
            for name, parts in bind:
                writer.bind(name, parts)
        artifact = open_artifact(tmp_path / "n.ninfer")
        return load_weights(artifact, formats=formats, layouts=layouts), values

    return make


def part(name, begin, end):
    return [Part(name, (begin, end))]


def test_nvfp4_is_cut_at_tiles_of_128_rows(nvfp4_store):
    bind = [("a", part("p", 0, 128 * 64)), ("b", part("p", 128 * 64, 384 * 64)),
            ("c", part("p", 64, 384 * 64))]
    store, values = nvfp4_store({"p": nvfp4(384, 3.0)}, bind)
    assert torch.equal(store.tensor("a"), values["p"][:128])
    assert torch.equal(store.tensor("b"), values["p"][128:])
    assert pointers(store.weight("a", "b")) == pointers(store.weight("p"))
    with pytest.raises(ArtifactError, match="tiles of 128 rows"):
        store.weight("c")


def test_nvfp4_stacks_with_equal_divisors_only(nvfp4_store):
    matrices = {"a": nvfp4(128, 3.0), "b": nvfp4(256, 3.0), "c": nvfp4(128, 4.0)}
    store, values = nvfp4_store(matrices)
    assert torch.equal(store.weight("b", "a").dense(), torch.cat([values["b"], values["a"]]))
    assert torch.equal(store.tensor("a"), values["a"])
    with pytest.raises(ArtifactError, match="divisor"):
        store.weight("a", "c")


def test_experts_of_a_bank_are_views_with_divisors_of_their_own(nvfp4_store):
    size = 128 * 64
    store, values = nvfp4_store(
        {"bank": nvfp4(128, 2.0, 3)}, [("e1", part("bank", size, 2 * size))]
    )
    assert torch.equal(store.tensor("e1"), values["bank"][1:2])
    assert store.weight("e1").planes["divisor"].shape == (1,)


@pytest.fixture
def experts(nvfp4_store):
    """A store with banks of 3 experts: gates above up projections of 64 rows, and ``down``."""
    size = 64 * 64
    gates = [(f"{e}/{half}", part("wide", (2 * e + i) * size, (2 * e + i + 1) * size))
             for e in range(3) for i, half in enumerate(("gate", "up"))]
    downs = [(f"{e}/down", part("narrow", 2 * e * size, 2 * (e + 1) * size)) for e in range(3)]
    matrices = {"wide": nvfp4(128, 2.0, 3), "narrow": nvfp4(128, 3.0, 3)}
    matrices["wide"]["divisor"] = torch.tensor([2.0, 4.0, 8.0])
    return nvfp4_store(matrices, gates + downs)


def test_halves_of_experts_make_whole_matrices(experts):
    store, values = experts
    names = [f"{e}/{half}" for e in range(3) for half in ("gate", "up")]
    whole = store.weight(*names)
    assert whole.info == store.weight("wide").info and whole.info.shape == (3, 128, 64)
    assert pointers(whole) == pointers(store.weight("wide"))
    assert torch.equal(store.weight(*names[2:4]).dense(), values["wide"][1:2])
    assert torch.equal(store.weight(*names[4:], *names[:2]).dense(), values["wide"][[2, 0]])
    assert torch.equal(store.weight("2/down", "0/down").dense(), values["narrow"][[2, 0]])


@pytest.mark.parametrize("names", [("1/gate",), ("1/up", "1/gate"), ("0/up", "1/gate")])
def test_halves_of_experts_are_not_loaded_alone(experts, names):
    with pytest.raises(ArtifactError, match=r"(?s)whole 128 x 64 matrices.*in their stored order"):
        experts[0].weight(*names)


def test_shapes_of_experts_are_those_of_matrices(experts):
    artifact = experts[0].artifact
    shapes = {name: shape_of(artifact, name) for name in ("0/gate", "2/up", "1/down", "wide")}
    assert shapes == {"0/gate": (64, 64), "2/up": (64, 64), "1/down": (128, 64),
                      "wide": (3, 128, 64)}


def test_parts_of_different_kinds_have_no_shape(opened):
    artifact = opened(
        {"a": torch.ones(4, 8), "b": torch.ones(4, 9)},
        bind={"both": [("a", (0, 8)), ("b", (0, 9))], "half": [("a", (0, 12))]},
    )
    for name, message in (("both", "different kinds"), ("half", "whole rows of 8")):
        with pytest.raises(ArtifactError, match=message):
            shape_of(artifact, name)


def test_neighbours_that_stack_are_one_weight(loaded):
    values = {name: torch.randn(4, 64) for name in "abcde"}
    store = loaded({name: (values[name], "bf16" if name in "cd" else "fp32") for name in values})
    runs = store.weight_runs(*"abcde")
    assert [run.info.shape for run in runs] == [(8, 64), (8, 64), (4, 64)]
    assert torch.equal(runs[0].dense(), torch.cat([values["a"], values["b"]]))
    assert runs[0] is store.weight("a", "b")
    assert [run.info.format.name for run in runs] == ["fp32", "bf16", "fp32"]


def test_neighbours_with_a_scale_of_their_own_are_apart(nvfp4_store):
    matrices = {"a": nvfp4(128, 3.0), "b": nvfp4(256, 3.0), "c": nvfp4(128, 4.0)}
    store, _ = nvfp4_store(matrices)
    assert [run.info.shape[0] for run in store.weight_runs("a", "b", "c")] == [384, 128]


@pytest.mark.parametrize("name", ROW_FORMATS)
def test_weights_are_cut_into_equal_parts(loaded, name):
    weight = loaded({"w": (torch.randn(12, 130), name)}).weight("w")
    parts = [weight.part(index, 3) for index in range(3)]
    assert torch.equal(torch.cat([each.dense() for each in parts]), weight.dense())
    assert parts[0].info.shape == (4, 130) and pointers(parts[0]) == pointers(weight)
    with pytest.raises(ArtifactError, match="12 rows are not 5 equal runs"):
        weight.part(0, 5)


def test_banks_are_cut_into_matrices_and_tiles_not_at_all(nvfp4_store):
    store, values = nvfp4_store({"bank": nvfp4(128, 2.0, 3), "w": nvfp4(256, 2.0)})
    bank, w = store.weight("bank"), store.weight("w")
    assert torch.equal(bank.part(1, 3).dense(), values["bank"][1:2])
    assert torch.equal(w.part(1, 2).dense(), values["w"][128:])
    with pytest.raises(ArtifactError, match="tiles of 128 rows"):
        w.part(1, 4)


def test_thousands_of_parameters_are_found_quickly(opened):
    """Those of a model of 40 layers with 256 experts each."""
    num = 256 * 2
    bind = {f"{i}": [("w", (8 * i, 8 * i + 8))] for i in range(num)}
    artifact = opened({"w": torch.ones(num, 8)}, bind=bind)
    start = time.process_time()
    for _ in range(60):
        [run] = rows_of(artifact, bind)
        assert (run.begin, run.end) == (0, num)
    assert time.process_time() - start < 2


class ColumnsLayout(PlanarLayout):
    """Keeps no rows together."""

    def geometry(self, format_name, shape):
        return (("codes", torch.float32, shape[::-1]),)


def test_layouts_without_rows_are_whole_or_refused(tmp_path, formats, layouts, monkeypatch):
    monkeypatch.setitem(sys.modules, "columns_plugin", SimpleNamespace(Layout=ColumnsLayout))
    columns = LayoutSpec("columns", ("fp32",), "columns_plugin:Layout", alignment=512)
    layouts = {**layouts, "columns": columns}
    values = torch.arange(12.0)
    with ArtifactWriter(tmp_path / "c.ninfer", components={"text": {"config": {}}}) as writer:
        writer.add_tensor("pad", (1,), "fp32", "contiguous_le_v1", values[:1].view(torch.uint8))
        writer.add_tensor("w", (3, 4), "fp32", "columns", values.view(torch.uint8), alignment=512)
        writer.bind("w", "w")
        writer.bind("row", part("w", 0, 4))
    artifact = open_artifact(tmp_path / "c.ninfer")
    assert artifact.objects["w"].offset == 512
    store = load_weights(artifact, formats=formats, layouts=layouts)
    assert store.weight("w").planes["codes"].shape == (4, 3)
    with pytest.raises(ArtifactError, match="does not keep codes by rows"):
        store.weight("row")
