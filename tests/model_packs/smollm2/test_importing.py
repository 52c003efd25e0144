"""Tensors of checkpoints that are not those of the config."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ninfer_core.api import ArtifactError, ModelDescription
from ninfer_pack_smollm2.importing import import_source
from ninfer_pack_smollm2.pack import LlamaPack
from ninfer_pack_smollm2.parameters import parameters


def source_of(**shapes):
    """A checkpoint of the tiny model, some tensors of which have other shapes."""
    tiny = LlamaPack().tiny()
    config = LlamaPack().configure(tiny)
    names = {each.huggingface: each.spec.shape for each in parameters(config)} | shapes
    tensors = {
        name: SimpleNamespace(name=name, shape=shape, dtype="F32", format="fp32")
        for name, shape in names.items()
    }
    description = ModelDescription("huggingface", tiny.architectures, tiny.config)
    return SimpleNamespace(description=description, tensors=tensors, resources={})


def test_a_second_head_of_a_tied_model_is_ignored_by_rule():
    plan = import_source(source_of())
    assert plan.ignored == {"lm_head.weight": "tied to the token embedding"}


@pytest.mark.parametrize("shape", [(64 * 64,), (1, 64 * 64), (4, 16, 64), (32, 128)])
def test_a_tensor_of_another_shape_is_named_before_anything_is_read(shape):
    name = "model.layers.1.self_attn.q_proj.weight"
    with pytest.raises(ArtifactError, match=rf"another shape \[{name}\].*wants \[64, 64\]"):
        import_source(source_of(**{name: shape}))
