"""The parameters of a Flash-Next: names here and in checkpoints, and shapes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ninfer_checkpoints.parameters import Block, Origin, Parameter, sparse_moe
from ninfer_checkpoints.selection import taps
from ninfer_core.api import ParameterSpec
from ninfer_pack_flash_next.config import FlashNextConfig
from ninfer_pack_flash_next.hashing import num_rows
from ninfer_qwen_family.parameters import (
    attention,
    gated_delta_net,
    mtp_block,
    output_head,
    text_block,
    token_embedding,
)

HASHES = "ple.ple_embedding."
TABLE = f"{HASHES}ngram_embedding."


def checkpoint_parameters(config: FlashNextConfig) -> Iterator[Parameter]:
    """Those that checkpoints have, in the order in which a step reads them."""
    yield token_embedding(config)
    for layer, kind in enumerate(config.layer_types):
        block = text_block(layer)
        mixer = indexed_attention if kind == "full_attention" else gated_delta_net
        if layer in config.ngram_ordinals:
            yield from _ngrams(config, block, config.ngram_ordinals[layer])
        yield from _layer(config, block, mixer(config, block))
    yield from _mixer(config, Block("text", "model."))
    yield output_head(config)
    if config.mtp:
        yield from _mtp(config)


def indexed_attention(config: FlashNextConfig, block: Block) -> Iterator[Parameter]:
    """Gated attention, and its indexer."""
    yield from attention(config, block)
    width, queries = config.indexer_head_dim, config.indexer_n_heads * config.indexer_head_dim
    for name, begin, end in (("query", 0, queries), ("key", queries, queries + width)):
        yield block.projection(
            f"attention/index/{name}", (end - begin, config.hidden_size),
            Origin("self_attn.indexer.index_qk_proj.weight", (slice(begin, end),)),
            input="mixer_input", parent="attention/index/query_key",
        )
    for name, tensor in (("query", "q_layernorm"), ("key", "k_layernorm")):
        yield block.direct(
            f"attention/index/{name}_norm", (width,), f"self_attn.indexer.{tensor}.weight"
        )


def _layer(
    config: FlashNextConfig, block: Block, mixer: Iterable[Parameter]
) -> Iterator[Parameter]:
    yield from _streams(config, block, "mixer_streams", "attn_hyper_connection", writes=True)
    yield from mixer
    yield from _streams(config, block, "ffn_streams", "mlp_hyper_connection", writes=True)
    yield from sparse_moe(
        block, hidden=config.hidden_size, num_experts=config.num_experts,
        inner=config.moe_intermediate_size, shared_inner=config.shared_expert_intermediate_size,
    )


def _mixer(config: FlashNextConfig, block: Block) -> Iterator[Parameter]:
    """What reads the streams at the end."""
    return _streams(config, block, "final_streams", "hyper_connection_mixer", writes=False)


def _streams(
    config: FlashNextConfig, block: Block, name: str, prefix: str, *, writes: bool
) -> Iterator[Parameter]:
    wide, rank = config.streams_width, config.hc_lowrank
    yield block.direct(f"{name}/norm", (wide,), f"{prefix}.hc_norm.weight")
    parts = [("down", rank, "input_mix_weight_down")]
    if writes:
        parts.append(("inject", config.hc_count, "block_inject_weight"))
    for part, rows, tensor in parts:
        yield block.projection(
            f"{name}/{part}", (rows, wide), Origin(f"{prefix}.{tensor}.weight"),
            input=f"{name}/normed", parent=f"{name}/down_inject",
        )
    yield block.projection(
        f"{name}/up", (wide, rank), Origin(f"{prefix}.input_mix_weight_up.weight"),
        input=f"{name}/low_rank",
    )


def _ngrams(config: FlashNextConfig, block: Block, ordinal: int) -> Iterator[Parameter]:
    wide, width = config.streams_width, config.ple_embed_dim
    shape = (num_rows(config, ordinal), width // config.ngram_heads)
    spec = ParameterSpec(f"{block.name}/ngram/table", shape, "table", on_host=True)
    shards = [f"shard_{i}." for i in range(config.split_ngram_parts)]
    origins = tuple(Origin(f"{block.prefix}{TABLE}{shard}weight") for shard in shards)
    yield Parameter(spec, origins, joined=0)
    for name, rows in (("key", wide), ("value", config.hidden_size)):
        yield block.projection(
            f"ngram/{name}", (rows, width), Origin(f"ple.{name}_proj.weight"),
            input="ngram/embedding", parent="ngram/key_value",
        )
    for name, tensor in (("key", "key"), ("query", "query"), ("convolution", "conv")):
        yield block.direct(f"ngram/{name}_norm", (wide,), f"ple.norm_{tensor}.weight")
    shape = (config.ple_conv_kernel_size, wide)
    yield block.direct("ngram/convolution", shape, "ple.conv1d.weight", taps)


def _mtp(config: FlashNextConfig) -> Iterator[Parameter]:
    width, root, block = config.hidden_size, Block("mtp", "mtp."), mtp_block()
    for name, size in (("embedding", width), ("hidden", config.streams_width)):
        yield root.direct(f"{name}_norm", (size,), f"pre_fc_norm_{name}.weight")
        yield root.projection(
            f"{name}_projection", (width, width), Origin(f"fc_{name}.weight"),
            input=f"{name}_input",
        )
    yield from _layer(config, block, indexed_attention(config, block))
    yield from _mixer(config, root)
