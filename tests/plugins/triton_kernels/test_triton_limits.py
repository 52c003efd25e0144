"""Clamped products of gated MLPs against the references."""

import pytest
import torch

from ninfer_conformance.tolerances import require_close

LIMIT = 0.4


@pytest.mark.parametrize("name", ["bf16", "q8_g32_fp16"])
@pytest.mark.parametrize("count", [1, 130])
def test_swiglu(name, count, bind, make_weight, randn, poisoned):
    """At the weight's own pace, and by way of the library's product."""
    weight = make_weight(name, 64, 96)
    swiglu, reference = bind("swiglu", {"limit": LIMIT}, weight=weight)
    x = 2 * randn(count, 96)
    expected = reference(x, poisoned(count, 32))
    require_close(swiglu(x, poisoned(count, 32)), expected, "product", "bf16")
    plain, _ = bind("swiglu", weight=weight)
    assert (plain(x, poisoned(count, 32)).float() - expected.float()).abs().max() > 0.1


@pytest.mark.parametrize("op", ["moe_mlp", "shared_moe_mlp"])
@pytest.mark.parametrize("count", [2, 130])
def test_experts(op, count, bind, make_weight, randn, poisoned, device):
    """Token by token, and grouped by expert."""
    weights = {"gate_up": make_weight("q8_g32_fp16", 4 * 64, 96),
               "down": make_weight("q8_g32_fp16", 4 * 96, 32)}
    if op == "shared_moe_mlp":
        weights |= {"shared_gate_up": make_weight("q8_g32_fp16", 64, 96, seed=5),
                    "shared_down": make_weight("q8_g32_fp16", 96, 32, seed=6)}
    mlp, reference = bind(op, {"num_experts": 4, "top_k": 2, "limit": LIMIT}, **weights)
    x, ids = 2 * randn(count, 96), torch.tensor([[1, 3], [0, 1]], dtype=torch.int32, device=device)
    choices = ids.repeat(count // 2, 1), torch.rand(count, 2, device=device)
    score = [None] if op == "shared_moe_mlp" else []
    expected = reference(x, *choices, *score, poisoned(count, 96))
    require_close(mlp(x, *choices, *score, poisoned(count, 96)), expected, "experts", "bf16")
