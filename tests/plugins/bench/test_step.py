"""Steps of models with random weights: the command on a small one."""

import json
from types import SimpleNamespace

import pytest
import torch

from ninfer_bench import step, synthetic, untouched
from ninfer_bench.step import Measured, added_ratio
from ninfer_bench.synthetic import (
    _changed,
    blank_planes,
    fill,
    random_object,
    stored_tensors,
    titled,
)
from ninfer_conformance.subject import find_subject
from ninfer_core.api import CapacityError, ConfigError
from ninfer_core.artifact.catalogue import TensorObject
from ninfer_core.artifact.layouts.planar import plane_view
from ninfer_core.plugin_host import PluginSelection, load_plugins
from ninfer_fixtures.tiny import TinyModel, tiny_resources

PACK = "ninfer_pack_qwen_dense.plugin"


def test_steps_of_every_size_are_measured(ninfer, tiny_model, once):
    code, out, _ = ninfer(
        "bench", "step", tiny_model, "--rows", "1,2", "--widths", "1,2", "--contexts", "70",
        "--prefill", "64", "--sweep", "200", "--prompt", "100", "--json", "-p",
        "ninfer_bench.plugin")
    assert code == 0
    found = json.loads(out)
    sizes = [(each["kind"], each["rows"], each["width"], each["context"], each["tokens"])
             for each in found["steps"]]
    assert sizes == [
        ("decode", 1, 1, 70, 1), ("decode", 1, 2, 70, 2), ("decode", 2, 1, 70, 2),
        ("decode", 2, 2, 70, 4), ("prefill", 1, 64, 70, 64), ("decode", 1, 1, 200, 1),
        ("prompt", 1, 64, 0, 100)]
    steps = found["steps"]
    assert all(each["seconds"] > 0 for each in steps)
    assert steps[0]["nbytes"] < steps[2]["nbytes"]  # the cache of two
    assert steps[-1]["flops"] > steps[4]["flops"] > 0 == steps[0]["flops"]
    assert [each["added_over_kv"] is None for each in steps] == [True] * 5 + [False, True]
    assert list(found["flops"]) == ["float32"] and found["flops"]["float32"] > 1e8


def test_drafts_of_a_predictor_are_measured(ninfer, predicting_model, once):
    code, out, err = ninfer(
        "bench", "step", predicting_model, "--rows", "1,2", "--contexts", "20", "--spec", "mtp",
        "--json", "-p", "ninfer_bench.plugin", "-p", PACK)
    assert code == 0, err
    steps = json.loads(out)["steps"]
    assert [(each["kind"], each["rows"], each["tokens"]) for each in steps] == [
        ("decode", 1, 1), ("draft", 1, 1), ("decode", 2, 2), ("draft", 2, 2)]
    assert all(each["seconds"] > 0 < each["nbytes"] for each in steps)


@pytest.mark.parametrize("options, message", [
    (["--prompt", "100"], "--prompt needs --prefill"), (["--launches"], "--launches needs a GPU"),
])
def test_options_without_what_they_need_are_refused(ninfer, tiny_model, options, message):
    code, out, err = ninfer("bench", "step", tiny_model, *options, "-p", "ninfer_bench.plugin")
    assert code == 1 and not out and message in err and "to fix: " in err


def test_what_a_context_adds_is_over_its_keys_and_values(monkeypatch):
    monkeypatch.setattr(step, "kv_bytes_per_token", lambda plan: 100)
    steps = [Measured("decode", rows, 1, context, rows, seconds) for rows, context, seconds in
             [(1, 1000, 2.0), (1, 3000, 2.5), (2, 1000, 3.0), (2, 2000, 4.0)]]
    ratios = [added_ratio(SimpleNamespace(), each, steps, 1e6) for each in steps]
    assert ratios == [None, pytest.approx(0.5 / 0.2), None, pytest.approx(1.0 / 0.2)]


def test_launches_are_listed_by_step():
    steps = [Measured("decode", 1, 4, 70, 4, 0.1, 5, launches={"one": (2, 3e-6), "two": (1, 1e-6)}),
             Measured("decode", 1, 1, 70, 1, 0.1, 5)]
    [(heading, rows)] = step._launch_tables(steps).items()
    assert heading == "decode 1 x 4 at 70: 3 launches, 0.004 ms"
    assert rows[1:] == [("one", "2", "1.50", "3.0"), ("two", "1", "1.00", "1.0")]


def test_a_model_that_is_no_card_keeps_its_layers(ninfer, tiny_model):
    code, _, err = ninfer(
        "bench", "step", tiny_model, "--layers", "2", "-p", "ninfer_bench.plugin")
    assert code == 1 and "--format and --layers take the name of a card" in err


@pytest.mark.parametrize("format_name, layout_name", [
    ("q4_g64_fp16", "row_split_k128_v1"), ("q6_g64_fp16", "row_split_k128_v1"),
    ("q8_g32_fp16", "row_split_k128_v1"), ("fp8_e4m3fn_row_bf16", "row_scale_v1"),
    ("fp8_e4m3fn_g128_fp32", "row_scale_g128_v1"), ("nvfp4", "block_scale_k16_plain_v1"),
    ("bf16", "contiguous_le_v1"), ("fp32", "contiguous_le_v1"),
])
def test_random_weights_are_words_of_their_formats(format_name, layout_name):
    """The codecs check them; products of them keep the size of their input."""
    registry = load_plugins(PluginSelection(names=())).registry
    layout = registry.layouts[layout_name].spec.layout.load()()
    nbytes = layout.nbytes(format_name, (64, 256))
    tensor = TensorObject("w", "tensor", (64, 256), format_name, layout_name, 0, nbytes)
    image, generator = torch.zeros(nbytes, dtype=torch.uint8), torch.Generator().manual_seed(1)
    planes = {info.name: fill(plane_view(image, info), info, tensor, generator)
              for info in layout.planes(format_name, (64, 256))}
    codec = registry.formats[format_name].spec.codec.load()()
    values = codec.dequantize(layout.unpack(format_name, (64, 256), planes))
    assert values.isfinite().all() and torch.count_nonzero(values) > 0.5 * values.numel()
    assert 0.3 < values.std() * 16 < 3


