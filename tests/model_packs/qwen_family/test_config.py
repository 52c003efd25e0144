"""Dimensions out of artifacts and Hugging Face configs, and what is refused."""

from __future__ import annotations

import pytest
from attrs import evolve

from ninfer_core.api import ArtifactError, ModelDescription
from ninfer_pack_qwen_dense.config import DenseConfig
from ninfer_pack_qwen_dense.config import claim as claim_dense
from ninfer_pack_qwen_moe.config import MoeConfig
from ninfer_pack_qwen_moe.config import claim as claim_moe
from ninfer_qwen_family.config import configure

ROPE = {
    "rope_type": "default", "rope_theta": 10_000_000, "partial_rotary_factor": 0.25,
    "mrope_interleaved": True, "mrope_section": [11, 11, 10],
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 262_144}
TEXT = {  # of Qwen3.6-27B
    "model_type": "qwen3_5_text", "hidden_size": 5120, "num_hidden_layers": 64,
    "intermediate_size": 17408, "num_attention_heads": 24, "num_key_value_heads": 4,
    "head_dim": 256, "attn_output_gate": True, "linear_num_key_heads": 16,
    "linear_num_value_heads": 48, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4, "mamba_ssm_dtype": "float32", "output_gate_type": "swish",
    "vocab_size": 248320, "tie_word_embeddings": False, "rms_norm_eps": 1e-6,
    "hidden_act": "silu", "attention_bias": False, "rope_parameters": ROPE,
    "max_position_embeddings": 262144, "bos_token_id": 248044, "pad_token_id": None,
    "full_attention_interval": 4, "layer_types": None, "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False,
}
EXPERTS = {
    "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512, "mlp_only_layers": [],
}


def describe(text, *, nested=True, **outer):
    architecture = "Qwen3_5ForConditionalGeneration"
    config = {"model_type": "qwen3_5", "text_config": text, **outer} if nested else text
    return ModelDescription("huggingface", (architecture,), config)


def read(text=TEXT, **options):
    return configure(DenseConfig, describe(text, **options))


def test_a_nested_config():
    config = read()
    assert (config.hidden_size, config.intermediate_size, config.rotary_dim) == (5120, 17408, 64)
    assert config.convolution_channels == 10240
    assert config.output_gate_type == "silu"
    assert not config.mtp  # only tensors can say


def test_a_flat_config_is_the_same():
    assert read(nested=False) == read()


def test_an_artifact_gives_back_the_config():
    config = evolve(read(), mtp=True)
    components = {name: each["config"] for name, each in config.components().items()}
    text = components["text"]
    model = ModelDescription("artifact", tuple(text["architectures"]), text, components)
    assert configure(DenseConfig, model) == config
    assert text["architectures"] == ["Qwen3_5ForCausalLM"]
    assert components["mtp"] == {"architectures": ["Qwen3_5MTP"]}
    assert config.components()["mtp"]["target"] == "text"


def test_only_components_in_use_are_configured():
    components = {"text": TEXT, "proposal": {"domain": "indexed", "rows": 7}}
    model = ModelDescription("artifact", ("Qwen3_5ForCausalLM",), TEXT, components)
    assert configure(DenseConfig, model).proposal_rows == 0
    model = evolve(model, components={**components, "mtp": {}})
    config = configure(DenseConfig, model)
    assert (config.mtp, config.proposal_rows, config.proposal_indexed) == (True, 7, True)


@pytest.mark.parametrize(
    "proposal", [{"domain": "some", "rows": 7}, {"rows": "7"}, {"rows": -1}, {"rows": 248321}]
)
def test_odd_draft_heads_are_refused(proposal):
    components = {"text": TEXT, "mtp": {}, "proposal": proposal}
    model = ModelDescription("artifact", ("Qwen3_5ForCausalLM",), TEXT, components)
    with pytest.raises(ArtifactError):
        configure(DenseConfig, model)


def test_layer_types_come_from_the_interval_where_they_are_null():
    kinds = read().layer_types
    assert [i for i, kind in enumerate(kinds) if kind == "full_attention"] == [*range(3, 64, 4)]
    assert read(TEXT | {"full_attention_interval": 8}).layer_types[7] == "full_attention"


def test_layer_types_go_before_the_interval():
    given = ["full_attention", "linear_attention"] * 32
    assert read(TEXT | {"layer_types": given}).layer_types == tuple(given)


def test_ordinals_count_layers_of_a_kind():
    assert read().ordinals("full_attention")[11] == 2
    assert read().ordinals("linear_attention")[8] == 6


