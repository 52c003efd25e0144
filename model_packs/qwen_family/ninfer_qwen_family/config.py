"""Dimensions of a Qwen hybrid, read from an artifact or a Hugging Face config."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple, TypeVar

from attrs import field, fields_dict, frozen
from attrs.validators import ge, gt, le, optional

from ninfer_checkpoints.variants import Variants, require_variants
from ninfer_core.api import ArtifactError, ModelDescription
from ninfer_core.artifact.schema import MAX_LAYERS, read_config
from ninfer_qwen_family.rope_settings import rope_settings

LayerType = Literal["linear_attention", "full_attention"]
VARIANTS: Variants = {
    "hidden_act": ("silu",), "attention_bias": (False,), "attn_output_gate": (True,),
    "output_gate_type": ("silu", "swish", "sigmoid"), "rope_type": ("default", "yarn"),
    "mscale": (None,), "mscale_all_dim": (None,), "truncate": (True,),
    "mrope_interleaved": (True,), "mtp_num_hidden_layers": (1, 0),
    "mtp_use_dedicated_embeddings": (False,), "mlp_only_layers": ([],),
}
"""Keys that change the mathematics, with the values that are computed."""


class Names(NamedTuple):
    """Spellings of one kind of hybrid.

    :ivar architecture: of the text component. :ivar model_type: of the text component.
    :ivar mtp: architecture of the MTP component.
    """

    architecture: str
    model_type: str
    mtp: str


@frozen(kw_only=True)
class QwenConfig:
    """What tells one hybrid from another, but for the feed-forward blocks, which the packs add;
    names as in Hugging Face configs.

    :ivar mrope_section: rotated pairs that turn with time, height and width.
    :ivar rope_type: ``yarn``: for contexts ``factor`` times as long as
        ``original_max_position_embeddings``, see `yarn_frequencies`; ``attention_factor`` is what
        queries and keys are scaled by, None: `yarn_scale`.
    :ivar output_gate_type: activation of the gate behind the norm of Gated DeltaNet.
    :ivar mtp: whether the next-token predictor is in use.
    :ivar proposal_rows: rows of its own draft head, or 0 if it drafts with the model's.
    :ivar proposal_indexed: whether those rows stand for a table of token ids.
    """

    names = Names("", "", "")
    vocab_size: int = field(validator=ge(1))
    hidden_size: int = field(validator=ge(1))
    num_hidden_layers: int = field(validator=[ge(1), le(MAX_LAYERS)])
    max_position_embeddings: int = field(validator=ge(1))
    rms_norm_eps: float = field(validator=gt(0))
    layer_types: tuple[LayerType, ...]
    num_attention_heads: int = field(validator=ge(1))
    num_key_value_heads: int = field(validator=ge(1))
    head_dim: int = field(validator=ge(1))
    linear_num_key_heads: int = field(validator=ge(1))
    linear_num_value_heads: int = field(validator=ge(1))
    linear_key_head_dim: int = field(validator=ge(1))
    linear_value_head_dim: int = field(validator=ge(1))
    linear_conv_kernel_dim: int = field(validator=ge(2))
    rope_theta: float = field(validator=gt(0))
    partial_rotary_factor: float = field(validator=gt(0))
    mrope_section: tuple[int, ...]
    rope_type: Literal["default", "yarn"] = "default"
    factor: float = field(default=1.0, validator=ge(1))
    original_max_position_embeddings: int = 0
    beta_fast: float = field(default=32.0, validator=gt(0))
    beta_slow: float = field(default=1.0, validator=gt(0))
    attention_factor: float | None = field(default=None, validator=optional(gt(0)))
    output_gate_type: Literal["silu", "sigmoid"] = "silu"
    tie_word_embeddings: bool = False
    mtp: bool = False
    proposal_rows: int = field(default=0, validator=ge(0))
    proposal_indexed: bool = False

    def __attrs_post_init__(self) -> None:
        if len(self.layer_types) != self.num_hidden_layers:
            why = f"{len(self.layer_types)} layer_types for {self.num_hidden_layers} layers"
            raise ValueError(why)
        if (self.num_attention_heads % self.num_key_value_heads
                or self.linear_num_value_heads % self.linear_num_key_heads):
            raise ValueError(f"heads do not group: {self}")
        if len(self.mrope_section) != 3 or 2 * sum(self.mrope_section) != self.rotary_dim:
            raise ValueError(f"mrope_section {self.mrope_section} of {self.rotary_dim} components")
        if self.rope_type == "yarn" and (
            self.factor == 1 or not self.original_max_position_embeddings
        ):
            raise ValueError("yarn needs a factor and original_max_position_embeddings")
        if self.rope_type == "yarn" and self.rope_theta <= 1:
            raise ValueError(f"yarn needs a rope_theta above 1, not {self.rope_theta}")
        if self.proposal_rows > self.vocab_size:
            raise ValueError(f"{self.proposal_rows} proposed tokens of {self.vocab_size}")

    @property
    def rotary_dim(self) -> int:
        """Components of a head that are rotated."""
        return int(self.head_dim * self.partial_rotary_factor)

    @property
    def max_context(self) -> int:
        """Tokens that positions are made for."""
        longer = int(self.factor * self.original_max_position_embeddings)
        return max(self.max_position_embeddings, longer if self.rope_type == "yarn" else 0)

    @property
    def convolution_channels(self) -> int:
        """Queries, keys and values of Gated DeltaNet, side by side."""
        key = self.linear_num_key_heads * self.linear_key_head_dim
        return 2 * key + self.linear_num_value_heads * self.linear_value_head_dim

    def ordinals(self, kind: LayerType) -> dict[int, int]:
        """Layers of a kind, each with its number among them."""
        layers = [index for index, each in enumerate(self.layer_types) if each == kind]
        return {layer: ordinal for ordinal, layer in enumerate(layers)}

    def components(self) -> dict[str, dict[str, Any]]:
        """Components of an artifact; `configure` reads their configs back."""
        text = {"config": text_config(self)}
        if not self.mtp:
            return {"text": text}
        return {"text": text, "mtp": {"config": {"architectures": [self.names.mtp]},
                                      "target": "text"}}


@frozen(kw_only=True)
class MoeConfig(QwenConfig):
    """With experts in every layer.

    :ivar num_experts_per_tok: routed experts of a token, besides the shared one.
    """

    num_experts: int = field(validator=ge(1))
    num_experts_per_tok: int = field(validator=ge(1))
    moe_intermediate_size: int = field(validator=ge(1))
    shared_expert_intermediate_size: int = field(validator=ge(1))

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.num_experts_per_tok > self.num_experts:
            raise ValueError(f"{self.num_experts_per_tok} of {self.num_experts} experts a token")


C = TypeVar("C", bound=QwenConfig)
_ROPE = ("rope_theta", "partial_rotary_factor", "mrope_section")
_YARN = ("rope_type", "factor", "original_max_position_embeddings", "beta_fast", "beta_slow",
         "attention_factor")
_NOT_OF_THE_TEXT = ("mtp", "proposal_rows", "proposal_indexed")


def text_config(config: QwenConfig) -> dict[str, Any]:
    """The config of the text component."""
    keys = fields_dict(type(config)).keys() - {*_ROPE, *_YARN, *_NOT_OF_THE_TEXT}
    rope = (*_ROPE, *_YARN) if config.rope_type == "yarn" else _ROPE
    return {
        "architectures": [config.names.architecture], "model_type": config.names.model_type,
        **_jsonable(config, sorted(keys)), "rope_parameters": _jsonable(config, rope),
    }


def _jsonable(config: QwenConfig, names: Iterable[str]) -> dict[str, Any]:
    values = ((name, getattr(config, name)) for name in names)
    return {name: [*each] if isinstance(each, tuple) else each
            for name, each in values if each is not None}


def configure(cls: type[C], model: ModelDescription) -> C:
    """The config of a model.

    :raises ArtifactError: naming every key that is missing or odd, or a variant that is not
        computed (biases, another scaling of RoPE, another activation).
    """
    keys = _flat_keys(model.config)
    require_variants("Qwen hybrids", keys, VARIANTS)
    if keys.get("output_gate_type") == "swish":
        keys["output_gate_type"] = "silu"
    return read_config(cls, keys | _optional_parts(model), "Qwen hybrid")


def _flat_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of the text model without nulls, settings of RoPE beside the others.

    What older and converted checkpoints leave out is filled in as transformers does.
    """
    nested = config.get("text_config")
    keys = dict(nested if isinstance(nested, Mapping) else config)
    keys |= rope_settings(keys)
    keys = {key: value for key, value in keys.items() if value is not None}
    # Either place may lack what the other says; the tensors have the last word at import.
    if config.get("tie_word_embeddings"):
        keys["tie_word_embeddings"] = config["tie_word_embeddings"]
    keys.setdefault("partial_rotary_factor", 0.25)
    if "layer_types" not in keys:
        keys["layer_types"] = _layer_types(keys)
    keys.setdefault("mrope_section", _thirds(keys))
    return keys