def test_the_first_layers_of_a_card_are_a_model():
    report = load_plugins(PluginSelection(
        modules=("ninfer_pack_qwen_dense.plugin", "ninfer_convert.plugin"), names=()))
    artifact = _changed("qwen3.6-27b", report, "q8_g32_fp16", 4)
    layers = {name.split("/")[2] for name in artifact.bindings if name.startswith("text/layers/")}
    assert layers == {"0", "1", "2", "3"}
    config = artifact.components["text"].config
    assert config["num_hidden_layers"] == len(config["layer_types"]) == 4
    formats = {each.format for each in stored_tensors(artifact, ["text/layers/3/mlp/down"])}
    assert formats == {"q8_g32_fp16"}
    assert any(name.startswith("mtp/") for name in artifact.bindings)


@pytest.fixture
def card():
    """``(name, layers) -> its outline`` with so many layers, of GLM and Flash-Next."""
    report = load_plugins(PluginSelection(
        modules=("ninfer_pack_glm.plugin", "ninfer_pack_flash_next.plugin",
                 "ninfer_convert.plugin"), names=()))
    return lambda name, layers: _changed(name, report, "", layers)


def test_every_list_of_layers_is_cut(card):
    config = card("glm-5.3-flash-compact", 2).components["text"].config
    assert len(config["layer_types"]) == len(config["mlp_layer_types"]) == 2
    assert len(config["architectures"]) == 1


def test_more_layers_than_there_are_are_refused(card):
    with pytest.raises(ConfigError, match="the card has 45"):
        card("glm-5.3-flash-compact", 46)


@pytest.mark.parametrize("format_name, layout_name", [
    ("nvfp4", "block_scale_k16_plain_v1"), ("fp8_e4m3fn_row_bf16", "row_scale_v1")])
def test_a_blank_table_is_zeros_of_its_format(format_name, layout_name):
    registry = load_plugins(PluginSelection(names=())).registry
    layout = registry.layouts[layout_name].spec.layout.load()()
    nbytes = layout.nbytes(format_name, (64, 256))
    tensor = TensorObject("w", "tensor", (64, 256), format_name, layout_name, 0, nbytes)
    codec = registry.formats[format_name].spec.codec.load()()
    planes = blank_planes(tensor, layout)
    assert not codec.dequantize(layout.unpack(format_name, (64, 256), planes)).any()


def test_untouched_memory_is_zeros():
    memory = untouched.untouched(1 << 31)
    memory[1 << 30] = 3
    assert memory[[0, 1 << 30, -1]].tolist() == [0, 3, 0]


def test_untouched_memory_that_cannot_be_had_is_an_error(monkeypatch):
    def full(*_):
        raise OSError("no room")

    monkeypatch.setattr(untouched, "TemporaryFile", full)
    with pytest.raises(CapacityError, match=r"1,000 bytes cannot be mapped: no room"):
        untouched.untouched(1000)


def test_weights_without_memory_are_an_error():
    tensor = TensorObject("w", "tensor", (1 << 50,), "bf16", "contiguous_le_v1", 0, 1 << 51)
    with pytest.raises(CapacityError, match="no memory for random weights"):
        random_object(tensor, None, torch.Generator())


def test_only_large_tables_at_the_host_are_blank(ninfer, tmp_path, monkeypatch, once):
    pack = "ninfer_pack_flash_next.plugin"
    report = load_plugins(PluginSelection(modules=(pack, "ninfer_ops.plugin"), names=()))
    subject = find_subject(report, "flash_next")
    tiny = TinyModel(
        subject.model, subject.implementation.parameters(subject.config), report.registry)
    tiny.write(tmp_path / "t.ninfer", tiny.random_values(), texts=tiny_resources())
    blank, made = [], synthetic.blank_planes
    monkeypatch.setattr(synthetic, "LARGE_BYTES", 0)
    monkeypatch.setattr(synthetic, "blank_planes", lambda tensor, layout: (
        blank.append(tensor.id), made(tensor, layout))[1])
    code, out, err = ninfer(
        "bench", "step", tmp_path / "t.ninfer", "--json", "--contexts", "64",
        "-p", "ninfer_bench.plugin", "-p", pack, "-p", "ninfer_ops.plugin")
    assert code == 0, err
    assert blank and all("ngram" in name for name in blank) and json.loads(out)["steps"]


@pytest.mark.parametrize("format_name, title", [("", "t.ninfer"), ("nvfp4", "t.ninfer nvfp4")])
def test_a_title_names_a_format_if_one_is_asked_for(format_name, title):
    plan = SimpleNamespace(config=SimpleNamespace(model="t.ninfer"))
    assert titled(SimpleNamespace(format=format_name), plan) == title