@pytest.mark.parametrize("place", ["top", "rope", "none"])
def test_the_rotary_factor_is_at_either_place_or_a_quarter(place):
    rope = {key: value for key, value in ROPE.items() if key != "partial_rotary_factor"}
    factor = {"partial_rotary_factor": 0.25}
    text = TEXT | {"rope_parameters": rope | (factor if place == "rope" else {})}
    assert read(text | (factor if place == "top" else {})).rotary_dim == 64


def test_older_configs_have_rope_in_other_places():
    old = TEXT | {"rope_parameters": None, "rope_theta": 5e6, "rope_scaling": None}
    config = read(old)
    assert (config.rope_theta, config.mrope_section) == (5e6, (11, 11, 10))
    scaled = old | {"rope_scaling": {"type": "default", "mrope_section": [12, 10, 10]}}
    assert read(scaled).mrope_section == (12, 10, 10)


@pytest.mark.parametrize(("gate", "activation"), [
    ("swish", "silu"), ("silu", "silu"), ("sigmoid", "sigmoid"), (None, "silu"),
])
def test_output_gates(gate, activation):
    assert read(TEXT | {"output_gate_type": gate}).output_gate_type == activation


@pytest.mark.parametrize(("inner", "outer", "tied"), [
    (True, {}, True), (False, {"tie_word_embeddings": True}, True),
    (False, {"tie_word_embeddings": False}, False), (None, {"tie_word_embeddings": True}, True),
])
def test_either_config_may_tie_the_head(inner, outer, tied):
    config = read(TEXT | {"tie_word_embeddings": inner}, **outer)
    assert config.tie_word_embeddings is tied


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"output_gate_type": "tanh"}, "output_gate_type"), ({"hidden_act": "gelu"}, "hidden_act"),
        ({"attention_bias": True}, "attention_bias"),
        ({"attn_output_gate": False}, "attn_output_gate"),
        ({"mtp_num_hidden_layers": 2}, "mtp_num_hidden_layers"),
        ({"mtp_use_dedicated_embeddings": True}, "mtp_use_dedicated_embeddings"),
        ({"mlp_only_layers": [0]}, "mlp_only_layers"),
        ({"rope_parameters": ROPE | {"rope_type": "dynamic", "factor": 4.0}}, "rope_type"),
        ({"rope_parameters": ROPE | YARN | {"mscale": 1.0}}, "mscale"),
        ({"rope_parameters": ROPE | YARN | {"truncate": False}}, "truncate"),
        ({"rope_parameters": ROPE | {"mrope_interleaved": False}}, "mrope_interleaved"),
        ({"rope_parameters": None, "rope_scaling": "linear"}, "rope_type"),
    ],
)
def test_variants_that_are_not_computed_are_refused(change, name):
    with pytest.raises(ArtifactError, match=f"not supported: {name}"):
        read(TEXT | change)


def test_yarn_has_as_many_positions_as_it_is_for():
    config = read(TEXT | {"rope_parameters": ROPE | YARN})
    assert (config.rope_type, config.max_context) == ("yarn", 1_048_576)
    assert read(TEXT).max_context == TEXT["max_position_embeddings"]
    text = config.components()["text"]["config"]
    assert text["rope_parameters"].items() >= YARN.items() and read(text) == config


@pytest.mark.parametrize("missing", ["factor", "original_max_position_embeddings"])
def test_yarn_needs_its_sizes(missing):
    given = {key: value for key, value in YARN.items() if key != missing}
    with pytest.raises(ArtifactError, match="yarn needs a factor"):
        read(TEXT | {"rope_parameters": ROPE | given})


@pytest.mark.parametrize(("change", "why"), [
    ({"original_max_position_embeddings": 1024}, "original_max_position_embeddings is 1024 beside"),
    ({"rope_scaling": {"rope_type": "default"}}, "rope_scaling.rope_type is 'default'"),
    ({"rope_scaling": {"mrope_section": [11, 11, 10]}}, "rope_scaling.rope_type is 'default'"),
    ({"rope_scaling": YARN | {"factor": 2.0}}, "rope_parameters.factor is 4.0, and rope_scaling"),
    ({"rope_parameters": ROPE, "rope_scaling": YARN}, "rope_parameters.rope_type is 'default'"),
    ({"rope_parameters": ROPE | YARN | {"type": "linear"}}, "rope_parameters.type is 'linear'"),
    ({"rope_parameters": ROPE} | YARN, "rope_type is 'yarn' beside"),
    ({"rope_parameters": None, "rope_theta": 1e7} | YARN, "rope_type is 'yarn' beside"),
    ({"factor": 2.0}, "factor is 2.0 beside rope_parameters, and 4.0"),
    ({"attention_factor": 2.0}, "attention_factor is 2.0 beside"),
    ({"rope_theta": 1e7, "rope_parameters": {"full_attention": ROPE | YARN}},
     "rope_parameters differs by layer: full_attention"),
    ({"rope_parameters": ROPE | YARN | {"truncate": None}}, "truncate is null"),
])
def test_yarn_that_transformers_computes_otherwise_is_refused(change, why):
    with pytest.raises(ArtifactError, match=f"settings of RoPE are not supported: .*{why}"):
        read(TEXT | {"rope_parameters": ROPE | YARN} | change)


