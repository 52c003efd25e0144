"""Dimensions of the published model out of its config, and what is refused."""

from __future__ import annotations

from collections import Counter
from math import prod

import pytest
import transformers
from attrs import evolve, fields
from transformers.models.glm5_next.configuration_glm5_next import Glm5NextTextConfig

from ninfer_core.api import ArtifactError, ModelDescription
from ninfer_pack_glm.config import SELECTIONS, VARIANTS, GlmConfig, claim, configure
from ninfer_pack_glm.pack import GlmPack

LINEAR = {"num_heads": 64, "head_dim": 128, "short_conv_kernel_size": 4, "gate_lower_bound": -5.0}
LAYERS = ["linear_attention"] * 3 + ["deepseek_sparse_attention"]
TEXT = {  # of GLM-5.3-Flash
    "model_type": "glm5_next_text", "vocab_size": 154880, "hidden_size": 4096,
    "num_hidden_layers": 45, "num_nextn_predict_layers": 1, "rms_norm_eps": 1e-5,
    "intermediate_size": 12288, "moe_intermediate_size": 2048, "first_k_dense_replace": 3,
    "hidden_act": "silu", "n_routed_experts": 288, "num_experts_per_tok": 8,
    "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "scoring_func": "sigmoid",
    "topk_method": "noaux_tc", "norm_topk_prob": True, "routed_scaling_factor": 2.5,
    "moe_router_dtype": "float32", "swiglu_limit": 10.0,
    "layer_types": [*LAYERS * 11, "linear_attention"], "indexer_types": ["full"] * 45,
    "num_attention_heads": 64, "num_key_value_heads": 64, "q_lora_rank": 1536,
    "kv_lora_rank": 512, "qk_nope_head_dim": 256, "qk_rope_head_dim": 0, "v_head_dim": 256,
    "mla_use_nope": True, "linear_attn_config": LINEAR, "attention_bias": False,
    "qk_head_dim": 256, "head_dim": 0, "dtype": "bfloat16",
    "index_n_heads": 32, "index_head_dim": 128, "index_topk": 2048, "index_kpool": 4,
    "index_kpool_compress": True, "index_kpool_always_select_tail": True,
    "indexer_rope_interleave": True, "index_share_for_mtp_iteration": True, "mhc": True,
    "hc_mult": 4, "hc_eps": 1e-6, "hc_sinkhorn_iters": 20, "max_position_embeddings": 1048576,
    "tie_word_embeddings": False, "eos_token_id": [154820, 154827, 154829], "pad_token_id": 154820,
}
NOTHING = {  # keys that change no logit, and why
    "head_dim": "transformers overrides it by that of RoPE", "pad_token_id": "batches are ragged",
    "indexer_rope_interleave": "nothing is rotated", "rope_parameters": "the same",
    "rope_scaling": "the same", "rope_theta": "the same", "eos_token_id": "the frontend's",
    "bos_token_id": "the frontend's",
    "index_share_for_mtp_iteration": "drafts are verified, whatever they select",
    "index_skip_topk_offset": "of layers that share, which are refused",
    "initializer_range": "of training", "router_aux_loss_coef": "of training",
    "output_router_logits": "of training", "attention_dropout": "of training",
    "use_cache": "there is always one", "dtype": "the tensors say it",
}
VISION_PARAMETERS, VISION_TENSORS = 563_627_008, 347


def describe(text, *, nested=True):
    config = {"model_type": "glm5_next", "text_config": text} if nested else text
    return ModelDescription("huggingface", ("Glm5NextForConditionalGeneration",), config)


@pytest.fixture(scope="module")
def published():
    return evolve(configure(describe(TEXT)), mtp=True)


def test_a_nested_and_a_flat_config(published):
    assert configure(describe(TEXT, nested=False)) == evolve(published, mtp=False)
    assert len(published.ordinals("linear_attention")) == 34
    assert [*published.ordinals("indexed_attention")] == [*range(3, 45, 4)]
    assert published.mlp_layer_types == ("dense",) * 3 + ("sparse",) * 42
    assert published.linear_lower_bound == -5.0


def test_parameters_of_the_published_model(published):
    """With its vision tower as many as the checkpoint's, in as many tensors."""
    parameters = [*GlmPack().checkpoint_parameters(published)]
    tensors = [each.tensor for parameter in parameters for each in (
        parameter.origins if parameter.joined is not None else parameter.origins[-1:])]
    count = sum(prod(parameter.spec.shape) for parameter in parameters)
    assert count + VISION_PARAMETERS == 321_323_031_390
    assert len({*tensors}) == 76_108 - 37_338 - VISION_TENSORS
    twice = [each for each, count in Counter(tensors).items() if count > 1]
    assert len(twice) == 12 and all(each.endswith("kv_b_proj.weight") for each in twice)
    assert len(tensors) == len({*tensors}) + 12  # keys and values


