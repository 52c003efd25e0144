"""Dimensions of GLM-5.3-Flash, read from an artifact or a Hugging Face config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from attrs import field, fields_dict, frozen
from attrs.validators import ge, gt, in_, le, lt

from ninfer_checkpoints.claims import claim_names
from ninfer_checkpoints.variants import Variants, require_variants
from ninfer_core.api import ArtifactError, Claim, ModelDescription
from ninfer_core.artifact.schema import MAX_LAYERS, read_config

ARCHITECTURE, MTP_ARCHITECTURE = "Glm5NextForConditionalGeneration", "Glm5NextMTP"
MODEL_TYPES = ("glm5_next", "glm5_next_text")
LayerType = Literal["linear_attention", "indexed_attention"]
MlpType = Literal["dense", "sparse"]
INDEXED = ("deepseek_sparse_attention", "full_attention")
"""What checkpoints call `indexed_attention`, besides that."""
POOLS = (1, 2, 4, 8, 16, 32, 64)
"""Tokens that an index key may stand for: they divide a page."""
LINEAR = {
    "num_heads": "linear_num_heads", "head_dim": "linear_head_dim",
    "short_conv_kernel_size": "linear_conv_kernel_dim", "gate_lower_bound": "linear_lower_bound",
}
"""Keys of ``linear_attn_config``, and what they are called beside the others."""
VARIANTS: Variants = {
    "hidden_act": ("silu",), "attention_bias": (False,), "qk_rope_head_dim": (0,),
    "mla_use_nope": (True,), "tie_word_embeddings": (False,), "n_group": (1,), "topk_group": (1,),
    "norm_topk_prob": (True,), "scoring_func": ("sigmoid",), "topk_method": ("noaux_tc",),
    "mhc": (True,), "index_kpool_compress": (True,), "index_kpool_always_select_tail": (True,),
    "num_nextn_predict_layers": (1, 0), "index_topk_freq": (1,), "moe_layer_freq": (1,),
    "moe_router_dtype": ("float32",),
}
SELECTIONS = ("indexer_types", "index_topk_pattern")
"""Which layers select by themselves."""


@frozen(kw_only=True)
class GlmConfig:
    """Names as in Hugging Face configs. No dimension has a default: those of transformers are not
    the published checkpoint's (``index_kpool`` is 4 there).

    :ivar index_topk: tokens that attention selects; ``index_kpool`` of them share an index key.
    :ivar linear_lower_bound: of the logarithms of decays.
    :ivar mtp: whether the next-token predictor is in use.
    :ivar mtp_hidden: what of the model it reads: its hidden states behind the final norm, as most
        implementations have it, or the mean of its streams.
    """

    vocab_size: int = field(validator=ge(1))
    hidden_size: int = field(validator=ge(1))
    num_hidden_layers: int = field(validator=[ge(1), le(MAX_LAYERS)])
    max_position_embeddings: int = field(validator=ge(1))
    rms_norm_eps: float = field(validator=gt(0))
    layer_types: tuple[LayerType, ...]
    mlp_layer_types: tuple[MlpType, ...]
    intermediate_size: int = field(validator=ge(1))
    moe_intermediate_size: int = field(validator=ge(1))
    n_routed_experts: int = field(validator=ge(1))
    n_shared_experts: int = field(validator=ge(1))
    num_experts_per_tok: int = field(validator=ge(1))
    routed_scaling_factor: float = field(validator=gt(0))
    swiglu_limit: float = field(validator=gt(0))
    num_attention_heads: int = field(validator=ge(1))
    q_lora_rank: int = field(validator=ge(1))
    kv_lora_rank: int = field(validator=ge(1))
    qk_nope_head_dim: int = field(validator=ge(1))
    v_head_dim: int = field(validator=ge(1))
    index_n_heads: int = field(validator=ge(1))
    index_head_dim: int = field(validator=ge(1))
    index_topk: int = field(validator=ge(1))
    index_kpool: int = field(validator=in_(POOLS))
    linear_num_heads: int = field(validator=ge(1))
    linear_head_dim: int = field(validator=ge(1))
    linear_conv_kernel_dim: int = field(validator=ge(2))
    linear_lower_bound: float = field(validator=lt(0))
    hc_mult: int = field(validator=ge(1))
    hc_eps: float = field(validator=gt(0))
    hc_sinkhorn_iters: int = field(validator=ge(1))
    mtp: bool = False
    mtp_hidden: Literal["post_norm", "pre_norm"] = "post_norm"

    def __attrs_post_init__(self) -> None:
        for name in ("layer_types", "mlp_layer_types"):
            if (count := len(getattr(self, name))) != self.num_hidden_layers:
                raise ValueError(f"{count} {name} for {self.num_hidden_layers} layers")
        if self.num_experts_per_tok > self.n_routed_experts:
            raise ValueError(f"{self.num_experts_per_tok} of {self.n_routed_experts} experts")
        if self.index_topk % self.index_kpool:
            raise ValueError(f"index_topk {self.index_topk} in pools of {self.index_kpool}")

    @property
    def stream_width(self) -> int:
        """Residual streams of a token, side by side."""
        return self.hc_mult * self.hidden_size

    def ordinals(self, kind: LayerType) -> dict[int, int]:
        """Layers of a kind, each with its number among them."""
        layers = [index for index, each in enumerate(self.layer_types) if each == kind]
        return {layer: ordinal for ordinal, layer in enumerate(layers)}

    def components(self) -> dict[str, dict[str, Any]]:
        """Components of an artifact; `configure` reads their configs back."""
        keys = fields_dict(type(self)).keys() - {"mtp", "mtp_hidden"}
        values = {key: getattr(self, key) for key in sorted(keys)}
        config = {
            "architectures": [ARCHITECTURE], "model_type": MODEL_TYPES[1], **values,
            **{key: list(values[key]) for key in ("layer_types", "mlp_layer_types")},
        }
        if not self.mtp:
            return {"text": {"config": config}}
        mtp = {"architectures": [MTP_ARCHITECTURE], "mtp_hidden": self.mtp_hidden}
        return {"text": {"config": config}, "mtp": {"config": mtp, "target": "text"}}


def claim(model: ModelDescription) -> Claim | None:
    """Exactly this architecture, with a vision tower or without."""
    return claim_names(model, (ARCHITECTURE,), MODEL_TYPES)


def configure(model: ModelDescription) -> GlmConfig:
    """The config of a model.

    :raises ArtifactError: naming every key that is missing or odd, or a variant that is not
        computed.
    """
    keys = _flat_keys(model.config)
    require_variants("GLM", keys, VARIANTS)
    for found in (keys.get(key, []) for key in SELECTIONS):
        if not isinstance(found, list | str) or any(each not in ("full", "F") for each in found):
            why = f"layers share what others select ({' or '.join(SELECTIONS)} is {found!r})"
            raise ArtifactError("this variant of GLM is not supported", why=why)
    keys["mtp"] = "mtp" in model.components
    if "mtp_hidden" in (predictor := model.components.get("mtp", {})):
        keys["mtp_hidden"] = predictor["mtp_hidden"]
    made = read_config(GlmConfig, keys, "GLM-5.3-Flash")
    heads, dim = made.num_attention_heads, made.qk_nope_head_dim
    require_variants("GLM", keys, {"num_key_value_heads": (heads,), "qk_head_dim": (dim,)})
    return made


def _flat_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of the text model without nulls, those of linear attention beside the others."""
    nested = config.get("text_config")
    keys = dict(nested if isinstance(nested, Mapping) else config)
    linear = keys.get("linear_attn_config")
    if isinstance(linear, Mapping):
        keys |= {ours: linear[key] for key, ours in LINEAR.items() if key in linear}
    keys = {key: value for key, value in keys.items() if value is not None}
    if config.get("tie_word_embeddings"):
        keys["tie_word_embeddings"] = config["tie_word_embeddings"]
    if isinstance(types := keys.get("layer_types"), list):
        keys["layer_types"] = [
            "indexed_attention" if each in INDEXED else each for each in types
        ]
    dense, count = keys.get("first_k_dense_replace"), keys.get("num_hidden_layers")
    if "mlp_layer_types" not in keys and isinstance(dense, int) and isinstance(count, int):
        keys["mlp_layer_types"] = _mlp_layer_types(dense, count)
    return keys


def _mlp_layer_types(dense: int, count: int) -> list[MlpType]:
    if count > MAX_LAYERS:
        return []  # refused with the key that is to blame
    return ["dense" if index < dense else "sparse" for index in range(count)]
