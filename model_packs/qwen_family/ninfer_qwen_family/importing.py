"""Hugging Face checkpoints of Qwen hybrids to parameters, each kept bit for bit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from typing import TypeVar

import torch
from attrs import evolve
from torch import Tensor

from ninfer_core import api
from ninfer_qwen_family.config import QwenConfig
from ninfer_qwen_family.parameters import FeedForward, Origin, Parameter, checkpoint_parameters

C = TypeVar("C", bound=QwenConfig)
TEXT_ROOTS = ("model.language_model.", "language_model.model.", "model.")
HEADS = ("lm_head.", "language_model.lm_head.")
IGNORED_ROOTS = dict.fromkeys(
    ("model.visual.", "visual."), "the vision tower is not part of the text model"
)
IGNORED_ENDS = {".rotary_emb.inv_freq": "computed from rope_theta"}


def import_source(
    config: C, feed_forward: FeedForward, source: api.CheckpointSource
) -> api.ImportPlan:
    """Place every tensor; by default it keeps the bits it has in the checkpoint.

    What the config says of ties and of the predictor is only a hint: the tensors decide.

    :raises ArtifactError: naming a tensor that is missing or has another shape.
    """
    tensors = Tensors(source.tensors)
    config = evolve(config, tie_word_embeddings=_is_tied(config, tensors),
                    mtp=any(name.startswith("mtp.") for name in source.tensors))
    stored = [p for p in checkpoint_parameters(config, feed_forward) if not p.spec.tied_to]
    return api.ImportPlan(
        components=config.components(),
        parameters=tuple(_import(parameter, tensors) for parameter in stored),
        resources=source.resources,
        ignored=dict(_ignored(config, tensors)),
        recipe=(api.StorageChoice("*"),),
    )


class Tensors:
    """The tensors of a checkpoint under the names of a text-only one."""

    def __init__(self, stored: Mapping[str, api.SourceTensor]) -> None:
        self.stored = stored
        self._roots = {
            "model.": _present(stored, TEXT_ROOTS, "embed_tokens.weight"),
            "lm_head.": _present(stored, HEADS, "weight"),
        }

    def name(self, name: str) -> str:
        """The checkpoint's own name."""
        for ours, theirs in self._roots.items():
            if name.startswith(ours):
                return theirs + name.removeprefix(ours)
        return name

    def find(self, origins: Iterable[Origin]) -> tuple[api.SourceTensor, Origin]:
        """The first that is there, else the last, which raises an error that names it."""
        named = [(self.name(origin.tensor), origin) for origin in origins]
        name, origin = next((each for each in named if each[0] in self.stored), named[-1])
        return self.stored[name], origin


def _present(stored: Mapping[str, api.SourceTensor], roots: tuple[str, ...], tensor: str) -> str:
    return next((root for root in roots if root + tensor in stored), roots[0])


def _is_tied(config: QwenConfig, tensors: Tensors) -> bool:
    """A config may tie the head although the checkpoint has another one of its own."""
    head, table = tensors.name("lm_head.weight"), tensors.name("model.embed_tokens.weight")
    if not config.tie_word_embeddings or head not in tensors.stored:
        return config.tie_word_embeddings
    return torch.equal(tensors.stored[head].dense(), tensors.stored[table].dense())


def _ignored(config: QwenConfig, tensors: Tensors) -> Iterator[tuple[str, str]]:
    rules = dict(IGNORED_ENDS)
    if config.tie_word_embeddings:
        rules[tensors.name("lm_head.weight")] = "tied to the token embedding"
    for name in tensors.stored:
        yield from ((name, why) for root, why in IGNORED_ROOTS.items() if name.startswith(root))
        yield from ((name, why) for end, why in rules.items() if name.endswith(end))


def _import(parameter: Parameter, tensors: Tensors) -> api.ImportedParameter:
    whole, origin = tensors.find(parameter.origins)
    tensor = _cut(parameter, whole, origin)

    def values() -> Tensor:
        return origin.select(tensor.dense())

    def parts() -> dict[str, Tensor]:
        if parameter.fp32:
            return {"codes": values()}
        return {name: origin.select(part) for name, part in tensor.parts().items()}

    return api.ImportedParameter(
        parameter.spec, (whole.name,), values, parts,
        "fp32" if parameter.fp32 else tensor.format, parameter.parent,
        scalars=tensor.scalars, bank=parameter.bank,
    )


def _cut(parameter: Parameter, whole: api.SourceTensor, origin: Origin) -> api.SourceTensor:
    """What of a tensor has the parameter, after checking that its shape comes out."""
    try:
        tensor = reduce(lambda so_far, index: so_far[index], origin.at, whole)
        shape = tuple(origin.select(torch.empty(tensor.shape, device="meta")).shape)
    except (RuntimeError, IndexError):
        shape = ()
    if shape != parameter.spec.shape:
        wanted = f"{parameter.spec.name} of it should be {list(parameter.spec.shape)}"
        why = f"{list(whole.shape)}; {wanted}"
        raise api.ArtifactError("a tensor has another shape", where=whole.name, why=why)
    return tensor
