"""Which objects there are, in which format and layout, and what their images hold."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from attrs import evolve

from ninfer_convert.storage import plan_objects
from ninfer_core.api import (
    ArtifactError,
    ConfigError,
    ImportedParameter,
    ImportPlan,
    ParameterSpec,
    StorageChoice,
    UnsupportedError,
)
from ninfer_core.artifact.layouts.planar import plane_view

VALUES = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))


def held(name, format_name, parent="", kind="projection", values=VALUES):
    """A parameter of which the checkpoint holds ``format_name`` bit for bit ("": nothing)."""
    codec = {"bf16": torch.bfloat16, "fp32": torch.float32}.get(format_name)
    spec = ParameterSpec(name, tuple(values.shape), kind)
    parts = (lambda: {"codes": values.to(codec)}) if codec else None
    return ImportedParameter(spec, (name,), lambda: values, parts, format_name, parent)


@pytest.fixture
def objects_of(plugins):
    def plan(parameters, *recipe):
        import_plan = ImportPlan({}, tuple(parameters), {}, {}, recipe or (StorageChoice("*"),))
        return plan_objects(import_plan, plugins.registry)

    return plan


def image_of(stored):
    image = torch.zeros(stored.nbytes, dtype=torch.uint8)
    for begin, piece in stored.pieces():
        image[begin : begin + len(piece)] = piece
    return image


def stored_values(stored):
    """What a reader gets out of an object's image."""
    layout, codec = stored.layout.layout.load()(), stored.format.codec.load()()
    image = image_of(stored)
    infos = layout.planes(stored.format.name, stored.shape)
    planes = {info.name: plane_view(image, info) for info in infos}
    return codec.dequantize(layout.unpack(stored.format.name, stored.shape, planes))


def test_what_the_checkpoint_holds_is_kept(objects_of):
    kept, rounded = objects_of([held("a", "fp32"), held("b", "bf16")])
    assert (kept.format.name, rounded.format.name) == ("fp32", "bf16")
    assert kept.kept
    assert torch.equal(stored_values(kept), VALUES)


def test_what_no_format_holds_becomes_bf16(objects_of):
    (stored,) = objects_of([held("a", "")])
    assert (stored.format.name, stored.kept) == ("bf16", False)
    assert torch.equal(stored_values(stored), VALUES.bfloat16().float())


def test_parameters_of_one_parent_are_stacked(objects_of):
    parts = [held("gate", "fp32", "both"), held("up", "fp32", "both", values=VALUES * 2)]
    stored, alone = objects_of([*parts, held("down", "fp32")])
    assert [member.spec.name for member in stored.members] == ["gate", "up"]
    assert (stored.object_id, stored.shape, alone.object_id) == ("both", (8, 64), "down")
    assert torch.equal(stored_values(stored), torch.cat([VALUES, VALUES * 2]))


def test_neighbours_of_one_format_share_an_object(objects_of):
    names = {"query": "fp32", "key": "fp32", "gate": "bf16", "value": ""}
    first, second = objects_of([held(name, each, "qkvg") for name, each in names.items()])
    assert [each.spec.name for each in first.members] == ["query", "key"]
    assert [each.spec.name for each in second.members] == ["gate", "value"]
    assert (first.object_id, second.object_id) == ("qkvg.0", "qkvg.1")
    assert (first.kept, second.format.name, second.kept) == (True, "bf16", False)
    assert torch.equal(stored_values(first), torch.cat([VALUES, VALUES]))


def test_first_matching_entry_wins(objects_of):
    recipe = [StorageChoice("*/gate", "q4_g64_fp16"), StorageChoice("*", "bf16")]
    gate, down = objects_of([held("mlp/gate", "fp32"), held("mlp/down", "fp32")], *recipe)
    assert (gate.format.name, down.format.name) == ("q4_g64_fp16", "bf16")


def test_quantised_values_are_those_of_the_codec(objects_of):
    (stored,) = objects_of([held("a", "fp32")], StorageChoice("*", "q8_g32_fp16"))
    codec = stored.format.codec.load()()
    assert stored.layout.name == "row_split_k128_v1"
    assert torch.equal(stored_values(stored), codec.dequantize(codec.quantize(VALUES)))