def test_state_of_the_published_model(published):
    """Values of a token, and of a sequence, as its sheet counts them."""
    states = {state.name: state for state in GlmPack().states(evolve(published, mtp=False))}
    (latents,), (keys,) = states["latent"].planes, states["latent_index"].planes
    assert (states["latent"].layers, latents.shape) == (11, (1, 512))
    assert (states["latent_index"].layers, keys.shape, keys.tokens_per_entry) == (11, (128,), 4)
    assert states["kda_state"].layers * prod(states["kda_state"].shape) * 4 == 136 << 20
    assert prod(states["kda_convolution"].shape) == 3 * 24576


def test_an_artifact_gives_back_the_config(published):
    for hidden in ("post_norm", "pre_norm"):
        config = evolve(published, mtp_hidden=hidden)
        components = {name: each["config"] for name, each in config.components().items()}
        model = ModelDescription("artifact", (), components["text"], components)
        assert configure(model) == config


@pytest.mark.parametrize(("key", "missing"), [
    *((key, key) for key in ("index_kpool", "index_topk", "swiglu_limit", "hc_mult",
                             "layer_types", "kv_lora_rank")),
    ("linear_attn_config", "linear_head_dim"), ("first_k_dense_replace", "mlp_layer_types"),
])
def test_no_dimension_has_a_default(key, missing):
    """Those of transformers are not the published model's: `index_kpool` would be 16."""
    with pytest.raises(ArtifactError, match=f"{missing} is missing"):
        configure(describe({name: each for name, each in TEXT.items() if name != key}))


@pytest.mark.parametrize(("key", "value"), [
    ("scoring_func", "softmax"), ("qk_rope_head_dim", 64), ("n_group", 8), ("mhc", False),
    ("index_kpool_always_select_tail", False), ("index_kpool_compress", False),
    ("tie_word_embeddings", True), ("norm_topk_prob", False), ("attention_bias", True),
    ("indexer_types", ["full", "shared"]), ("indexer_types", 3), ("hidden_act", "gelu"),
    ("index_topk_pattern", "FFS"), ("moe_router_dtype", "bfloat16"), ("num_key_value_heads", 8),
    ("qk_head_dim", 320), ("moe_layer_freq", 2), ("num_nextn_predict_layers", 2),
])
def test_variants_are_refused_by_name(key, value):
    with pytest.raises(ArtifactError, match=key):
        configure(describe({**TEXT, key: value}))


def test_tied_at_the_top_is_tied():
    model = describe(TEXT)
    with pytest.raises(ArtifactError, match="tie_word_embeddings"):
        configure(evolve(model, config={**model.config, "tie_word_embeddings": True}))


def test_every_key_is_read_or_known_to_change_nothing(published):
    """Of the published config, and of transformers' class."""
    ours = {each.name for each in fields(GlmConfig)} - {"mtp", "mtp_hidden"}
    read = {*ours, *VARIANTS, *SELECTIONS, "linear_attn_config", "first_k_dense_replace",
            "num_key_value_heads", "qk_head_dim", "model_type"}
    theirs = {*vars(Glm5NextTextConfig())} - {*vars(transformers.PreTrainedConfig())}
    assert (theirs | TEXT.keys()) - read == NOTHING.keys() & (theirs | TEXT.keys())
    assert not read & NOTHING.keys()
    odd = {key: "odd" for key in NOTHING}
    assert configure(describe({**TEXT, **odd})) == evolve(published, mtp=False)
    linear = {**LINEAR, "kda_layers": [0], "full_attn_layers": []}
    assert configure(describe({**TEXT, "linear_attn_config": linear})) == configure(describe(TEXT))


@pytest.mark.parametrize(("key", "value", "why"), [
    ("layer_types", LAYERS, "4 layer_types for 45"), ("index_topk", 2047, "pools of 4"),
    ("num_experts_per_tok", 289, "of 288 experts"), ("hc_mult", 0, "hc_mult"),
    ("index_kpool", 128, "'index_kpool' must be in"), ("index_kpool", 3, "'index_kpool' must be"),
    ("linear_attn_config", {**LINEAR, "gate_lower_bound": None}, "linear_lower_bound"),
    ("layer_types", ["sliding_attention"] * 45, "layer_types"),
])
def test_odd_dimensions_are_refused(key, value, why):
    with pytest.raises(ArtifactError, match=why):
        configure(describe({**TEXT, key: value}))


@pytest.mark.parametrize("types", [None, ["sparse"]])
def test_more_layers_than_any_model_has_are_refused(types):
    text = {**TEXT, "num_hidden_layers": 10**18, "mlp_layer_types": types}
    with pytest.raises(ArtifactError, match="'num_hidden_layers' must be <= 10000"):
        configure(describe(text))


def test_claims():
    assert claim(describe(TEXT)).score == 100
    other = ModelDescription("huggingface", ("Glm4MoeForCausalLM",), {"model_type": "glm4_moe"})
    assert claim(other) is None
    assert claim(ModelDescription("huggingface", (), {"model_type": "glm5_next"})).score == 50
