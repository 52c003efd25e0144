"""Checkpoints of Llama models (Hugging Face, GGUF) to the parameters of this pack."""

from __future__ import annotations

from attrs import evolve
from torch import Tensor

from ninfer_core import api
from ninfer_pack_smollm2.config import LlamaConfig, configure
from ninfer_pack_smollm2.parameters import Parameter, parameters
from ninfer_pack_smollm2.q4_1 import parts_of_blocks


def import_source(source: api.CheckpointSource) -> api.ImportPlan:
    """Place every tensor; by default it keeps the bits it has in the checkpoint."""
    config = configure(source.description)
    if source.description.origin == "gguf":  # no key says it: a tied head is simply absent
        config = evolve(config, tie_word_embeddings="output.weight" not in source.tensors)
    stored = [parameter for parameter in parameters(config) if not parameter.spec.tied_to]
    return api.ImportPlan(
        components={"text": {"config": config.component()}},
        parameters=tuple(_import(parameter, source) for parameter in stored),
        resources=source.resources,
        ignored=_ignored(config, source),
        recipe=(api.StorageChoice("*"),),
    )


def _ignored(config: LlamaConfig, source: api.CheckpointSource) -> dict[str, str]:
    rules = {".rotary_emb.inv_freq": "computed from rope_theta"}
    if config.tie_word_embeddings:
        rules["lm_head.weight"] = "tied to the token embedding"
    return {
        name: reason for name in source.tensors
        for suffix, reason in rules.items() if name.endswith(suffix)
    }


def _import(parameter: Parameter, source: api.CheckpointSource) -> api.ImportedParameter:
    gguf = source.description.origin == "gguf"
    tensor = source.tensors[parameter.gguf if gguf else parameter.huggingface]
    if tuple(tensor.shape) != parameter.spec.shape:
        why = f"{list(tensor.shape)}, the model wants {list(parameter.spec.shape)}"
        raise api.ArtifactError("a tensor has another shape", where=tensor.name, why=why)
    interleaved_heads = parameter.rotated_heads if gguf else 0
    q4_1 = tensor.dtype == "Q4_1"

    def values() -> Tensor:
        return _half_split(tensor.dense(), interleaved_heads)

    def parts() -> dict[str, Tensor]:
        stored = parts_of_blocks(tensor.raw()) if q4_1 else tensor.parts()
        return {name: _half_split(part, interleaved_heads) for name, part in stored.items()}

    return api.ImportedParameter(
        parameter.spec, (tensor.name,), values, parts,
        "q4_1_g32_fp16" if q4_1 else tensor.format, parameter.parent,
    )


def _half_split(rows: Tensor, heads: int) -> Tensor:
    """Move the rows of rotated heads from GGUF's order to ours; 0 heads leaves them.

    GGUF has RoPE's pairs side by side (0, 1), (2, 3) ...; ops rotate halves (0, d/2), (1, d/2 + 1)
    ... Whole rows move, so quantised ones keep their bits.
    """
    if not heads:
        return rows
    pairs = rows.unflatten(0, (heads, -1, 2))  # [heads, d/2, 2, K]
    return pairs.transpose(1, 2).flatten(0, 2)
