"""The pack: everything the runtime asks of a Flash-Next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ninfer_checkpoints.parameters import Parameter
from ninfer_core import api
from ninfer_nn import indexed_attention_states, ngram_states
from ninfer_pack_flash_next.config import FlashNextConfig, configure_flash_next
from ninfer_pack_flash_next.importing import import_flash_next
from ninfer_pack_flash_next.model import FlashNextModel, index_sizes
from ninfer_pack_flash_next.parameters import checkpoint_parameters
from ninfer_qwen_family.pack import QwenPack

REPLICATED = (
    "*/token_embedding", "*norm*", "*_streams/*", "*/moe/router", "*/moe/shared_score",
    "*/attention/index/*", "*ngram*", "mtp/*_projection", "*_index", "*_tail",
)
"""Patterns of what machines that share a step each hold whole: what is small or chooses for all."""


class FlashNextPack(QwenPack[FlashNextConfig]):
    """Driven by dimensions."""

    config_class = FlashNextConfig

    def configure(self, model: api.ModelDescription) -> FlashNextConfig:
        return configure_flash_next(model)

    def checkpoint_parameters(self, config: FlashNextConfig) -> Iterable[Parameter]:
        return checkpoint_parameters(config)

    def states(self, config: FlashNextConfig) -> tuple[api.StateSpec, ...]:
        """Keys, values and index keys of attention; states of Gated DeltaNet; tokens and columns
        of n-grams."""
        counts = {"kv": len(config.ordinals("full_attention")), "mtp_kv": int(config.mtp)}
        attention = (
            state for name, count in counts.items()
            if count for state in indexed_attention_states(
                name, count, num_kv_heads=config.num_key_value_heads, head_dim=config.head_dim,
                index=index_sizes(config),
            )
        )
        ngrams = ngram_states(
            len(config.ngram_ordinals), ngram_size=config.ngram_size,
            channels=config.streams_width, taps=config.ple_conv_kernel_size,
        )
        return (*attention, *self.recurrent_states(config), *ngrams)

    def operations(self, config: FlashNextConfig) -> Mapping[str, Any]:
        """Each index head meets each block in a product; attention is of bounded length."""
        attention, ngrams = len(config.ordinals("full_attention")), len(config.ngram_ordinals)
        recurrent, streams, experts = config.num_hidden_layers - attention, 6, 6
        layer = 2 * streams + experts
        index = 2 * config.indexer_n_heads * config.indexer_head_dim
        return {
            "vocab_size": config.vocab_size,
            "max_context": config.max_context,
            "attention_flops_per_token":
                attention * index // config.indexer_compress_ratio,
            "launches_per_step":
                9 + attention * (8 + layer) + recurrent * (6 + layer) + ngrams * 10,
            "num_experts": config.num_experts, "experts_per_token": config.num_experts_per_tok,
            **({"launches_per_draft": 13 + config.hc_count + 8 + layer} if config.mtp else {}),
            "selected_states": ("kv", "mtp_kv"), "selected_tokens": config.indexer_budget,
            "index_block": config.indexer_compress_ratio,
            "selected_flops_per_token":
                attention * 4 * config.num_attention_heads * config.head_dim,
            "gathered_rows": {f"text/layers/{layer}/ngram/table": config.ngram_heads
                              for layer in config.ngram_ordinals},
            "replicated": REPLICATED, "exchanges_per_step": 2 * config.num_hidden_layers,
            "exchange_width": config.hidden_size,
        }

    def build(self, config: FlashNextConfig, context: api.BuildContext) -> FlashNextModel:
        return FlashNextModel(config, context)

    def import_source(self, source: api.CheckpointSource) -> api.ImportPlan:
        return import_flash_next(self.configure(source.description), source)

    def tiny_sizes(self) -> Mapping[str, Any]:
        """N-grams in the second layer, and attention to eight blocks."""
        # All experts but the last: a choice that rounding turns over is a jump in the logits.
        return {
            "num_experts": 5, "num_experts_per_tok": 4, "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 48, "output_gate_type": "sigmoid", "hc_count": 3,
            "hc_lowrank": 20, "ple_layer_ids": (2,), "ple_embed_dim": 32,
            "ple_conv_kernel_size": 4, "ngram_size": 3, "heads_per_ngram": 2,
            "ngram_vocab_size_base": 50, "make_ngram_vocab_size_divisible_by": 8,
            "eos_token_id": 258, "indexer_n_heads": 2, "indexer_head_dim": 16,
            "indexer_budget": 32, "indexer_compress_ratio": 4,
        }
