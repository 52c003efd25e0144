"""Dimensions of a Llama, read from an artifact, a Hugging Face config or GGUF metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import asdict, field, frozen
from attrs.validators import ge, gt, le

from ninfer_core.api import ArtifactError, Claim, ModelDescription
from ninfer_core.artifact.schema import MAX_LAYERS, read_config

ARCHITECTURE = "LlamaForCausalLM"

GGUF_KEYS = {
    "llama.vocab_size": "vocab_size",
    "llama.embedding_length": "hidden_size",
    "llama.feed_forward_length": "intermediate_size",
    "llama.block_count": "num_hidden_layers",
    "llama.attention.head_count": "num_attention_heads",
    "llama.attention.head_count_kv": "num_key_value_heads",
    "llama.rope.dimension_count": "head_dim",
    "llama.context_length": "max_position_embeddings",
    "llama.attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "llama.rope.freq_base": "rope_theta",
    "llama.rope.scaling.type": "rope_type",
    "llama.rope.scaling.factor": "factor",
}
VARIANTS = {
    "hidden_act": ("silu",), "attention_bias": (False,), "mlp_bias": (False,),
    "rope_type": ("default", "none"), "factor": (1.0,), "partial_rotary_factor": (1.0,),
}
"""Keys that change the mathematics, with the values this pack computes."""


@frozen
class LlamaConfig:
    """What tells one Llama from another; names as in Hugging Face configs."""

    vocab_size: int = field(validator=ge(1))
    hidden_size: int = field(validator=ge(1))
    intermediate_size: int = field(validator=ge(1))
    num_hidden_layers: int = field(validator=[ge(1), le(MAX_LAYERS)])
    num_attention_heads: int = field(validator=ge(1))
    max_position_embeddings: int = field(validator=ge(1))
    rms_norm_eps: float = field(validator=gt(0))
    num_key_value_heads: int = field(validator=ge(1))
    head_dim: int = field(validator=ge(1))
    rope_theta: float = field(default=10_000.0, validator=gt(0))
    tie_word_embeddings: bool = False

    @num_key_value_heads.default
    def _no_groups(self) -> int:
        return self.num_attention_heads

    @head_dim.default
    def _even_split(self) -> int:
        return self.hidden_size // max(self.num_attention_heads, 1)

    def __attrs_post_init__(self) -> None:
        if self.num_attention_heads % self.num_key_value_heads or self.head_dim % 2:
            raise ValueError(f"heads do not group, or have odd sizes: {self}")

    def component(self) -> dict[str, Any]:
        """The ``text`` component of an artifact; `configure` reads it back."""
        return {"architectures": [ARCHITECTURE], "model_type": "llama", **asdict(self)}


def claim(model: ModelDescription) -> Claim | None:
    """Any Llama, whatever its size."""
    names = (*model.architectures, model.config.get("model_type"))
    if ARCHITECTURE in names or "llama" in names:
        return Claim(50, f"Llama architecture of {model.origin} origin")
    return None


def configure(model: ModelDescription) -> LlamaConfig:
    """The config of a model.

    :raises ArtifactError: naming every key that is missing or odd, or a variant of Llama that this
        pack does not compute (biases, scaled RoPE, another activation).
    """
    gguf = {ours: model.config[key] for key, ours in GGUF_KEYS.items() if key in model.config}
    keys = gguf if model.origin == "gguf" else _flat_keys(model.config)
    for key, computed in VARIANTS.items():
        if (found := keys.get(key, computed[0])) not in computed:
            why = f"{key} is {found!r}; the pack computes {computed[0]!r}"
            raise ArtifactError("this variant of Llama is not supported", why=why)
    return read_config(LlamaConfig, keys, "Llama")


def _flat_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of RoPE beside the others, where older configs have them; absent where null."""
    keys = dict(config)
    for name in ("rope_scaling", "rope_parameters"):
        given = config.get(name) or {}
        found = given if isinstance(given, Mapping) else {"type": given}
        keys |= {"rope_type" if key == "type" else key: value for key, value in found.items()}
    return {key: value for key, value in keys.items() if value is not None}
