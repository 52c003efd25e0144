"""Hugging Face checkpoints of Flash-Next to parameters, each kept bit for bit."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import evolve

from ninfer_checkpoints.importing import Tensors
from ninfer_core import api
from ninfer_pack_flash_next.config import FlashNextConfig
from ninfer_pack_flash_next.hashing import moduli, multipliers, offsets
from ninfer_pack_flash_next.parameters import HASHES, TABLE, checkpoint_parameters
from ninfer_qwen_family.importing import ROOTS, import_source
from ninfer_qwen_family.parameters import text_block

CONSTANTS = {
    "layer_multipliers": multipliers, "ngram_heads_vocab_sizes": moduli,
    "ngram_heads_offsets": offsets,
}
"""Tensors beside a table that follow from the config, and how."""


def import_flash_next(config: FlashNextConfig, source: api.CheckpointSource) -> api.ImportPlan:
    """Place every tensor. Into how many a table is split, the checkpoint knows.

    :raises ArtifactError: as `import_source`, or if constants of the hash are not those that
        follow from the config.
    """
    tensors = Tensors(source.tensors, ROOTS)
    config = evolve(config, split_ngram_parts=_num_shards(config, tensors))
    plan = import_source(config, checkpoint_parameters, source)
    return evolve(plan, ignored={**plan.ignored, **dict(_constants(config, tensors))})


def _num_shards(config: FlashNextConfig, tensors: Tensors) -> int:
    layer = next(iter(config.ngram_ordinals), 0)
    begin = tensors.name(f"{text_block(layer).prefix}{TABLE}shard_")
    shards = [name for name in tensors.stored if name.startswith(begin)]
    return max(1, sum(name.endswith(".weight") for name in shards))


def _constants(config: FlashNextConfig, tensors: Tensors) -> Iterator[tuple[str, str]]:
    """Names of the constants, after checking that a checkpoint hashes as we do."""
    for layer, ordinal in config.ngram_ordinals.items():
        for tensor, derive in CONSTANTS.items():
            name = tensors.name(f"{text_block(layer).prefix}{HASHES}{tensor}")
            if name not in tensors.stored:
                continue
            expected = derive(config, ordinal)
            if (found := tensors.stored[name].raw().tolist()) != [*expected]:
                why = f"it is {found}, the config gives {[*expected]}"
                raise api.ArtifactError("n-grams are hashed in another way", where=name, why=why)
            yield name, "computed from the config"
