"""Hugging Face checkpoints of Qwen hybrids to parameters, each kept bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
from attrs import evolve

from ninfer_checkpoints.importing import Root, Tensors, ignored_tensors, import_parameter
from ninfer_checkpoints.parameters import Parameter
from ninfer_core import api
from ninfer_qwen_family.config import QwenConfig

C = TypeVar("C", bound=QwenConfig)
ROOTS = (
    Root("model.", ("model.language_model.", "language_model.model.", "model."),
         "embed_tokens.weight"),
    Root("lm_head.", ("lm_head.", "language_model.lm_head."), "weight"),
)
IGNORED_ROOTS = dict.fromkeys(
    ("model.visual.", "visual."), "the vision tower is not part of the text model"
)
IGNORED_ENDS = {".rotary_emb.inv_freq": "computed from rope_theta"}


def import_source(
    config: C, parameters: Callable[[C], Iterable[Parameter]], source: api.CheckpointSource
) -> api.ImportPlan:
    """Place every tensor; by default it keeps the bits it has in the checkpoint.

    What the config says of ties and of the predictor is only a hint: the tensors decide.

    :param parameters: those that a checkpoint of a config has.
    :raises ArtifactError: naming a tensor that is missing or has another shape.
    """
    tensors = Tensors(source.tensors, ROOTS)
    config = evolve(config, tie_word_embeddings=_is_tied(config, tensors),
                    mtp=any(name.startswith("mtp.") for name in source.tensors))
    ends = dict(IGNORED_ENDS)
    if config.tie_word_embeddings:
        ends[tensors.name("lm_head.weight")] = "tied to the token embedding"
    return api.ImportPlan(
        components=config.components(),
        parameters=tuple(
            import_parameter(each, tensors) for each in parameters(config)
            if not each.spec.tied_to
        ),
        resources=source.resources,
        ignored=ignored_tensors(source.tensors, begins=IGNORED_ROOTS, ends=ends),
        recipe=(api.StorageChoice("*"),),
    )


def _is_tied(config: QwenConfig, tensors: Tensors) -> bool:
    """A config may tie the head although the checkpoint has another one of its own."""
    head, table = tensors.name("lm_head.weight"), tensors.name("model.embed_tokens.weight")
    if not config.tie_word_embeddings or head not in tensors.stored:
        return config.tie_word_embeddings
    return torch.equal(tensors.stored[head].dense(), tensors.stored[table].dense())
