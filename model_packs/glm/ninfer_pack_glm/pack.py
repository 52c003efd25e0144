"""The pack: everything the runtime asks of GLM-5.3-Flash."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ninfer_checkpoints.parameters import Parameter
from ninfer_core import api
from ninfer_nn import channel_delta_net_states, latent_attention_states
from ninfer_pack_glm.config import ARCHITECTURE, GlmConfig, configure
from ninfer_pack_glm.frontend import GlmFrontend
from ninfer_pack_glm.importing import import_source
from ninfer_pack_glm.model import GlmModel, index_sizes
from ninfer_pack_glm.parameters import checkpoint_parameters

STREAM_LAUNCHES, DENSE_LAUNCHES, SPARSE_LAUNCHES = 3, 2, 5
"""Bound ops of a hyper-connection, and of feed-forward blocks, in a step."""
MIXER_LAUNCHES = {"linear_attention": 7, "indexed_attention": 12}

REPLICATED = (
    "*/token_embedding", "*norm*", "*_streams/*", "*/moe/router*", "*/kda/*_down",
    "*/attention/query_down", "*latent*", "*/attention/index/*", "mtp/input_projection",
)
"""Patterns of what machines that share a step each hold whole: what is small or chooses for all."""


class GlmPack:
    """A `ModelPack` driven by dimensions."""

    def configure(self, model: api.ModelDescription) -> GlmConfig:
        return configure(model)

    def checkpoint_parameters(self, config: GlmConfig) -> Iterable[Parameter]:
        """Those that checkpoints have: all of them."""
        return checkpoint_parameters(config)

    def parameters(self, config: GlmConfig) -> tuple[api.ParameterSpec, ...]:
        return tuple(parameter.spec for parameter in checkpoint_parameters(config))

    def states(self, config: GlmConfig) -> tuple[api.StateSpec, ...]:
        """Latents and index keys of attention; states and last columns of delta networks."""
        kinds = {"latent": len(config.ordinals("indexed_attention")),
                 **({"mtp_latent": 1} if config.mtp else {})}
        attention = (
            latent_attention_states(
                name, count, latent_dim=config.kv_lora_rank, index=index_sizes(config)
            )
            for name, count in kinds.items()
        )
        recurrent = channel_delta_net_states(
            len(config.ordinals("linear_attention")), num_heads=config.linear_num_heads,
            head_dim=config.linear_head_dim, taps=config.linear_conv_kernel_dim,
        )
        return (*(state for states in attention for state in states), *recurrent)

    def operations(self, config: GlmConfig) -> Mapping[str, Any]:
        """What grows with the context is the indexer: its heads meet a key for each pool. Attention
        itself reads no more than its budget."""
        attention = len(config.ordinals("indexed_attention"))
        dense = config.mlp_layer_types.count("dense")
        sparse = config.num_hidden_layers - dense
        index = 2 * config.index_n_heads * config.index_head_dim // config.index_kpool
        mixers = sum(MIXER_LAUNCHES[kind] for kind in config.layer_types)
        blocks = 2 * config.num_hidden_layers  # each in streams and behind a norm
        return {
            "vocab_size": config.vocab_size,
            "max_context": config.max_position_embeddings,
            "attention_flops_per_token": attention * index,
            "launches_per_step":
                5 + mixers + blocks * (1 + STREAM_LAUNCHES) + dense * DENSE_LAUNCHES
                + sparse * SPARSE_LAUNCHES,
            "num_experts": config.n_routed_experts,
            "experts_per_token": config.num_experts_per_tok,
            **({"launches_per_draft":
                9 + MIXER_LAUNCHES["indexed_attention"] + SPARSE_LAUNCHES} if config.mtp else {}),
            "selected_states": ("latent", "mtp_latent"), "selected_tokens": config.index_topk,
            "index_block": config.index_kpool,
            "selected_flops_per_token":
                attention * 4 * config.num_attention_heads * config.kv_lora_rank,
            "replicated": REPLICATED, "exchanges_per_step": blocks,
            "exchange_width": config.hidden_size,
        }

    def build(self, config: GlmConfig, context: api.BuildContext) -> GlmModel:
        return GlmModel(config, context)

    def frontend(self, config: GlmConfig, resources: Mapping[str, bytes]) -> GlmFrontend:
        return GlmFrontend(resources)

    def import_source(self, source: api.CheckpointSource) -> api.ImportPlan:
        return import_source(self.configure(source.description), source)

    def tiny(self) -> api.ModelDescription:
        """Two recurrent layers around one of attention, pools of 4, with MTP."""
        config = GlmConfig(
            vocab_size=272, hidden_size=48, num_hidden_layers=3, max_position_embeddings=65_536,
            rms_norm_eps=1e-5,
            layer_types=("linear_attention", "indexed_attention", "linear_attention"),
            mlp_layer_types=("dense", "sparse", "sparse"), intermediate_size=80,
            # All experts: a choice that rounding turns over is a jump in the logits, and sigmoids
            # leave the last of them a large share.
            n_routed_experts=4, num_experts_per_tok=4, n_shared_experts=1,
            moe_intermediate_size=32, routed_scaling_factor=2.5, swiglu_limit=10.0,
            num_attention_heads=3, q_lora_rank=24, kv_lora_rank=32, qk_nope_head_dim=32,
            v_head_dim=12, index_n_heads=2, index_head_dim=16, index_topk=64, index_kpool=4,
            linear_num_heads=3, linear_head_dim=16, linear_conv_kernel_dim=4,
            linear_lower_bound=-5.0, hc_mult=4, hc_eps=1e-6, hc_sinkhorn_iters=4, mtp=True,
        )
        components = {name: each["config"] for name, each in config.components().items()}
        return api.ModelDescription(
            "artifact", (ARCHITECTURE,), components["text"], components
        )