def _layer_types(keys: Mapping[str, Any]) -> list[LayerType]:
    count, interval = keys.get("num_hidden_layers"), keys.get("full_attention_interval", 4)
    if not isinstance(count, int) or not isinstance(interval, int) or interval < 1:
        return []  # refused with the key that is to blame
    if count > MAX_LAYERS:
        return []  # as well
    return ["linear_attention" if (i + 1) % interval else "full_attention" for i in range(count)]


def _thirds(keys: Mapping[str, Any]) -> list[int]:
    """Sections of a model that was published without: as even as can be, time first."""
    try:
        pairs = int(keys["head_dim"] * keys["partial_rotary_factor"]) // 2
    except (KeyError, TypeError, ValueError, OverflowError):
        return []  # refused with the key that is to blame
    return [(pairs + 2 - axis) // 3 for axis in range(3)]


def _optional_parts(model: ModelDescription) -> dict[str, Any]:
    """What the components in use add to the text model."""
    proposal = model.components.get("proposal", {}) if "mtp" in model.components else {}
    domain, rows = proposal.get("domain", "full"), proposal.get("rows", 0)
    if domain not in ("full", "indexed") or type(rows) is not int:
        raise ArtifactError("the artifact has an odd draft head", why=f"it is {dict(proposal)}")
    return {"mtp": "mtp" in model.components, "proposal_rows": rows,
            "proposal_indexed": domain == "indexed"}
