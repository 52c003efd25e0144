"""What a Flash-Next is: its claim and its config."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve, field, frozen
from attrs.validators import ge, in_, lt

from ninfer_checkpoints.claims import claim_names
from ninfer_checkpoints.variants import Variants, require_variants
from ninfer_core.api import ArtifactError, Claim, ModelDescription
from ninfer_qwen_family.config import MoeConfig, Names, configure

ARCHITECTURES = (
    "Qwen4ExpForCausalLM", "Qwen4ExpForConditionalGeneration",
    "Qwen3_8FlashNextForCausalLM", "Qwen3_8FlashNextForConditionalGeneration",
)
MODEL_TYPES = (
    "qwen4_exp", "qwen4_exp_text", "qwen3_8_flash_next", "qwen3_8_flash_next_text",
)
VARIANTS: Variants = {"indexer_kv_heads": (1,), "norm_topk_prob": (True,)}
INDEXED = ("indexed_attention", "qwen_sparse_attention")
"""What layers of attention are called beside ``full_attention``; all have an indexer."""
MTP_VARIANTS: Variants = {
    "num_hidden_layers": (1, 0),
    "layer_types": (*([kind] for kind in ("full_attention", *INDEXED)), []),
    "hybrid": (True,), "mtp_use_hidden_state_from_layer": (None,),
}
"""Of ``mtp``, which some configs have for the predictor alone."""
MAX_ROWS = 2**32
"""Of a head of n-grams: primes are sought from there on, one after the other."""
BLOCKS = (1, 2, 4, 8, 16, 32, 64)
"""Tokens that an index key may stand for: they divide a page."""


@frozen(kw_only=True)
class FlashNextConfig(MoeConfig):
    """Names as in Hugging Face configs.

    :ivar hc_count: streams of the residual. :ivar hc_lowrank: rank of the gates between them.
    :ivar ple_layer_ids: layers with n-gram embeddings, counted from one.
    :ivar ple_embed_dim: of all heads of n-grams side by side.
    :ivar ple_conv_kernel_size: taps of their convolution, each ``ngram_size`` columns apart.
    :ivar ngram_size: tokens of the longest n-gram. :ivar heads_per_ngram: hashes of each.
    :ivar ngram_vocab_size_base: least rows of a head.
    :ivar make_ngram_vocab_size_divisible_by: what the rows of a table are a multiple of.
    :ivar seed: of the hashes' multipliers.
    :ivar split_ngram_parts: tensors that a checkpoint has a table in.
    :ivar eos_token_id: at which n-grams begin anew.
    :ivar indexer_budget: tokens that attention reads, besides those of the open block.
    :ivar indexer_compress_ratio: tokens of a block.
    """

    names = Names("Qwen4ExpForCausalLM", "qwen4_exp_text", "Qwen4ExpMTP")
    hc_count: int = field(validator=ge(2))
    hc_lowrank: int = field(validator=ge(1))
    ple_layer_ids: tuple[int, ...]
    ple_embed_dim: int = field(validator=ge(1))
    ple_conv_kernel_size: int = field(validator=ge(2))
    ngram_size: int = field(validator=ge(2))
    heads_per_ngram: int = field(validator=ge(1))
    ngram_vocab_size_base: int = field(validator=[ge(1), lt(MAX_ROWS)])
    make_ngram_vocab_size_divisible_by: int = field(validator=ge(1))
    seed: int = 1234
    split_ngram_parts: int = field(default=1, validator=ge(1))
    eos_token_id: int
    indexer_n_heads: int = field(validator=ge(1))
    indexer_head_dim: int = field(validator=ge(1))
    indexer_budget: int = field(validator=ge(1))
    indexer_compress_ratio: int = field(validator=in_(BLOCKS))

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.ple_embed_dim % self.ngram_heads:
            raise ValueError(f"ple_embed_dim {self.ple_embed_dim} of {self.ngram_heads} heads")
        if self.indexer_budget % self.indexer_compress_ratio:
            raise ValueError(f"indexer_budget {self.indexer_budget} is no number of blocks")
        if self.eos_token_id >= self.vocab_size:
            raise ValueError(f"eos_token_id {self.eos_token_id} of {self.vocab_size} tokens")
        if self.rotary_dim > self.indexer_head_dim:
            raise ValueError(f"{self.rotary_dim} rotated of {self.indexer_head_dim} components")
        known = range(1, self.num_hidden_layers + 1)
        if odd := [i for i in self.ple_layer_ids if i not in known]:
            raise ValueError(f"ple_layer_ids {odd} of {self.num_hidden_layers} layers")
        if odd := [i for i in self.ple_layer_ids if self.layer_types[i - 1] == "full_attention"]:
            raise ValueError(f"ple_layer_ids {odd} are layers of attention")

    @property
    def streams_width(self) -> int:
        """All streams of the residual, side by side."""
        return self.hc_count * self.hidden_size

    @property
    def ngram_heads(self) -> int:
        """Rows of a table that one token chooses."""
        return (self.ngram_size - 1) * self.heads_per_ngram

    @property
    def ngram_ordinals(self) -> dict[int, int]:
        """Layers with n-gram embeddings, each with its number among them."""
        return {layer - 1: i for i, layer in enumerate(sorted({*self.ple_layer_ids}))}


def claim(model: ModelDescription) -> Claim | None:
    """Exactly the architectures, under either name, with a vision tower or without."""
    return claim_names(model, ARCHITECTURES, MODEL_TYPES)


def configure_flash_next(model: ModelDescription) -> FlashNextConfig:
    """The config of a model; raises as `configure` does."""
    nested = model.config.get("text_config")
    keys = dict(nested if isinstance(nested, Mapping) else model.config)
    require_variants("Flash-Next", keys, VARIANTS)
    if isinstance(kinds := keys.get("layer_types"), list):
        keys["layer_types"] = ["full_attention" if k in INDEXED else k for k in kinds]
    if isinstance(ends := keys.get("eos_token_id"), list) and ends:
        keys["eos_token_id"] = ends[0]
    if keys.get("ple_embed_dim") is None:
        keys["ple_embed_dim"] = keys.get("hidden_size")
    keys["ple_layer_ids"] = keys.get("ple_layer_ids") or []
    keys["partial_rotary_factor"] = keys.get("partial_rotary_factor") or 1.0
    description = evolve(model, config={**model.config, "text_config": keys})
    config = configure(FlashNextConfig, description)
    mtp = keys.get("mtp") or {}
    if not isinstance(mtp, Mapping):
        raise ArtifactError("this variant of Flash-Next is not supported", why=f"mtp is {mtp!r}")
    require_variants(
        "Flash-Next", mtp, {**MTP_VARIANTS, "rope_theta": (config.rope_theta,)}, "mtp.")
    return config
