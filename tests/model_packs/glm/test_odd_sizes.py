"""Legal configs at their edges, against transformers: whole, in chunks and token by token."""

from __future__ import annotations

import pytest
import torch

LINEAR, ATTENTION = "linear_attention", "indexed_attention"
CASES = {
    "one layer without attention": {"layer_types": [LINEAR], "mlp_layer_types": ["dense"]},
    "one layer of attention": {"layer_types": [ATTENTION], "mlp_layer_types": ["sparse"]},
    "attention alone": {"layer_types": [ATTENTION] * 2, "mlp_layer_types": ["sparse"] * 2},
    "dense layers alone": {"mlp_layer_types": ["dense"] * 3},
    "pools of one token": {"index_kpool": 1},
    "pools of a page": {"index_kpool": 64, "index_topk": 64},
    "a budget beyond the context": {"index_topk": 4096},
    "one of two experts": {"n_routed_experts": 2, "num_experts_per_tok": 1},
    "all experts, two for all": {"n_routed_experts": 3, "n_shared_experts": 2},
    "one stream, one iteration": {"hc_mult": 1, "hc_sinkhorn_iters": 1},
    "three streams": {"hc_mult": 3},
    "a short convolution": {"linear_conv_kernel_dim": 2},
    "one head": {"num_attention_heads": 1, "num_key_value_heads": 1, "linear_num_heads": 1},
    "tight limits": {"swiglu_limit": 0.05, "linear_lower_bound": -0.01},
}
TOKENS = torch.randint(283, (139,), generator=torch.Generator().manual_seed(8)).tolist()


@pytest.mark.parametrize("name", CASES)
def test_logits(convert_glm, read_glm, name):
    layers = CASES[name].get("layer_types", [LINEAR, ATTENTION, LINEAR])
    sizes = {"num_hidden_layers": len(layers), "layer_types": layers,
             "mlp_layer_types": ["dense", "sparse", "sparse"]} | CASES[name]
    has_predictor = (ATTENTION, "sparse") in zip(layers, sizes["mlp_layer_types"], strict=True)
    checkpoint, path = convert_glm(mtp=has_predictor, **sizes)
    reader, expected = read_glm(path, profile=True), checkpoint.logits(TOKENS)
    for count, width in ((139, 139), (139, 50), (70, 1)):
        error = (reader.logits(TOKENS[:count], width) - expected[:count]).abs().max()
        assert error < 1e-5 * expected.abs().max(), width