def test_direct_parameters_are_not_quantised(objects_of):
    norm = held("norm", "fp32", kind="direct", values=VALUES[0])
    (stored,) = objects_of([norm], StorageChoice("*", "q8_g32_fp16"))
    assert (stored.format.name, stored.shape) == ("fp32", (64,))


def test_the_format_of_the_pack_is_among_the_choices(objects_of):
    (stored,) = objects_of([held("a", "fp32")], StorageChoice("*", "q4_1_g32_fp16"))
    assert stored.layout.name == "half_split_k32_v1"
    assert (stored_values(stored) - VALUES).abs().max() < 0.3


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (StorageChoice("*", "q3"), r"no such weight format \[q3\]: registered are: bf16,"),
        (StorageChoice("*", "bf16", "row_scale_v1"), r"no such layout of bf16 \[row_scale_v1\]"),
        (StorageChoice("other", "bf16"), r"does not cover a parameter \[a\]"),
    ],
)
def test_recipes_that_do_not_fit_are_refused(objects_of, choice, message):
    with pytest.raises(ConfigError, match=message):
        objects_of([held("a", "fp32")], choice)


def test_what_cannot_be_stored_is_named(objects_of):
    beyond = held("a", "fp32", values=VALUES * 1e7)
    (stored,) = objects_of([beyond], StorageChoice("*", "q4_1_g32_fp16"))
    with pytest.raises(ArtifactError, match=r"as Q4_1 \[a\]"):
        image_of(stored)
    seven = held("b", "fp32", values=VALUES[:, :7])
    (odd,) = objects_of([seven], StorageChoice("*", "q4_1_g32_fp16"))
    with pytest.raises(ArtifactError, match=r"cannot hold a tensor \[b\]"):
        odd.nbytes  # noqa: B018


def test_a_recipe_splits_objects_but_not_banks(objects_of):
    recipe = [StorageChoice("gate", "bf16"), StorageChoice("*", "")]
    members = [held("gate", "fp32", "both"), held("up", "fp32", "both")]
    assert [each.format.name for each in objects_of(members, *recipe)] == ["bf16", "fp32"]
    with pytest.raises(ConfigError, match=r"cannot be split \[both\].*bf16 and fp32"):
        objects_of([evolve(each, bank=True) for each in members], *recipe)


def test_a_format_without_a_layout_is_refused(plugins):
    registry = SimpleNamespace(formats=plugins.registry.formats, layouts={})
    plan = ImportPlan({}, (held("a", "fp32"),), {}, {}, (StorageChoice("*"),))
    with pytest.raises(ConfigError, match="no such layout of fp32"):
        plan_objects(plan, registry)


def test_patterns_that_decide_nothing_are_named(objects_of, caplog):
    norm = held("norm", "fp32", kind="direct")
    recipe = [StorageChoice(name, "bf16") for name in ("layer/*", "norm", "a", "*", "b")]
    objects_of([held("a", "fp32"), held("b", "fp32"), norm], *recipe)
    assert "decide nothing: layer/*, norm, b" in caplog.text
    caplog.clear()
    objects_of([held("a", "fp32")], StorageChoice("a", "bf16"))
    assert not caplog.text


