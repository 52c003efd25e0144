"""Legal configs at their edges, against transformers: whole, in chunks and token by token."""

from __future__ import annotations

import pytest
import torch

LINEAR, ATTENTION = "linear_attention", "indexed_attention"
NO_NGRAMS = {"ple_layer_ids": []}
CASES = {
    "one layer without attention": {"layer_types": [LINEAR], **NO_NGRAMS},
    "one layer of n-grams": {"layer_types": [LINEAR], "ple_layer_ids": [1]},
    "attention alone": {"layer_types": [ATTENTION] * 2, **NO_NGRAMS},
    "n-grams in all layers": {"layer_types": [LINEAR] * 2, "ple_layer_ids": [1, 2]},
    "blocks of one token": {"indexer_compress_ratio": 1, "indexer_budget": 9},
    "blocks of a page": {"indexer_compress_ratio": 64, "indexer_budget": 64},
    "a budget beyond the context": {"indexer_budget": 4096},
    "one expert": {"num_experts": 1, "num_experts_per_tok": 1},
    "all experts": {"num_experts": 3, "num_experts_per_tok": 3},
    "bigrams of one hash": {"ngram_size": 2, "heads_per_ngram": 1, "ple_embed_dim": 16},
    "narrow gates": {"hc_count": 2, "hc_lowrank": 1},
    "short convolutions": {"linear_conv_kernel_dim": 2, "ple_conv_kernel_size": 2},
    "a key for each head": {"num_key_value_heads": 6, "linear_num_value_heads": 2},
    "whole heads rotated": {"indexer_head_dim": 24, "rope_parameters": {
        "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0,
        "mrope_section": [4, 4, 4], "mrope_interleaved": True}},
}
TOKENS = torch.randint(283, (139,), generator=torch.Generator().manual_seed(8)).tolist()


@pytest.mark.parametrize("name", CASES)
def test_logits(convert_tiny, read, name):
    layers = CASES[name].get("layer_types", [LINEAR, LINEAR, ATTENTION])
    sizes = {"num_hidden_layers": len(layers), "layer_types": layers, **CASES[name]}
    checkpoint, path = convert_tiny(mtp=ATTENTION in layers, **sizes)
    reader, expected = read(path, profile=True), checkpoint.logits(TOKENS)
    for count, width in ((139, 139), (139, 50), (70, 1)):
        error = (reader.logits(TOKENS[:count], width) - expected[:count]).abs().max()
        assert error < 1e-5 * expected.abs().max(), width
