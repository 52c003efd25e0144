"""Tensors of checkpoints to parameters, and what is refused."""

from __future__ import annotations

import pytest
import torch
from attrs import evolve, frozen
from torch import Tensor

from ninfer_checkpoints.importing import Tensors, import_parameter
from ninfer_checkpoints.parameters import Origin, Parameter
from ninfer_checkpoints.selection import taps
from ninfer_convert.conversion import convert
from ninfer_core.api import ArtifactError, ParameterSpec
from ninfer_pack_glm.pack import GlmPack


def test_everything_but_the_vision_tower_is_used(plugins, tiny_glm, tmp_path):
    checkpoint = tiny_glm(tmp_path / "hf")
    report = convert(
        checkpoint.path, tmp_path / "model.ninfer", pack=GlmPack(), registry=plugins.registry)
    assert report.ignored
    assert all(each.startswith("model.visual.") for each in report.ignored)


def test_a_tensor_that_is_missing_is_named(plugins, tiny_glm, tmp_path):
    def rename(name):
        return name.replace("layers.1.self_attn.indexer.wk", "layers.1.self_attn.indexer.w_k")

    checkpoint = tiny_glm(tmp_path / "hf", rename=rename)
    with pytest.raises(ArtifactError, match=r"layers\.1\.self_attn\.indexer\.wk\.weight"):
        convert(
            checkpoint.path, tmp_path / "model.ninfer", pack=GlmPack(), registry=plugins.registry)


def test_a_tensor_that_is_left_over_is_named(plugins, tiny_glm, tmp_path):
    """As of a predictor without the tensor that tells of it."""
    def rename(name):
        return name.replace("layers.5.eh_proj", "layers.5.eh_projection")

    checkpoint = tiny_glm(tmp_path / "hf", rename=rename)
    with pytest.raises(ArtifactError, match=r"layers\.5\."):
        convert(
            checkpoint.path, tmp_path / "model.ninfer", pack=GlmPack(), registry=plugins.registry)


@frozen(eq=False)
class Stored:
    """A tensor in memory."""

    name: str
    values: Tensor
    format = "bf16"

    @property
    def shape(self):
        return tuple(self.values.shape)

    def dense(self):
        return self.values.float()

    def parts(self):
        return {"codes": self.values}

    def scalars(self):
        return {}


class TestJoinedTensors:
    SPEC = ParameterSpec("convolution", (4, 9), "direct")
    PARAMETER = Parameter(
        SPEC, tuple(Origin(name, select=taps) for name in "qkv"), joined=1)

    def tensors(self, **widths):
        each = {name: Stored(name, torch.randn(width, 1, 4).bfloat16())
                for name, width in widths.items()}
        return each, Tensors(each, ())

    def test_lie_side_by_side(self):
        stored, tensors = self.tensors(q=2, k=3, v=4)
        made = import_parameter(self.PARAMETER, tensors)
        expected = torch.cat([each.values.squeeze(1).T for each in stored.values()], dim=1)
        assert made.sources == ("q", "k", "v") and made.format == "bf16"
        assert torch.equal(made.parts()["codes"], expected)
        assert torch.equal(made.values(), expected.float())
        exact = import_parameter(evolve(self.PARAMETER, fp32=True), tensors)
        assert exact.format == "fp32" and torch.equal(exact.parts()["codes"], expected.float())

    @pytest.mark.parametrize(("widths", "where"), [
        ({"q": 2, "k": 3, "v": 5}, "v"), ({"q": 2, "k": 3, "v": 3}, "convolution"),
        ({"q": 10, "k": 3, "v": 4}, "q"),
    ])
    def test_must_make_up_the_parameter(self, widths, where):
        with pytest.raises(ArtifactError, match=rf"\[{where}\]"):
            import_parameter(self.PARAMETER, self.tensors(**widths)[1])

    def test_must_be_alike_in_the_other_dimensions(self):
        stored, _ = self.tensors(q=2, k=3, v=4)
        stored["k"] = Stored("k", torch.randn(3, 1, 5))
        with pytest.raises(ArtifactError, match=r"\[k\]"):
            import_parameter(self.PARAMETER, Tensors(stored, ()))
