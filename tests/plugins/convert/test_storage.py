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
        import_plan = ImportPlan({}, tuple(parameters), {}, {}, ())
        return plan_objects(import_plan, recipe or [StorageChoice("*")], plugins.registry)

    return plan


def stored_values(stored):
    """What a reader gets out of an object's image."""
    layout, codec = stored.layout.layout.load()(), stored.format.codec.load()()
    image = stored.image()
    assert image.numel() == stored.nbytes
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


def test_a_parent_of_mixed_formats_becomes_what_holds_all_or_bf16(objects_of):
    rounded = VALUES.bfloat16().float()
    parts = [held("gate", "fp32", "both"), held("up", "bf16", "both", values=rounded)]
    (stored,) = objects_of(parts)
    assert stored.format.name == "fp32"
    assert torch.equal(stored_values(stored), torch.cat([VALUES, rounded]))
    (stored,) = objects_of([*parts, held("more", "", "both")])
    assert (stored.format.name, stored.kept) == ("bf16", False)


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
        stored.image()
    seven = held("b", "fp32", values=VALUES[:, :7])
    (odd,) = objects_of([seven], StorageChoice("*", "q4_1_g32_fp16"))
    with pytest.raises(ArtifactError, match=r"cannot hold a tensor \[b\]"):
        odd.nbytes  # noqa: B018


def test_a_recipe_may_not_split_an_object(objects_of):
    recipe = [StorageChoice("gate", "bf16"), StorageChoice("*", "")]
    with pytest.raises(ConfigError, match=r"splits an object \[both\].*\(keep\) and bf16"):
        objects_of([held("gate", "fp32", "both"), held("up", "fp32", "both")], *recipe)


def test_a_format_without_a_layout_is_refused(plugins):
    registry = SimpleNamespace(formats=plugins.registry.formats, layouts={})
    plan = ImportPlan({}, (held("a", "fp32"),), {}, {}, ())
    with pytest.raises(ConfigError, match="no such layout of fp32"):
        plan_objects(plan, [StorageChoice("*")], registry)


def test_patterns_that_decide_nothing_are_named(objects_of, caplog):
    norm = held("norm", "fp32", kind="direct")
    recipe = [StorageChoice(name, "bf16") for name in ("layer/*", "norm", "a", "*", "b")]
    objects_of([held("a", "fp32"), held("b", "fp32"), norm], *recipe)
    assert "decide nothing: layer/*, norm, b" in caplog.text
    caplog.clear()
    objects_of([held("a", "fp32")], StorageChoice("a", "bf16"))
    assert not caplog.text


@pytest.mark.parametrize("format_name", ["", "q8_g32_fp16"])
def test_each_member_has_the_shape_of_its_parameter(objects_of, format_name):
    for odd in (VALUES.T, VALUES.flatten(), VALUES[:, None]):
        wrong = evolve(held("b", "fp32", "both"), values=lambda odd=odd: odd,
                       parts=lambda odd=odd: {"codes": odd})
        (stored,) = objects_of([held("a", "fp32", "both"), wrong], StorageChoice("*", format_name))
        with pytest.raises(ArtifactError, match=r"another shape \[b\].*the model wants \[4, 64\]"):
            stored.image()
