"""The parameters of GLM-5.3-Flash: names here and in checkpoints, and shapes."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import evolve

from ninfer_checkpoints.parameters import Block, Origin, Parameter, expert_banks, gated_mlp
from ninfer_checkpoints.selection import columns_of_heads, rows_of_heads, taps
from ninfer_core.api import ParameterSpec
from ninfer_pack_glm.config import GlmConfig


def checkpoint_parameters(config: GlmConfig) -> Iterator[Parameter]:
    """Those that checkpoints have, in the order in which a step reads them."""
    yield from _text_parameters(config)
    if config.mtp:
        yield from _mtp_parameters(config)


def mtp_prefix(config: GlmConfig) -> str:
    """The predictor is numbered as one more layer."""
    return f"model.layers.{config.num_hidden_layers}."


def _text_parameters(config: GlmConfig) -> Iterator[Parameter]:
    shape = (config.vocab_size, config.hidden_size)
    table = ParameterSpec("text/token_embedding", shape, "table")
    yield Parameter(table, (Origin("model.embed_tokens.weight"),))
    for layer, kind in enumerate(config.layer_types):
        block = Block(f"text/layers/{layer}", f"model.layers.{layer}.")
        mixer = _channel_delta_net if kind == "linear_attention" else _latent_attention
        feed_forward = _dense if config.mlp_layer_types[layer] == "dense" else _experts
        yield from _streams(config, block, "mixer_streams", "hc_attn_")
        yield block.direct("input_norm", shape[1:], "input_layernorm.weight")
        yield from mixer(config, block)
        yield from _streams(config, block, "ffn_streams", "hc_ffn_")
        yield block.direct("post_attention_norm", shape[1:], "post_attention_layernorm.weight")
        yield from feed_forward(config, block)
    norm = ParameterSpec("text/final_norm", shape[1:], "direct")
    yield Parameter(norm, (Origin("model.norm.weight"),))
    readers = ("text/final_hidden", *(["mtp/final_hidden"] if config.mtp else []))
    yield Parameter(ParameterSpec("text/output_head", shape, inputs=readers),
                    (Origin("lm_head.weight"),))


def _mtp_parameters(config: GlmConfig) -> Iterator[Parameter]:
    width, prefix = config.hidden_size, mtp_prefix(config)
    root, block = Block("mtp", prefix), Block("mtp/layers/0", prefix)
    yield root.direct("embedding_norm", (width,), "enorm.weight")
    yield root.direct("hidden_norm", (width,), "hnorm.weight")
    yield root.projection(
        "input_projection", (width, 2 * width), Origin("eh_proj.weight"), input="stem_input"
    )
    yield block.direct("input_norm", (width,), "input_layernorm.weight")
    yield from _latent_attention(config, block)
    yield block.direct("post_attention_norm", (width,), "post_attention_layernorm.weight")
    yield from _experts(config, block)
    yield root.direct("final_norm", (width,), "shared_head.norm.weight")


def _streams(config: GlmConfig, block: Block, name: str, prefix: str) -> Iterator[Parameter]:
    outputs = config.hc_mult * (config.hc_mult + 2)
    yield block.projection(
        f"{name}/coefficients", (outputs, config.stream_width), Origin(f"{prefix}fn"),
        input="streams",
    )
    yield block.direct(f"{name}/base", (outputs,), f"{prefix}base", fp32=True)
    yield block.direct(f"{name}/scale", (3,), f"{prefix}scale", fp32=True)


def _channel_delta_net(config: GlmConfig, block: Block) -> Iterator[Parameter]:
    hidden, heads, dim = config.hidden_size, config.linear_num_heads, config.linear_head_dim
    width = heads * dim
    for name, rows, tensor in (
        ("query", width, "q"), ("key", width, "k"), ("value", width, "v"), ("beta", heads, "b"),
        ("decay_down", dim, "f_a"), ("gate_down", dim, "g_a"),
    ):
        yield block.projection(
            f"kda/{name}", (rows, hidden), Origin(f"self_attn.{tensor}_proj.weight"),
            input="mixer_input", parent="kda/query_key_value_beta_down",
        )
    for name, tensor in (("decay", "f_b"), ("gate", "g_b")):
        yield block.projection(
            f"kda/{name}_up", (width, dim), Origin(f"self_attn.{tensor}_proj.weight"),
            input=f"kda/{name}_latent",
        )
    shape = (config.linear_conv_kernel_dim, 3 * width)
    convolution = block.direct("kda/convolution", shape, "", fp32=True)
    origins = [Origin(f"{block.prefix}self_attn.{each}_conv1d.weight", select=taps)
               for each in "qkv"]
    yield evolve(convolution, origins=tuple(origins), joined=1)
    yield block.direct("kda/a_log", (heads,), "self_attn.A_log", fp32=True)
    yield block.direct("kda/dt_bias", (width,), "self_attn.dt_bias", fp32=True)
    yield block.direct("kda/norm", (dim,), "self_attn.o_norm.weight")
    yield block.projection(
        "kda/output", (hidden, width), Origin("self_attn.o_proj.weight"), input="kda/gated_output"
    )


def _latent_attention(config: GlmConfig, block: Block) -> Iterator[Parameter]:
    hidden, heads, index = config.hidden_size, config.num_attention_heads, config.index_head_dim
    query, latent = config.q_lora_rank, config.kv_lora_rank
    indexer, first, second = "indexer.", "down_latent_index", "up_index"
    for name, shape, tensor, input, parent in (
        ("query_down", (query, hidden), "q_a_proj.weight", "mixer_input", first),
        ("latent", (latent, hidden), "kv_a_proj_with_mqa.weight", "mixer_input", first),
        ("index/key", (index, hidden), f"{indexer}wk.weight", "mixer_input", first),
        ("index/pool_gate", (index, hidden), f"{indexer}index_kpool_compress_gate",
         "mixer_input", first),
        ("index/head_weights", (config.index_n_heads, hidden), f"{indexer}weights_proj.weight",
         "mixer_input", ""),
        ("query_up", (heads * config.qk_nope_head_dim, query), "q_b_proj.weight",
         "attention/query_latent", second),
        ("index/query", (config.index_n_heads * index, query), f"{indexer}wq_b.weight",
         "attention/query_latent", second),
        ("output", (hidden, heads * config.v_head_dim), "o_proj.weight", "attention/mixed", ""),
    ):
        yield block.projection(
            f"attention/{name}", shape, Origin(f"self_attn.{tensor}"), input=input,
            parent=f"attention/{parent}" if parent else "",
        )
    yield from _absorbed(config, block)
    for name, sizes, tensor in (
        ("query_norm", (query,), "q_a_layernorm.weight"),
        ("latent_norm", (latent,), "kv_a_layernorm.weight"),
        ("index/key_norm", (index,), f"{indexer}k_norm.weight"),
        ("index/key_norm_bias", (index,), f"{indexer}k_norm.bias"),
        ("index/pool_bias", (config.index_kpool, index), f"{indexer}index_kpool_compress_ape"),
    ):
        yield block.direct(f"attention/{name}", sizes, f"self_attn.{tensor}")


def _absorbed(config: GlmConfig, block: Block) -> Iterator[Parameter]:
    """What takes queries to latents, and latents to values, head by head: a head's rows of one
    tensor are those of its keys, then of its values."""
    heads, latent = config.num_attention_heads, config.kv_lora_rank
    keys, values, tensor = config.qk_nope_head_dim, config.v_head_dim, "self_attn.kv_b_proj.weight"
    of_keys = Origin(tensor, select=columns_of_heads(heads, 0, keys))
    key = block.projection("attention/key_up", (heads * latent, keys), of_keys,
                           input="attention/queries")
    yield evolve(key, transposed=True)
    of_values = Origin(tensor, select=rows_of_heads(heads, keys, keys + values))
    yield block.projection("attention/value_up", (heads * values, latent), of_values,
                           input="attention/mixed_latents")


def _dense(config: GlmConfig, block: Block) -> Iterator[Parameter]:
    yield from gated_mlp(block, "mlp", "mlp.", config.hidden_size, config.intermediate_size)


def _experts(config: GlmConfig, block: Block) -> Iterator[Parameter]:
    hidden, inner, experts = (
        config.hidden_size, config.moe_intermediate_size, config.n_routed_experts
    )
    yield block.projection(
        "moe/router", (experts, hidden), Origin("mlp.gate.weight"), input="ffn_input"
    )
    yield block.direct("moe/router_bias", (experts,), "mlp.gate.e_score_correction_bias", fp32=True)
    yield from expert_banks(block, experts, hidden, inner)
    shared = config.n_shared_experts * inner
    yield from gated_mlp(block, "moe/shared", "mlp.shared_experts.", hidden, shared)
