"""Mixtures of experts against the references."""

import pytest
import torch

from ninfer_conformance.tolerances import require_close

SIZES = {"num_experts": 4, "top_k": 2}
BANKS = {
    "bf16": ((4, 64, 96), (4, 96, 32)),
    "q4_g64_fp16": ((4 * 64, 96), (4 * 96, 32)),
    "q5_g64_fp16": ((4 * 64, 96), (4 * 96, 32)),
    "q8_g32_fp16": ((4 * 64, 96), (4 * 96, 32)),
    "nvfp4": ((8, 32, 96), (4, 96, 32)),
}
"""Shapes of gate_up and down of four experts of 32, for a width of 96."""


@pytest.mark.parametrize("num_experts, top_k", [(6, 3), (256, 8)])
def test_moe_route(num_experts, top_k, bind, randn, device):
    route, reference = bind("moe_route", {"num_experts": num_experts, "top_k": top_k}, bias=None)
    logits = randn(3, num_experts + 5)[:, :num_experts]
    logits[0, 4] = logits[0, 2] = logits.max()  # a tie
    logits[1] = -logits[1].abs()
    logits[1, 3], logits[1, 1], logits[1, 0] = 0.0, -0.0, 0.0  # and another
    ids = torch.full((2, 3, top_k), -1, dtype=torch.int32, device=device)
    weights = torch.full((2, 3, top_k), torch.nan, device=device)
    route(logits, ids[0], weights[0])
    reference(logits, ids[1], weights[1])
    assert torch.equal(ids[0], ids[1])
    require_close(weights[0], weights[1], "shares", "fp32")


@pytest.mark.parametrize("num_experts, top_k", [(6, 3), (288, 8)])
@pytest.mark.parametrize("biased", [False, True])
def test_moe_route_by_sigmoids(num_experts, top_k, biased, bind, randn, device):
    bias = randn(num_experts, seed=2).float() / 4 if biased else None
    sizes = {"num_experts": num_experts, "top_k": top_k, "scoring": "sigmoid", "scale": 2.5}
    route, reference = bind("moe_route", sizes, bias=bias)
    logits = 2 * randn(3, num_experts + 5)[:, :num_experts].float()
    ids = torch.full((2, 3, top_k), -1, dtype=torch.int32, device=device)
    weights = torch.full((2, 3, top_k), torch.nan, device=device)
    route(logits, ids[0], weights[0])
    reference(logits, ids[1], weights[1])
    assert torch.equal(ids[0], ids[1])
    require_close(weights[0], weights[1], "shares", "fp32")


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
def test_experts_differ_whatever_the_logits(scoring, bind, device):
    route, _ = bind("moe_route", {"num_experts": 7, "top_k": 5, "scoring": scoring}, bias=None)
    logits = torch.full((3, 7), torch.nan, dtype=torch.bfloat16, device=device)
    logits[1], logits[2] = float("-inf"), 0.0
    logits[2, 3] = torch.nan
    ids = torch.full((3, 5), -1, dtype=torch.int32, device=device)
    route(logits, ids, torch.empty(3, 5, device=device))
    for row in ids.tolist():
        assert len(set(row)) == 5 and set(row) <= set(range(7))


@pytest.fixture
def experts(make_weight, bind, device):
    def make(name, max_tokens):
        wide, narrow = BANKS[name]
        weights = {"gate_up": make_weight(name, *wide),
                   "down": make_weight(name, *narrow, seed=4)}
        return bind("moe_mlp", SIZES, max_tokens=max_tokens, **weights)

    return make


def choices(count, device):
    generator = torch.Generator().manual_seed(3)
    ids = torch.stack([torch.randperm(4, generator=generator)[:2] for _ in range(count)])
    ids[1:, 0], ids[1:, 1] = 2, ids[1:, 1] % 2  # one of many tokens, one of none but the first's
    shares = torch.rand(count, 2, generator=generator)
    return ids.int().to(device), (shares / shares.sum(1, keepdim=True)).to(device)


