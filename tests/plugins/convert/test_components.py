"""Leaving components out: their parameters, and the tensors that nothing else consumes."""

from __future__ import annotations

import pytest
import torch

from ninfer_convert.components import keep_components
from ninfer_convert.source import open_source
from ninfer_core.api import ConfigError
from ninfer_core.artifact.container import open_artifact

HEAD, BLOCK = torch.randn(6, 4), torch.randn(4, 4)


@pytest.fixture
def source(write_directory):
    return write_directory({"m.safetensors": {"head.weight": HEAD, "block.weight": BLOCK}}, None)


@pytest.fixture
def pack(table_pack, entry):
    inputs = ("text/final_hidden", "mtp/final_hidden")
    return table_pack(
        entry("text/output_head", (6, 4), lambda tensors: tensors["head.weight"], inputs=inputs),
        entry("mtp/layers/0/block", (4, 4), inputs=("mtp/stem_input",)),
        components=("text", "mtp"),
    )


def test_all_components_are_kept_by_default(source, pack, converted):
    artifact = open_artifact(converted(source, pack))
    assert artifact.components.keys() == {"text", "mtp"}
    uses = {(use.parameter, use.input) for use in artifact.uses}
    assert ("text/output_head", "mtp/final_hidden") in uses


def test_a_component_left_out_leaves_no_trace(source, pack, converted):
    artifact = open_artifact(converted(source, pack, components=["text"]))
    assert artifact.components.keys() == {"text"}
    assert artifact.bindings.keys() == {"text/output_head"}
    assert [use.input for use in artifact.uses] == ["text/final_hidden"]


def test_its_tensors_are_ignored_with_the_reason(source, pack):
    plan = keep_components(pack.import_source(open_source(source)), ["text"])
    assert plan.ignored == {"block.weight": "component mtp is left out"}


def test_a_tensor_that_is_used_elsewhere_is_not_ignored(source, table_pack, entry):
    shared = {"find": lambda tensors: tensors["head.weight"]}
    pack = table_pack(entry("text/a", (6, 4), **shared), entry("mtp/a", (6, 4), **shared),
                      components=("text", "mtp"))
    assert not keep_components(pack.import_source(open_source(source)), ["text"]).ignored


@pytest.mark.parametrize(
    ("wanted", "message"),
    [(["text", "vision"], r"no such component \[vision\]: the model has text, mtp"),
     (["mtp"], "text cannot be left out"), ([""], "no such component")],
)
def test_impossible_choices_are_refused(source, pack, wanted, message):
    with pytest.raises(ConfigError, match=message):
        keep_components(pack.import_source(open_source(source)), wanted)
