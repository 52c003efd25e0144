"""The parameters of a Qwen hybrid: names here and in checkpoints, and shapes.

Names are those of official artifacts. Names in checkpoints are given in one spelling, the one of
text-only checkpoints; `importing` knows the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ninfer_checkpoints.parameters import Block, Origin, Parameter
from ninfer_checkpoints.selection import rows_of_heads, taps, whole
from ninfer_core.api import ParameterSpec
from ninfer_qwen_family.config import QwenConfig

FeedForward = Callable[[Any, Block], Iterable[Parameter]]
"""``(config, block) -> parameters`` of what a layer has behind its mixer."""


def checkpoint_parameters(config: QwenConfig, feed_forward: FeedForward) -> Iterator[Parameter]:
    """Those that checkpoints have, in the order in which a step reads them."""
    yield from _text_parameters(config, feed_forward)
    if config.mtp:
        yield from _mtp_parameters(config, feed_forward)


def proposal_parameters(config: QwenConfig) -> Iterator[ParameterSpec]:
    """Those of a draft head over some of the tokens, which is made at conversion."""
    if config.proposal_rows:
        shape = (config.proposal_rows, config.hidden_size)
        yield ParameterSpec("proposal/head", shape, inputs=("mtp/final_hidden",))
        if config.proposal_indexed:
            yield ParameterSpec("proposal/token_ids", shape[:1], "direct")


def _text_parameters(config: QwenConfig, feed_forward: FeedForward) -> Iterator[Parameter]:
    hidden = (config.hidden_size,)
    yield token_embedding(config)
    for layer, kind in enumerate(config.layer_types):
        block = text_block(layer)
        mixer = attention if kind == "full_attention" else gated_delta_net
        yield from _layer(config, block, mixer(config, block), feed_forward(config, block))
    yield Parameter(
        ParameterSpec("text/final_norm", hidden, "direct"), (Origin("model.norm.weight"),)
    )
    yield output_head(config)


def token_embedding(config: QwenConfig) -> Parameter:
    """The table of the model and its predictor."""
    shape = (config.vocab_size, config.hidden_size)
    spec = ParameterSpec("text/token_embedding", shape, "table")
    return Parameter(spec, (Origin("model.embed_tokens.weight"),))


def output_head(config: QwenConfig) -> Parameter:
    """The head of the model and its predictor."""
    shape = (config.vocab_size, config.hidden_size)
    readers = ("text/final_hidden", *(["mtp/final_hidden"] if config.mtp else []))
    tied_to = "text/token_embedding" if config.tie_word_embeddings else ""
    head = ParameterSpec("text/output_head", shape, tied_to=tied_to, inputs=readers)
    return Parameter(head, (Origin("lm_head.weight"),))


def _mtp_parameters(config: QwenConfig, feed_forward: FeedForward) -> Iterator[Parameter]:
    width, root, block = config.hidden_size, Block("mtp", "mtp."), mtp_block()
    yield root.direct("embedding_norm", (width,), "pre_fc_norm_embedding.weight")
    yield root.direct("hidden_norm", (width,), "pre_fc_norm_hidden.weight")
    yield root.projection(
        "input_projection", (width, 2 * width), Origin("fc.weight"), input="stem_input"
    )
    yield from _layer(config, block, attention(config, block), feed_forward(config, block))
    yield root.direct("final_norm", (width,), "norm.weight")


def text_block(layer: int) -> Block:
    return Block(f"text/layers/{layer}", f"model.layers.{layer}.")


def mtp_block() -> Block:
    return Block("mtp/layers/0", "mtp.layers.0.")


def _layer(
    config: QwenConfig, block: Block, mixer: Iterable[Parameter], feed_forward: Iterable[Parameter]
) -> Iterator[Parameter]:
    hidden = (config.hidden_size,)
    yield block.direct("input_norm", hidden, "input_layernorm.weight")
    yield from mixer
    yield block.direct("post_attention_norm", hidden, "post_attention_layernorm.weight")
    yield from feed_forward


def attention(config: QwenConfig, block: Block) -> Iterator[Parameter]:
    """Of `GatedAttention`."""
    hidden, dim, heads = config.hidden_size, config.head_dim, config.num_attention_heads
    query, key = (heads * dim, hidden), (config.num_key_value_heads * dim, hidden)
    # of each head the query's rows, then those of its gate
    for name, shape, tensor, select in (
        ("query", query, "q_proj", rows_of_heads(heads, 0, dim)), ("key", key, "k_proj", whole),
        ("gate", query, "q_proj", rows_of_heads(heads, dim, 2 * dim)),
        ("value", key, "v_proj", whole),
    ):
        yield block.projection(
            f"attention/{name}", shape, Origin(f"self_attn.{tensor}.weight", select=select),
            input="mixer_input", parent="attention/query_key_gate_value",
        )
    yield block.direct("attention/query_norm", (dim,), "self_attn.q_norm.weight")
    yield block.direct("attention/key_norm", (dim,), "self_attn.k_norm.weight")
    yield block.projection(
        "attention/output", query[::-1], Origin("self_attn.o_proj.weight"),
        input="attention/gated_output",
    )


def gated_delta_net(config: QwenConfig, block: Block) -> Iterator[Parameter]:
    """Of `GatedDeltaNet`."""
    hidden, heads = config.hidden_size, config.linear_num_value_heads
    key = config.linear_num_key_heads * config.linear_key_head_dim
    value, channels = heads * config.linear_value_head_dim, config.convolution_channels
    for name, tensor, begin, end in (
        ("query", "in_proj_qkv", 0, key), ("key", "in_proj_qkv", key, 2 * key),
        ("value", "in_proj_qkv", 2 * key, channels), ("z", "in_proj_z", 0, value),
    ):
        yield block.projection(
            f"gdn/{name}", (end - begin, hidden),
            Origin(f"linear_attn.{tensor}.weight", (slice(begin, end),)),
            input="mixer_input", parent="gdn/query_key_value_z",
        )
    yield from block.stack(
        "gdn/a_b", "mixer_input", (heads, hidden), a_projection="linear_attn.in_proj_a.weight",
        b_projection="linear_attn.in_proj_b.weight",
    )
    convolution = (config.linear_conv_kernel_dim, channels)
    yield block.direct("gdn/convolution", convolution, "linear_attn.conv1d.weight", taps)
    yield block.direct("gdn/a_log", (heads,), "linear_attn.A_log", fp32=True)
    yield block.direct("gdn/dt_bias", (heads,), "linear_attn.dt_bias", fp32=True)
    yield block.direct("gdn/norm", (config.linear_value_head_dim,), "linear_attn.norm.weight")
    yield block.projection(
        "gdn/output", (hidden, value), Origin("linear_attn.out_proj.weight"),
        input="gdn/gated_output",
    )