@pytest.mark.parametrize("name", BANKS)
@pytest.mark.parametrize("count, grouped", [(2, False), (19, True)])
def test_moe_mlp(name, count, grouped, experts, randn, poisoned, device, monkeypatch):
    """By token, and grouped by expert: some of them have more than a group's tokens."""
    if grouped:
        monkeypatch.setattr("ninfer_triton_kernels.bindings.experts.FEW_TOKENS", 0)
    mlp, reference = experts(name, count)
    x, rest = randn(count, 100, scale=0.3)[:, :96], randn(count, 96, seed=8)
    ids, shares = choices(count, device)
    expected = reference(x, ids, shares, poisoned(count, 96), rest).double()
    stream = rest.clone()
    error = (mlp(x, ids, shares, stream, stream).double() - expected).norm() / expected.norm()
    assert error < 1e-2
    plain = reference(x, ids, shares, poisoned(count, 96)).double()
    error = (mlp(x, ids, shares, poisoned(count, 96)).double() - plain).norm() / plain.norm()
    assert error < 1e-2


def test_company_changes_no_bit(experts, randn, poisoned, device):
    mlp, _ = experts("q4_g64_fp16", 8)
    x, (ids, shares) = randn(5, 96), choices(5, device)
    together = mlp(x, ids, shares, poisoned(5, 96))
    alone = mlp(x[3:4], ids[3:4], shares[3:4], poisoned(1, 96))
    assert torch.equal(together[3:4], alone)


@pytest.mark.parametrize("name, common", [("q5_g64_fp16", "q8_g32_fp16"), ("nvfp4", "bf16")])
@pytest.mark.parametrize("count", [3, 10])
def test_shared_moe_mlp(name, common, count, bind, make_weight, randn, poisoned, device):
    """With and without a score; as many tokens as one instruction takes, and more; narrower and
    wider than the routed experts."""
    wide, narrow = BANKS[name]
    inner = 16 * (count - 1) // 2 * 2
    weights = {
        "gate_up": make_weight(name, *wide), "down": make_weight(name, *narrow, seed=4),
        "shared_gate_up": make_weight(common, 2 * inner, 96, seed=5),
        "shared_down": make_weight(common, 96, inner, seed=6),
    }
    mlp, reference = bind("shared_moe_mlp", SIZES, max_tokens=count, **weights)
    x, rest = randn(count, 100, scale=0.3)[:, :96], randn(count, 96, seed=8)
    (ids, shares), score = choices(count, device), randn(count, 5, seed=9)[:, 4:]
    for given in (score, None):
        expected = reference(x, ids, shares, given, poisoned(count, 96), rest).double()
        stream = rest.clone()
        actual = mlp(x, ids, shares, given, stream, stream).double()
        assert (actual - expected).norm() / expected.norm() < 1e-2
    alone = mlp(x[1:2], ids[1:2], shares[1:2], None, poisoned(1, 96), rest[1:2])
    assert torch.equal(alone.double(), actual[1:2])


def test_more_at_once_has_the_same_bits(bind, make_weight, randn, poisoned, device):
    wide, narrow = BANKS["q5_g64_fp16"]
    weights = {
        "gate_up": make_weight("q5_g64_fp16", *wide),
        "down": make_weight("q5_g64_fp16", *narrow, seed=4),
        "shared_gate_up": make_weight("q8_g32_fp16", 64, 96, seed=5),
        "shared_down": make_weight("q8_g32_fp16", 96, 32, seed=6),
    }
    x, (ids, shares), score = randn(2, 96, scale=0.3), choices(2, device), randn(2, 1, seed=9)
    one, other = (
        bind("shared_moe_mlp", SIZES, max_tokens=2, name=name, **weights)[0](
            x, ids, shares, score, poisoned(2, 96))
        for name in ("triton.shared_moe_mlp", "triton.shared_moe_mlp_ahead"))
    assert torch.equal(one, other)


def test_shared_moe_mlp_of_many_tokens(bind, make_weight, randn, poisoned, device, monkeypatch):
    for module in ("experts", "matrices"):
        monkeypatch.setattr(f"ninfer_triton_kernels.bindings.{module}.FEW_TOKENS", 4)
    wide, narrow = BANKS["q4_g64_fp16"]
    weights = {
        "gate_up": make_weight("q4_g64_fp16", *wide),
        "down": make_weight("q4_g64_fp16", *narrow, seed=4),
        "shared_gate_up": make_weight("q8_g32_fp16", 64, 96, seed=5),
        "shared_down": make_weight("q8_g32_fp16", 96, 32, seed=6),
    }
    mlp, reference = bind("shared_moe_mlp", SIZES, max_tokens=9, **weights)
    x, (ids, shares), score = randn(9, 96, scale=0.3), choices(9, device), randn(9, 1, seed=9)
    expected = reference(x, ids, shares, score, poisoned(9, 96)).double()
    actual = mlp(x, ids, shares, score, poisoned(9, 96)).double()
    assert (actual - expected).norm() / expected.norm() < 1e-2
