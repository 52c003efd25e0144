"""Dimensions out of each kind of description, and what is refused."""

from __future__ import annotations

import pytest
from attrs import evolve

from ninfer_core.api import ArtifactError, ModelDescription
from ninfer_pack_smollm2.config import LlamaConfig, claim, configure

CONFIG = LlamaConfig(
    vocab_size=100, hidden_size=48, intermediate_size=80, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=12, max_position_embeddings=512,
    rms_norm_eps=1e-5, rope_theta=5e5, tie_word_embeddings=True,
)
HUGGINGFACE = {
    "model_type": "llama", "vocab_size": 100, "hidden_size": 48, "intermediate_size": 80,
    "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5, "hidden_act": "silu",
}


def describe(config, origin="huggingface", architecture="LlamaForCausalLM"):
    return ModelDescription(origin, (architecture,), config)


def test_an_artifact_gives_back_the_config():
    component = CONFIG.component()
    assert configure(describe(component, "artifact", *component["architectures"])) == CONFIG


def test_gguf_metadata():
    metadata = {
        "llama.vocab_size": 100, "llama.embedding_length": 48, "llama.feed_forward_length": 80,
        "llama.block_count": 2, "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2, "llama.rope.dimension_count": 12,
        "llama.context_length": 512, "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 5e5, "llama.rope.scaling.type": "none",
    }
    untied = evolve(CONFIG, tie_word_embeddings=False)
    assert configure(describe(metadata, "gguf", "llama")) == untied


def test_huggingface_defaults():
    config = configure(describe(HUGGINGFACE | {"head_dim": None, "rope_scaling": None}))
    assert (config.num_key_value_heads, config.head_dim) == (4, 12)
    assert (config.rope_theta, config.tie_word_embeddings) == (10_000.0, False)


@pytest.mark.parametrize(
    "rope", [{"rope_theta": 7e4}, {"rope_parameters": {"rope_type": "default", "rope_theta": 7e4}}]
)
def test_rope_theta_of_old_and_new_configs(rope):
    assert configure(describe(HUGGINGFACE | rope)).rope_theta == 7e4


@pytest.mark.parametrize("key", ["vocab_size", "hidden_size", "rms_norm_eps"])
def test_a_missing_key_is_named(key):
    config = {name: value for name, value in HUGGINGFACE.items() if name != key}
    with pytest.raises(ArtifactError, match=key):
        configure(describe(config))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("vocab_size", "many"), ("vocab_size", "100"), ("vocab_size", 100.5), ("vocab_size", -1),
        ("num_attention_heads", [4]), ("tie_word_embeddings", "false"), ("rope_theta", 0),
        ("rope_theta", float("nan")), ("rms_norm_eps", float("inf")), ("head_dim", 13),
        ("num_key_value_heads", 3), ("num_hidden_layers", 10**18),
    ],
)
def test_an_odd_value_is_refused_by_name(key, value):
    with pytest.raises(ArtifactError, match=key):
        configure(describe(HUGGINGFACE | {key: value}))


@pytest.mark.parametrize("key", ["num_attention_heads", "num_hidden_layers", "head_dim"])
def test_zero_is_refused(key):
    with pytest.raises(ArtifactError, match=r"not that of a Llama"):
        configure(describe(HUGGINGFACE | {key: 0}))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"attention_bias": True}, "attention_bias"), ({"mlp_bias": True}, "mlp_bias"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_type"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "rope_type"),
        ({"rope_scaling": {"factor": 2.0}}, "factor"), ({"rope_scaling": "linear"}, "rope_type"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    ],
)
def test_variants_that_are_not_computed_are_refused(change, name):
    with pytest.raises(ArtifactError, match=f"not supported: {name}"):
        configure(describe(HUGGINGFACE | change))


@pytest.mark.parametrize(
    "model",
    [
        describe(CONFIG.component(), "artifact"), describe(HUGGINGFACE),
        describe({"model_type": "llama"}, architecture="MyLlama"), describe({}, "gguf", "llama"),
    ],
)
def test_llamas_are_claimed(model):
    assert claim(model).score == 50


@pytest.mark.parametrize(
    "architecture", ["LlamaForSequenceClassification", "MistralForCausalLM", "llama4", []]
)
def test_others_are_not_claimed(architecture):
    assert claim(describe({"model_type": architecture}, architecture=architecture)) is None
