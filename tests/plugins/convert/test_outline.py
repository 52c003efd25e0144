"""The outline is the catalogue of the conversion, without a weight being read."""

from __future__ import annotations

import pytest
import torch
from attrs import evolve

from ninfer_convert.outline import outline
from ninfer_convert.source import open_source
from ninfer_core.api import (
    ArtifactError,
    ImportedParameter,
    ImportPlan,
    ParameterSpec,
    StorageChoice,
)
from ninfer_core.artifact.container import open_artifact
from ninfer_core.config.coverage import weight_problems

RECIPE = (StorageChoice("*/up", "q4_g64_fp16"), StorageChoice("*", activations="AllowA4"))


def unread():
    pytest.fail("a weight was read")


def test_it_is_what_a_conversion_writes(write_directory, table_pack, entry, converted, plugins):
    tensors = {name: torch.randn(8, 16).bfloat16() for name in ("gate.weight", "up.weight")}
    source = write_directory({"m.safetensors": tensors | {"norm.weight": torch.ones(16)}}, None)
    pack = table_pack(
        entry("text/gate", (8, 16), parent="text/gate_up", inputs=("text/in",)),
        entry("text/up", (8, 16), parent="text/gate_up", inputs=("text/in",)),
        entry("text/norm", (16,), kind="direct"), recipe=RECIPE, resources={"a.json": b"{}"},
    )
    plan = pack.import_source(open_source(source))
    blind = [evolve(each, values=unread, parts=unread) for each in plan.parameters]
    planned = outline(evolve(plan, parameters=tuple(blind)), plugins.registry)
    written = open_artifact(converted(source, pack))
    for member in ("components", "objects", "bindings", "uses", "nbytes"):
        assert getattr(planned, member) == getattr(written, member), member
    assert planned.description() == written.description()
    assert not [*weight_problems(planned, pack.parameters({"text": {}}))]


def test_a_plan_needs_no_checkpoint(plugins):
    """As of a published model: names, shapes, parents and formats."""
    specs = {name: ParameterSpec(f"text/{name}", (128, 64), inputs=("text/in",)) for name in "ab"}
    parameters = tuple(
        ImportedParameter(spec, (), unread, unread, "nvfp4", "text/both") for spec in specs.values()
    )
    component = {"text": {"config": {"architectures": ["X"], "hidden_size": 64}}}
    plan = ImportPlan(component, parameters, {}, {}, (StorageChoice("*"),))
    artifact = outline(plan, plugins.registry)
    (stored,) = artifact.objects.values()
    assert (stored.shape, stored.format) == ((256, 64), "nvfp4")
    assert artifact.description().config["hidden_size"] == 64
    with pytest.raises(ArtifactError, match=r"no weights here.*outline"):
        artifact.shards.read(0, 1)


def test_it_has_parts_like_the_set(plugins):
    specs = [ParameterSpec(f"text/{name}", (1 << 20, 1 << 14)) for name in "ab"]
    parameters = tuple(ImportedParameter(spec, (), unread, unread, "bf16") for spec in specs)
    plan = ImportPlan({"text": {"config": {}}}, parameters, {}, {}, (StorageChoice("*"),))
    artifact = outline(plan, plugins.registry)
    assert artifact.nbytes == 2 * 2 * 2**34
    assert len(artifact.shards.files) == 3
