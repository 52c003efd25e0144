"""Hugging Face checkpoints of GLM-5.3-Flash to parameters, each kept bit for bit."""

from __future__ import annotations

from attrs import evolve

from ninfer_checkpoints.importing import Root, Tensors, ignored_tensors, import_parameter
from ninfer_core import api
from ninfer_pack_glm.config import GlmConfig
from ninfer_pack_glm.parameters import checkpoint_parameters, mtp_prefix

ROOTS = (
    Root("model.", ("model.language_model.", "model."), "embed_tokens.weight"),
    Root("lm_head.", ("lm_head.",), "weight"),
)
IGNORED = {"model.visual.": "the vision tower is not part of the text model"}


def import_source(config: GlmConfig, source: api.CheckpointSource) -> api.ImportPlan:
    """Place every tensor; by default it keeps the bits it has in the checkpoint. Whether there is
    a predictor, the tensors say.

    :raises ArtifactError: naming a tensor that is missing or has another shape.
    """
    tensors = Tensors(source.tensors, ROOTS)
    stem = tensors.name(f"{mtp_prefix(config)}eh_proj.weight")
    config = evolve(config, mtp=stem in source.tensors)
    return api.ImportPlan(
        components=config.components(),
        parameters=tuple(
            import_parameter(each, tensors) for each in checkpoint_parameters(config)
        ),
        resources=source.resources,
        ignored=ignored_tensors(source.tensors, begins=IGNORED, ends={}),
        recipe=(api.StorageChoice("*"),),
    )