def nvfp4(name, parent="", divisor=4.0, shape=(128, 64), bank=False, scalars=True):
    """A parameter that the checkpoint holds as nvfp4."""
    generator = torch.Generator().manual_seed(sum(name.encode()))
    parts = {
        "codes": torch.randint(0, 16, shape, generator=generator, dtype=torch.uint8),
        "scales": torch.rand(shape[0], shape[1] // 16, generator=generator).to(torch.float8_e4m3fn),
        "divisor": torch.tensor(divisor),
    }
    read = (lambda: {"divisor": divisor}) if scalars else None
    return ImportedParameter(
        ParameterSpec(name, shape), (name,), lambda: pytest.fail("read"), lambda: parts, "nvfp4",
        parent, read, bank,
    )


def values_of(plugins, *members):
    codec = plugins.registry.formats["nvfp4"].spec.codec.load()()
    return [codec.dequantize(member.parts()) for member in members]


def test_matrices_with_one_divisor_share_an_object(objects_of, plugins):
    members = [nvfp4("q", "qkv"), nvfp4("k", "qkv"), nvfp4("v", "qkv", 5.0)]
    both, alone = objects_of(members)
    assert (both.shape, alone.shape) == ((256, 64), (128, 64))
    assert both.layout.name == alone.layout.name == "block_scale_k16_m128x4_v1"
    assert both.kept
    assert torch.equal(stored_values(both), torch.cat(values_of(plugins, *members[:2])))
    assert torch.equal(stored_values(alone), values_of(plugins, members[2])[0])


def test_different_divisors_that_nobody_told_of_are_noticed(objects_of):
    members = [nvfp4("q", "qk", scalars=False), nvfp4("k", "qk", 5.0, scalars=False)]
    (stored,) = objects_of(members)
    with pytest.raises(ArtifactError, match=r"cannot be stacked \[qk\]: .* numbers for divisor"):
        image_of(stored)


@pytest.mark.parametrize(
    ("shape", "layout"),
    [((128, 64), "expert_block_scale_k16_m128x4_v1"), ((24, 48), "block_scale_k16_plain_v1")],
)
def test_a_bank_has_a_divisor_for_each_matrix(objects_of, plugins, shape, layout):
    members = [nvfp4(str(e), "bank", 2.0 + e, shape, bank=True) for e in range(4)]
    (stored,) = objects_of(members)
    assert (stored.shape, stored.layout.name) == ((4, *shape), layout)
    assert torch.equal(stored_values(stored), torch.stack(values_of(plugins, *members)))


def test_a_bank_of_another_format_is_rows(objects_of):
    members = [evolve(held(name, "fp32", "bank"), bank=True) for name in "ab"]
    for choice in (StorageChoice("*"), StorageChoice("*", "q8_g32_fp16")):
        (stored,) = objects_of(members, choice)
        assert stored.shape == (8, 64)
    (alone,) = objects_of([nvfp4("a", "bank", bank=True)])
    assert alone.shape == (128, 64)


def test_matrices_of_a_bank_have_one_shape(objects_of):
    members = [nvfp4("a", "bank", bank=True), nvfp4("b", "bank", shape=(24, 64), bank=True)]
    with pytest.raises(ConfigError, match=r"cannot be stored \[bank\].*\(24, 64\), \(128, 64\)"):
        objects_of(members)


def test_members_that_would_cut_a_tile_lie_in_the_plain_layout(objects_of, plugins):
    members = [nvfp4("q", "qk", shape=(192, 64)), nvfp4("k", "qk", shape=(64, 64))]
    (stored,) = objects_of(members)
    assert (stored.shape, stored.layout.name) == ((256, 64), "block_scale_k16_plain_v1")
    assert torch.equal(stored_values(stored), torch.cat(values_of(plugins, *members)))


def test_what_cannot_be_quantised_to_nvfp4_is_named(objects_of):
    (stored,) = objects_of([held("a", "fp32")], StorageChoice("*", "nvfp4"))
    with pytest.raises(UnsupportedError, match=r"nothing quantises values to nvfp4 \[a\]"):
        image_of(stored)


def test_a_wanted_layout_is_taken_even_if_another_fits(objects_of):
    (stored,) = objects_of([nvfp4("a")], StorageChoice("*", "nvfp4", "block_scale_k16_plain_v1"))
    assert stored.layout.name == "block_scale_k16_plain_v1"
    wanted = StorageChoice("*", "nvfp4", "block_scale_k16_m128x4_v1")
    (odd,) = objects_of([nvfp4("a", shape=(24, 48))], wanted)
    with pytest.raises(ArtifactError, match=r"cannot hold a tensor \[a\]"):
        odd.nbytes  # noqa: B018


@pytest.mark.parametrize("format_name", ["", "q8_g32_fp16"])
def test_each_member_has_the_shape_of_its_parameter(objects_of, format_name):
    for odd in (VALUES.T, VALUES.flatten(), VALUES[:, None]):
        wrong = evolve(held("b", "fp32", "both"), values=lambda odd=odd: odd,
                       parts=lambda odd=odd: {"codes": odd})
        (stored,) = objects_of([held("a", "fp32", "both"), wrong], StorageChoice("*", format_name))
        with pytest.raises(ArtifactError, match=r"another shape \[b\].*the model wants \[4, 64\]"):
            image_of(stored)