@pytest.mark.parametrize("change", [
    {"original_max_position_embeddings": 262_144}, {"rope_scaling": {"type": "yarn"}},
    {"rope_scaling": YARN}, {"rope_type": "yarn", "factor": 4},
    {"rope_parameters": ROPE | YARN | {"type": "yarn", "attention_factor": None}},
])
def test_the_same_yarn_twice_is_yarn(change):
    yarn = TEXT | {"rope_parameters": ROPE | YARN}
    assert read(yarn | change) == read(yarn)


@pytest.mark.parametrize(("change", "why"), [
    ({"attention_factor": 0}, "'attention_factor' must be > 0"),
    ({"rope_theta": 1}, "rope_theta above 1"), ({"rope_theta": 0.5}, "rope_theta above 1"),
])
def test_yarn_of_no_meaning_is_refused(change, why):
    with pytest.raises(ArtifactError, match=why):
        read(TEXT | {"rope_parameters": ROPE | YARN | change})


@pytest.mark.parametrize("factor", [None, 1.5])
def test_an_artifact_gives_back_the_scale_of_yarn(factor):
    given = read(TEXT | {"rope_parameters": ROPE | YARN | {"attention_factor": factor}})
    assert given.attention_factor == factor
    assert read(given.components()["text"]["config"]) == given


@pytest.mark.parametrize("types", [None, ["full_attention"]])
def test_more_layers_than_any_model_has_are_refused(types):
    text = TEXT | {"num_hidden_layers": 10**18, "layer_types": types}
    with pytest.raises(ArtifactError, match="'num_hidden_layers' must be <= 10000"):
        read(text)


@pytest.mark.parametrize("key", [
    "vocab_size", "hidden_size", "num_hidden_layers", "rms_norm_eps", "head_dim",
    "intermediate_size", "linear_num_value_heads", "max_position_embeddings",
])
def test_a_missing_key_is_named(key):
    with pytest.raises(ArtifactError, match=f"{key} is missing"):
        read({name: value for name, value in TEXT.items() if name != key})


@pytest.mark.parametrize(
    "change",
    [
        {"layer_types": ["full_attention"]}, {"layer_types": ["sliding"] * 64},
        {"num_attention_heads": 5}, {"linear_num_value_heads": 24, "linear_num_key_heads": 16},
        {"rope_parameters": ROPE | {"mrope_section": [11, 11, 11]}}, {"hidden_size": "5120"},
        {"rope_parameters": ROPE | {"partial_rotary_factor": float("nan")}},
        {"linear_conv_kernel_dim": 1}, {"full_attention_interval": 0}, {"head_dim": 0},
    ],
)
def test_odd_values_are_refused(change):
    with pytest.raises(ArtifactError, match="not that of a Qwen hybrid"):
        read(TEXT | change)


def test_experts():
    text = {key: value for key, value in TEXT.items() if key != "intermediate_size"} | EXPERTS
    config = configure(MoeConfig, describe(text))
    assert (config.num_experts, config.num_experts_per_tok) == (256, 8)
    with pytest.raises(ArtifactError, match="9 of 8 experts"):
        configure(MoeConfig, describe(text | {"num_experts": 8, "num_experts_per_tok": 9}))


NAMES = {
    claim_dense: ("Qwen3_5", "qwen3_5"), claim_moe: ("Qwen3_5Moe", "qwen3_5_moe"),
}


@pytest.mark.parametrize("claim", NAMES)
def test_claims(claim):
    name, kind = NAMES[claim]
    other = next(each for each in NAMES if each is not claim)
    for architecture in (f"{name}ForCausalLM", f"{name}ForConditionalGeneration"):
        model = ModelDescription("huggingface", (architecture,), {"model_type": kind})
        assert claim(model).score == 100
        assert other(model) is None
        assert claim(evolve(model, origin="gguf")) is None
    for model_type in (kind, f"{kind}_text"):
        model = ModelDescription("huggingface", ("Finetuned",), {"model_type": model_type})
        assert claim(model).score == 50
        assert other(model) is None


@pytest.mark.parametrize("architecture", ["Qwen3ForCausalLM", "Qwen3_5ForSequenceClassification"])
def test_others_are_not_claimed(architecture):
    model = ModelDescription("huggingface", (architecture,), {"model_type": "qwen3"})
    assert claim_dense(model) is None
    assert claim_moe(model) is None
