"""Which models are claimed, and what is read of their configs."""

from __future__ import annotations

import pytest
import transformers
from attrs import evolve, fields
from transformers.models.qwen4_exp.configuration_qwen4_exp import Qwen4ExpTextConfig

from ninfer_core.api import ArtifactError, ModelDescription
from ninfer_pack_flash_next.config import VARIANTS, FlashNextConfig, claim, configure_flash_next
from ninfer_qwen_family.config import VARIANTS as QWEN_VARIANTS

NOTHING = {  # keys that change no logit, and why
    "initializer_range": "of training", "router_aux_loss_coef": "of training",
    "output_router_logits": "of training", "attention_dropout": "of training",
    "use_cache": "there is always one", "pad_token_id": "batches are ragged",
    "bos_token_id": "the frontend's", "dtype": "the tensors say it",
    "ple_embedding_dtype": "the tensors say it", "mamba_ssm_dtype": "states are fp32",
    "number_of_conv_states": "of transformers' cache",
}
BASE = ("Qwen3_5ForCausalLM", "Qwen3_5MoeForConditionalGeneration")


@pytest.mark.parametrize("name", ["Qwen4Exp", "Qwen3_8FlashNext"])
@pytest.mark.parametrize("kind", ["ForCausalLM", "ForConditionalGeneration"])
def test_both_names_are_claimed(name, kind):
    assert claim(ModelDescription("huggingface", (name + kind,), {})).score == 100


@pytest.mark.parametrize("name", ["qwen4_exp", "qwen3_8_flash_next"])
def test_types_alone_are_claimed_with_less(name):
    for kind in (name, f"{name}_text"):
        assert claim(ModelDescription("huggingface", (), {"model_type": kind})).score == 50


@pytest.mark.parametrize("name", BASE)
def test_other_hybrids_are_not(name):
    assert claim(ModelDescription("huggingface", (name,), {"model_type": "qwen3_5"})) is None


def test_the_real_config(describe):
    config = configure_flash_next(describe())
    assert config.ordinals("full_attention") == {4 * i + 3: i for i in range(12)}
    assert config.ngram_ordinals == {1: 0}  # ple_layer_ids count from one
    assert config.streams_width == 10_240 and config.ngram_heads == 16
    assert config.rotary_dim == 64 and config.seed == 1234
    assert config.eos_token_id == 248_044  # of the text config, not the end of a turn


@pytest.mark.parametrize("name", ["indexed_attention", "qwen_sparse_attention"])
def test_other_words_for_layers_of_attention(describe, name):
    kinds = ["linear_attention"] * 3 + [name]
    changed = configure_flash_next(describe(layer_types=kinds * 12))
    assert changed == configure_flash_next(describe())


def test_what_may_be_missing_or_null(describe):
    wanted = configure_flash_next(describe())
    assert configure_flash_next(describe(ple_embed_dim=None, seed=None)) == wanted
    bare = describe()
    del bare.config["text_config"]["layer_types"], bare.config["text_config"]["split_ngram_parts"]
    assert configure_flash_next(bare) == evolve(wanted, split_ngram_parts=1)
    assert configure_flash_next(describe(eos_token_id=[248_044, 248_046])) == wanted
    assert configure_flash_next(describe(ple_layer_ids=None)).ngram_ordinals == {}


@pytest.mark.parametrize(("changes", "message"), [
    ({"indexer_kv_heads": 2}, "indexer_kv_heads is 2"),
    ({"norm_topk_prob": False}, "norm_topk_prob is False"),
    ({"indexer_budget": 2047}, "no number of blocks"),
    ({"indexer_budget": 2049, "indexer_compress_ratio": 3}, "'indexer_compress_ratio' must be in"),
    ({"indexer_compress_ratio": 128}, "'indexer_compress_ratio' must be in"),
    ({"eos_token_id": 248320}, "eos_token_id 248320 of 248320"),
    ({"indexer_head_dim": 63}, "64 rotated of 63"),
    ({"ple_embed_dim": 2561}, "2561 of 16 heads"),
    ({"ple_layer_ids": [0]}, r"ple_layer_ids \[0\]"),
    ({"hc_count": 1}, "hc_count"),
    ({"ngram_vocab_size_base": 10**18}, "'ngram_vocab_size_base' must be < "),
    ({"hc_lowrank": None}, "hc_lowrank is missing"),
    ({"eos_token_id": None}, "eos_token_id is missing"),
    ({"indexer_compress_ratio": None}, "indexer_compress_ratio is missing"),
    ({"rope_parameters": {"rope_type": "linear"}}, "rope_type is 'linear'"),
    ({"rope_parameters": {"type": "yarn", "factor": 4.0, "rope_theta": 1e7}},
     "yarn needs a factor"),
    ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_scaling.rope_type is 'yarn'"),
    ({"num_hidden_layers": 10**18, "layer_types": None}, "'num_hidden_layers' must be <= 10000"),
    ({"ple_layer_ids": [2, 4]}, r"\[4\] are layers of attention"),
    ({"mtp": {"num_hidden_layers": 2}}, "mtp.num_hidden_layers is 2"),
    ({"mtp": {"layer_types": ["linear_attention"]}}, "mtp.layer_types is"),
    ({"mtp": {"hybrid": False}}, "mtp.hybrid is False"),
    ({"mtp": {"mtp_use_hidden_state_from_layer": 46}}, "from_layer is 46"),
    ({"mtp": {"rope_theta": 1e6}}, "mtp.rope_theta is 1000000.0"),
    ({"mtp": 1}, "mtp is 1"),
    ({"rope_parameters": {"rope_theta": 1e7}, "partial_rotary_factor": None},
     "256 rotated of 128"),  # all, as transformers has it
])
def test_what_is_refused(describe, changes, message):
    with pytest.raises(ArtifactError, match=message):
        configure_flash_next(describe(**changes))


def test_every_key_is_read_or_known_to_change_nothing(describe, real_config):
    """Of the published config, and of transformers' class."""
    ours = {each.name for each in fields(FlashNextConfig)} - {
        "mtp", "mtp_hidden", "proposal_rows", "proposal_indexed"}
    read = {*ours, *VARIANTS, *QWEN_VARIANTS, "mtp", "rope_parameters", "full_attention_interval",
            "model_type"}
    theirs = {*vars(Qwen4ExpTextConfig())} - {*vars(transformers.PreTrainedConfig())}
    published = describe().config["text_config"].keys()
    assert (theirs | published) - read == NOTHING.keys() & (theirs | published)
    assert not read & NOTHING.keys()
    odd = describe(**dict.fromkeys(NOTHING, "odd"))
    assert configure_flash_next(odd) == configure_flash_next(describe())


def test_an_artifact_describes_the_same(describe, real_config):
    components = {name: each["config"] for name, each in real_config.components().items()}
    model = ModelDescription("artifact", (), components["text"], components)
    assert configure_flash_next(model) == real_config
