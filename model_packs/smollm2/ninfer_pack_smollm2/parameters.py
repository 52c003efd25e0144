"""The parameters of a Llama: how each is called, here and in checkpoints, and how large it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ninfer_core.api import ParameterSpec
from ninfer_pack_smollm2.config import LlamaConfig


class Parameter(NamedTuple):
    """One parameter.

    :ivar huggingface: its tensor in a Hugging Face checkpoint. :ivar gguf: in a GGUF file.
    :ivar parent: object that stores it together with others that one product reads.
    :ivar rotated_heads: how many heads its rows are, if RoPE rotates them, else 0.
    """

    spec: ParameterSpec
    huggingface: str
    gguf: str
    parent: str = ""
    rotated_heads: int = 0


def parameters(config: LlamaConfig) -> Iterator[Parameter]:
    """Every parameter, in the order in which a step reads them."""
    vocab, hidden = config.vocab_size, config.hidden_size
    table = ParameterSpec("text/token_embedding", (vocab, hidden), "table")
    yield Parameter(table, "model.embed_tokens.weight", "token_embd.weight")
    for layer in range(config.num_hidden_layers):
        yield from _layer(config, layer)
    norm = ParameterSpec("text/final_norm", (hidden,), "direct")
    yield Parameter(norm, "model.norm.weight", "output_norm.weight")
    tied_to = table.name if config.tie_word_embeddings else ""
    head = ParameterSpec("text/output_head", (vocab, hidden), tied_to=tied_to)
    yield Parameter(head, "lm_head.weight", "output.weight")


def _layer(config: LlamaConfig, layer: int) -> Iterator[Parameter]:
    hidden, inner = config.hidden_size, config.intermediate_size
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    query, key = heads * config.head_dim, kv_heads * config.head_dim
    qkv, gate_up = "attention/query_key_value", "mlp/gate_up"
    for name, huggingface, gguf, shape, parent, rotated_heads in (
        ("input_norm", "input_layernorm", "attn_norm", (hidden,), "", 0),
        ("attention/query", "self_attn.q_proj", "attn_q", (query, hidden), qkv, heads),
        ("attention/key", "self_attn.k_proj", "attn_k", (key, hidden), qkv, kv_heads),
        ("attention/value", "self_attn.v_proj", "attn_v", (key, hidden), qkv, 0),
        ("attention/output", "self_attn.o_proj", "attn_output", (hidden, query), "", 0),
        ("post_attention_norm", "post_attention_layernorm", "ffn_norm", (hidden,), "", 0),
        ("mlp/gate", "mlp.gate_proj", "ffn_gate", (inner, hidden), gate_up, 0),
        ("mlp/up", "mlp.up_proj", "ffn_up", (inner, hidden), gate_up, 0),
        ("mlp/down", "mlp.down_proj", "ffn_down", (hidden, inner), "", 0),
    ):
        here, theirs = f"text/layers/{layer}/", f"model.layers.{layer}.{huggingface}.weight"
        spec = ParameterSpec(here + name, shape, "projection" if len(shape) == 2 else "direct")
        stack = here + parent if parent else ""
        yield Parameter(spec, theirs, f"blk.{layer}.{gguf}.weight", stack, rotated_heads)
