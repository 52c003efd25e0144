"""Quantised checkpoints to artifacts: the bits of the source, whatever it is split into."""

from __future__ import annotations

import pytest
import torch

from ninfer_convert.conversion import convert_checkpoint
from ninfer_convert.source import open_source
from ninfer_core.api import ArtifactError, StorageChoice
from ninfer_core.artifact.container import open_artifact

F8 = torch.float8_e4m3fn
NVFP4 = {"query": 2.0**-12, "key": 2.0**-12, "value": 2.0**-11}
EXPERTS, ROWS, WIDTH = 3, 128, 192


def draw(*shape, seed=0):
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(seed),
                         dtype=torch.uint8)


def finite(words):
    """E4M3 words without NaN and signs."""
    return (words % 127).view(F8)


def nvfp4(name, multiplier, convention="modelopt"):
    seed = sum(name.encode())
    codes = draw(ROWS, WIDTH // 2, seed=seed)
    scales = finite(draw(ROWS, WIDTH // 16, seed=seed + 1))
    if convention == "modelopt":
        return {f"{name}.weight": codes, f"{name}.weight_scale": scales,
                f"{name}.weight_scale_2": torch.tensor(multiplier),
                f"{name}.input_scale": torch.tensor(multiplier * 4)}
    return {f"{name}.weight_packed": codes, f"{name}.weight_scale": scales,
            f"{name}.weight_global_scale": torch.tensor([1 / multiplier]),
            f"{name}.input_global_scale": torch.tensor([0.25 / multiplier])}


def checkpoint(convention="modelopt"):
    """One tensor or more of every kind."""
    bank = {"up": draw(EXPERTS, ROWS, WIDTH // 2, seed=5),
            "up_weight_scale": finite(draw(EXPERTS, ROWS, WIDTH // 16, seed=6)),
            "up_weight_scale_2": torch.tensor([0.5, 0.25, 0.125]) / 1000}
    return {
        **{k: t for name, each in NVFP4.items() for k, t in nvfp4(name, each, convention).items()},
        **{f"experts.{name}": tensor for name, tensor in bank.items()},
        "blocks.weight": finite(draw(300, WIDTH, seed=7)),
        "blocks.weight_scale_inv": torch.rand(3, 2).bfloat16() / 100,
        "rows.weight": finite(draw(300, WIDTH, seed=8)),
        "rows.weight_scale": torch.rand(300, 1).bfloat16() / 100,
        "embedding.weight": torch.randn(20, 8).bfloat16(), "attention.k_scale": torch.tensor(1.0),
    }


@pytest.fixture
def pack(table_pack, entry):
    def expert(index):
        return lambda tensors: tensors["experts.up"][index]

    shape = (ROWS, WIDTH)
    return table_pack(
        *(entry(f"text/{name}", shape, parent="text/qkv", inputs=("text/in",)) for name in NVFP4),
        *(entry(f"text/experts/{e}", shape, expert(e), "text/experts", True)
          for e in range(EXPERTS)),
        entry("text/blocks", (300, WIDTH), inputs=("text/in", "text/again")),
        entry("text/rows", (300, WIDTH)), entry("text/embedding", (20, 8), kind="table"),
        recipe=(StorageChoice("text/blocks", activations="AllowA8"),
                StorageChoice("*", activations="AllowA4")),
    )


@pytest.fixture
def directory(write_directory):
    return lambda tensors, **options: write_directory({"m.safetensors": tensors}, None, **options)


def test_an_artifact_holds_the_numbers_of_the_checkpoint(directory, pack, converted, load):
    source = directory(checkpoint())
    path, tensors = converted(source, pack), open_source(source).tensors
    weights = load(path)
    for name in (*NVFP4, "blocks", "rows", "embedding"):
        assert torch.equal(weights.tensor(f"text/{name}"), tensors[f"{name}.weight"].dense()), name
    names = [f"text/experts/{e}" for e in range(EXPERTS)]
    assert torch.equal(weights.weight(*names).dense(), tensors["experts.up"].dense())
    stored = {name: (each.shape, each.format, each.layout)
              for name, each in open_artifact(path).objects.items() if each.kind == "tensor"}
    assert stored == {
        "text/qkv.0": ((256, 192), "nvfp4", "block_scale_k16_m128x4_v1"),
        "text/qkv.1": ((128, 192), "nvfp4", "block_scale_k16_m128x4_v1"),
        "text/experts": ((3, 128, 192), "nvfp4", "expert_block_scale_k16_m128x4_v1"),
        "text/blocks": ((300, 192), "fp8_e4m3fn_g128_fp32", "row_scale_g128_v1"),
        "text/rows": ((300, 192), "fp8_e4m3fn_row_bf16", "row_scale_v1"),
        "text/embedding": ((20, 8), "bf16", "contiguous_le_v1"),
        "text/qkv.0/activation_input_divisor": ((), "fp32", "contiguous_le_v1"),
        "text/qkv.1/activation_input_divisor": ((), "fp32", "contiguous_le_v1"),
    }


def test_the_report_has_formats_and_what_is_ignored(directory, pack, plugins, tmp_path):
    report = convert_checkpoint(open_source(directory(checkpoint())), tmp_path / "out.ninfer",
                                pack=pack, registry=plugins.registry)
    assert {name: each.kept for name, each in report.formats.items()} == {
        "nvfp4": 3, "fp8_e4m3fn_g128_fp32": 1, "fp8_e4m3fn_row_bf16": 1, "bf16": 1}
    assert "ignored attention.k_scale: scale of a quantised KV cache" in str(report)


@pytest.mark.parametrize("limit", [4096 + 65536, 4096 * 3])
def test_small_files_hold_the_same(directory, pack, converted, load, limit, tmp_path):
    source = directory(checkpoint())
    whole = load(converted(source, pack))
    split = load(converted(source, pack, "split.ninfer", max_file_bytes=limit))
    assert len([*tmp_path.glob("split.ninfer*")]) > 3
    files, offset = split.artifact.shards.files, 0
    cuts = [offset := offset + file.payload_bytes for file in files]
    cut = {each.format for each in split.artifact.objects.values()
           if any(each.offset < at < each.offset + each.bytes for at in cuts)}
    assert {"nvfp4"} <= cut
    assert cut & {"fp8_e4m3fn_g128_fp32", "fp8_e4m3fn_row_bf16"}
    for name in whole.artifact.bindings:
        assert torch.equal(whole.tensor(name), split.tensor(name)), name


def test_both_exporters_of_the_same_weights_give_the_same_artifact(directory, pack, converted):
    torch.manual_seed(0)
    one = open_artifact(converted(directory(checkpoint(), name="a"), pack, "a.ninfer"))
    torch.manual_seed(0)
    other = directory(checkpoint("compressed-tensors"), name="b")
    other = open_artifact(converted(other, pack, "b.ninfer"))
    assert (one.objects, one.bindings, one.uses) == (other.objects, other.bindings, other.uses)
    size = sum(file.payload_bytes for file in one.shards.files)
    assert [*map(bytes, one.shards.read(0, size))] == [*map(bytes, other.shards.read(0, size))]


def test_uses_say_what_products_may_do(directory, pack, converted):
    artifact = open_artifact(converted(directory(checkpoint()), pack))
    uses = {(use.parameter, use.input): use for use in artifact.uses}
    assert uses.keys() == {
        *((f"text/{name}", "text/in") for name in NVFP4),
        ("text/blocks", "text/in"), ("text/blocks", "text/again"),
    }
    assert uses["text/blocks", "text/again"].activation_policy == "AllowA8"
    assert not uses["text/blocks", "text/again"].auxiliaries
    for name, multiplier in NVFP4.items():
        use = uses[f"text/{name}", "text/in"]
        assert use.activation_policy == "AllowA4"
        [(stored, _)] = use.auxiliaries["activation_input_divisor"].spans()
        raw = b"".join(artifact.shards.read(artifact.objects[stored].offset, 4))
        assert torch.frombuffer(bytearray(raw), dtype=torch.float32).item() == 0.25 / multiplier


def test_without_permission_input_scales_are_not_stored(directory, pack, converted):
    recipe = (StorageChoice("*"),)
    artifact = open_artifact(converted(directory(checkpoint()), pack, recipe=recipe))
    assert {use.activation_policy for use in artifact.uses} == {"A16Only"}
    assert not [name for name in artifact.objects if "divisor" in name]


def test_members_with_inputs_of_their_own_have_divisors_of_their_own(
    directory, pack, converted,
):
    tensors = checkpoint() | {"key.input_scale": torch.tensor(2.0)}
    artifact = open_artifact(converted(directory(tensors), pack))
    stored = artifact.objects["text/qkv.0/activation_input_divisor"]
    assert stored.shape == (2,)
    ranges = {use.parameter: use.auxiliaries["activation_input_divisor"].spans()
              for use in artifact.uses if use.auxiliaries}
    assert ranges["text/query"] == [(stored.id, (0, 1))]
    assert ranges["text/key"] == [(stored.id, (1, 2))]


def test_an_input_scale_that_cannot_be_used_is_named_if_it_would_be(directory, pack, converted):
    source = directory(checkpoint() | {"value.input_scale": torch.tensor(0.0)})
    with pytest.raises(ArtifactError, match=r"input is not usable \[text/value\]"):
        converted(source, pack)
    converted(source, pack, recipe=(StorageChoice("*"),))


@pytest.mark.parametrize("format_name", ["bf16", "q8_g32_fp16", "fp8_e4m3fn_g128_fp32"])
def test_another_format_is_made_of_the_dequantised_values(
    directory, pack, converted, load, plugins, format_name,
):
    source = directory(checkpoint())
    weights = load(converted(source, pack, recipe=(StorageChoice("*", format_name),)))
    codec = plugins.registry.formats[format_name].spec.codec.load()()
    for name in (*NVFP4, "rows"):
        values = open_source(source).tensors[f"{name}.weight"].dense()
        expected = codec.dequantize(codec.quantize(values))
        assert torch.equal(weights.tensor(f"text/{name}"), expected), name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows.weight_scale": None}, r"not understood \[rows\.weight\]"),
        ({"rows.weight": None}, "rows.weight"),
        ({"lost.weight_scale": torch.tensor(1.0)}, "no place in the model: lost.weight_scale"),
        ({"rows.zero_point": torch.zeros(300, 1)}, "no place in the model: rows.zero_point"),
        ({"query.pre_quant_scale": torch.ones(WIDTH)}, "no place in the model: query.pre_quant"),
        ({"query.weight_scale_2": torch.tensor(2.0**12)}, r"not plausible \[query\.weight\]"),
    ],
)
def test_what_is_lost_or_left_over_is_named(directory, pack, converted, tmp_path, change, message):
    tensors = {name: t for name, t in (checkpoint() | change).items() if t is not None}
    with pytest.raises(ArtifactError, match=message):
        converted(directory(tensors), pack)
    assert not [*tmp_path.glob("*.ninfer*")]
