"""Which models are claimed, and what is read of their configs."""

from __future__ import annotations

import pytest
from attrs import evolve

from ninfer_core.api import ArtifactError, ModelDescription
from ninfer_pack_flash_next.config import claim, configure_flash_next

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
    ({"hc_lowrank": None}, "hc_lowrank is missing"),
    ({"eos_token_id": None}, "eos_token_id is missing"),
    ({"indexer_compress_ratio": None}, "indexer_compress_ratio is missing"),
    ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type is 'yarn'"),
])
def test_what_is_refused(describe, changes, message):
    with pytest.raises(ArtifactError, match=message):
        configure_flash_next(describe(**changes))


def test_an_artifact_describes_the_same(describe, real_config):
    components = {name: each["config"] for name, each in real_config.components().items()}
    model = ModelDescription("artifact", (), components["text"], components)
    assert configure_flash_next(model) == real_config
