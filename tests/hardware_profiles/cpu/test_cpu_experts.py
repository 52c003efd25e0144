"""Routing and experts against FP64, and the promise that company changes no bit of a row."""

import pytest
import torch
from torch.nn.functional import silu

from ninfer_core.api import KernelRequest, WeightInfo
from ninfer_core.artifact.layouts.planar import plane_view
from ninfer_core.artifact.weight import Weight
from ninfer_core.plugin_host.builtin import ninfer_weight_formats, ninfer_weight_layouts
from ninfer_fixtures.contracts import CONTRACTS
from ninfer_profile_cpu.kernels import moe_mlp
from ninfer_profile_cpu.kernels.pool import pool
from ninfer_profile_cpu.plugin import ninfer_kernels

KERNELS = {spec.op: spec for spec in ninfer_kernels() if spec.batch_invariant}
SPECS = {spec.name: spec for spec in ninfer_weight_formats()}
LAYOUTS = {spec.name: spec for spec in ninfer_weight_layouts()}


def bind(op, num_experts, top_k, max_tokens=1, more=(), **constants):
    weights = tuple(each.info for each in constants.values() if isinstance(each, Weight))
    sizes = {"num_experts": num_experts, "top_k": top_k, **dict(more)}
    request = KernelRequest(
        op, "cpu", "float32", weights=weights, max_tokens=max_tokens, sizes=sizes
    )
    assert KERNELS[op].accepts.load()(request) is None
    return KERNELS[op].factory.load()(request, **constants)


def bank(values, name):
    layout_name = next(n for n, spec in LAYOUTS.items() if name in spec.formats)
    codec, layout = SPECS[name].codec.load()(), LAYOUTS[layout_name].layout.load()()
    image, shape = layout.pack(name, codec.quantize(values)), tuple(values.shape)
    planes = {plane.name: plane_view(image, plane) for plane in layout.planes(name, shape)}
    return Weight(WeightInfo(shape, SPECS[name], layout_name), planes, codec, layout)


def route(logits, top_k, more=(), bias=None):
    num_tokens, num_experts = logits.shape
    ids = torch.full((num_tokens, top_k), -1, dtype=torch.int32)
    shares = torch.full((num_tokens, top_k), torch.nan)
    bind("moe_route", num_experts, top_k, more=more, bias=bias)(logits, ids, shares)
    return ids, shares


@pytest.mark.parametrize(("num_experts", "top_k"), [(6, 3), (256, 8), (40, 17), (5, 5), (3, 1)])
@pytest.mark.parametrize("num_tokens", [1, 19])
def test_routes(num_experts, top_k, num_tokens, randn):
    logits = 3 * randn(num_tokens, num_experts + 1)[:, :num_experts]  # strided
    logits[:, 1::3] = logits[:, ::3][:, : logits[:, 1::3].shape[1]]  # ties
    ids, shares = route(logits, top_k)
    order = logits.sort(dim=1, descending=True, stable=True).indices[:, :top_k]
    exact = logits.double().softmax(1).gather(1, order)
    assert torch.equal(ids, order.int())
    assert torch.allclose(shares.double(), exact / exact.sum(1, keepdim=True), rtol=1e-6)
    for t in range(num_tokens):
        alone = route(logits[t : t + 1], top_k)
        assert torch.equal(alone[0][0], ids[t]) and torch.equal(alone[1][0], shares[t])


@pytest.mark.parametrize(("num_experts", "top_k"), [(6, 3), (288, 8), (40, 17), (3, 1)])
@pytest.mark.parametrize("biased", [False, True])
def test_routes_by_sigmoids(num_experts, top_k, biased, randn):
    logits = 3 * randn(19, num_experts + 1)[:, :num_experts]  # strided
    bias = randn(num_experts, seed=2) / 4 if biased else None
    sigmoid = {"scoring": "sigmoid", "scale": 2.5}
    ids, shares = route(logits, top_k, sigmoid, bias)
    scores = logits.double().sigmoid()
    wanted = scores if bias is None else scores + bias
    order = wanted.sort(dim=1, descending=True, stable=True).indices[:, :top_k]
    exact = scores.gather(1, order)
    assert torch.equal(ids, order.int())
    assert torch.allclose(shares.double(), 2.5 * exact / exact.sum(1, keepdim=True), rtol=1e-6)
    for t in range(19):
        alone = route(logits[t : t + 1], top_k, sigmoid, bias)
        assert torch.equal(alone[0][0], ids[t]) and torch.equal(alone[1][0], shares[t])


@pytest.mark.parametrize("more", [(), {"scoring": "sigmoid"}])
def test_routes_whatever_the_logits(more):
    logits = torch.full((5, 9), torch.nan)
    logits[1], logits[2], logits[3, ::2] = torch.inf, -torch.inf, 1.0
    logits[4] = torch.tensor([3e38, -3e38, 0, 0, 0, 0, 0, 0, 0])
    ids, shares = route(logits, 4, more)
    assert all(len(set(row)) == 4 and min(row) >= 0 and max(row) < 9 for row in ids.tolist())
    if not more:
        assert shares[4].tolist() == [1, 0, 0, 0]


def exact_sum(x, wide, narrow, ids, shares):
    out = torch.zeros_like(x, dtype=torch.float64)
    for t, chosen in enumerate(ids.tolist()):
        for expert, share in zip(chosen, shares[t].double(), strict=True):
            gate, up = (wide[expert].double() @ x[t].double()).chunk(2)
            out[t] += share * (narrow[expert].double() @ (silu(gate) * up))
    return out


@pytest.fixture
def experts(randn):
    """``(num_experts, width, inner, names) -> `` banks and their values."""

    def make(num_experts, width, inner, names=("fp32", "fp32")):
        values = randn(num_experts * 2 * inner, width), randn(num_experts * width, inner, seed=2)
        banks = [bank(v / v.shape[1] ** 0.5, name) for v, name in zip(values, names, strict=True)]
        dense = [each.dense().view(num_experts, -1, each.info.shape[1]) for each in banks]
        return dict(zip(("gate_up", "down"), banks, strict=True)), dense

    return make


@pytest.mark.parametrize("names", [
    ("fp32", "bf16"), ("q4_g64_fp16", "q5_g64_fp16"), ("q8_g32_fp16", "q6_g64_fp16"),
    ("fp8_e4m3fn_row_bf16", "fp8_e4m3fn_row_bf16"),
], ids="-".join)
@pytest.mark.parametrize(("width", "inner"), [(64, 32), (100, 37), (192, 70)])
def test_experts_by_their_shares(names, width, inner, experts, randn, poisoned):
    """Sizes inside groups and blocks of rows, numbers of tokens on either side of a panel."""
    banks, dense = experts(6, width, inner, names)
    op = bind("moe_mlp", 6, 3, 40, **banks)
    for num_tokens in (1, 2, 9, 40):
        x = poisoned(num_tokens, width + 5)
        x[:, :width] = randn(num_tokens, width)
        ids, shares = route(randn(num_tokens, 6, seed=num_tokens), 3)
        out = poisoned(num_tokens, width + 3)
        op(x[:, :width], ids, shares, out[:, :width])
        exact = exact_sum(x[:, :width], *dense, ids, shares)
        assert torch.allclose(out[:, :width].double(), exact, atol=1e-5)
        assert out[:, width:].isnan().all()


def test_residuals_are_added_last(experts, randn, poisoned):
    banks, _ = experts(4, 64, 32)
    op = bind("moe_mlp", 4, 2, 9, **banks)
    x, stream, (ids, shares) = randn(9, 64), randn(9, 64, seed=5), route(randn(9, 4, seed=6), 2)
    expected = op(x, ids, shares, poisoned(9, 64)) + stream
    assert torch.equal(op(x, ids, shares, poisoned(9, 64), stream), expected)
    assert op(x, ids, shares, stream, stream) is stream
    assert torch.equal(stream, expected)


@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_banks_of_matrices(name, experts, randn, poisoned):
    banks, _ = experts(4, 64, 24, (name, name))
    shapes = {"gate_up": (4, 48, 64), "down": (4, 64, 24)}
    cubes = {key: bank(banks[key].dense().view(shape), name) for key, shape in shapes.items()}
    x, choices = randn(11, 64), route(randn(11, 4, seed=6), 2)
    outs = [bind("moe_mlp", 4, 2, 11, **each)(x, *choices, poisoned(11, 64))
            for each in (banks, cubes)]
    assert torch.equal(*outs)


@pytest.mark.parametrize("names", [("fp32", "fp32"), ("q4_g64_fp16", "q5_g64_fp16")], ids="-".join)
def test_bits_of_a_row_do_not_depend_on_the_others(names, experts, randn, poisoned, monkeypatch):
    """Nor on how many tokens are sorted together, nor on threads."""
    banks, _ = experts(5, 128, 40, names)
    x, choices = randn(33, 128), route(randn(33, 5, seed=6), 3)
    ops = [bind("moe_mlp", 5, 3, max_tokens, **banks) for max_tokens in (33, 1)]
    monkeypatch.setattr(moe_mlp, "PASS_TOKENS", 7)
    ops.append(bind("moe_mlp", 5, 3, 33, **banks))
    whole = ops[0](x, *choices, poisoned(33, 128))
    for op in ops:
        for count in (1, 2, 8, 20, 33):
            for rows in (slice(count), slice(33 - count, 33)):
                part = [each[rows] for each in (x, *choices)]
                assert torch.equal(op(*part, poisoned(count, 128)), whole[rows])
    before = pool().num_threads
    for num_threads in (1, 3):
        pool().set_num_threads(num_threads)
        assert torch.equal(ops[0](x, *choices, poisoned(33, 128)), whole)
    pool().set_num_threads(before)


def test_one_expert_may_be_chosen_by_all(experts, randn, poisoned):
    banks, dense = experts(7, 64, 32)
    x, ids = randn(20, 64), torch.tensor([[6, 2]], dtype=torch.int32).repeat(20, 1)
    shares = torch.tensor([[0.75, 0.25]]).repeat(20, 1)
    out = bind("moe_mlp", 7, 2, 20, **banks)(x, ids, shares, poisoned(20, 64))
    assert torch.allclose(out.double(), exact_sum(x, *dense, ids, shares), atol=1e-5)


@pytest.mark.parametrize("limit", [0.0, 0.7])
def test_as_the_reference(limit, experts, randn, poisoned):
    banks, _ = experts(6, 64, 32, ("q4_g64_fp16", "q5_g64_fp16"))
    x, choices = randn(9, 64), route(randn(9, 6, seed=6), 3)
    sizes = {"num_experts": 6, "top_k": 3, "limit": limit}
    request = KernelRequest("moe_mlp", "cpu", "float32", sizes=sizes)
    reference = CONTRACTS["moe_mlp"].reference.load()(request, **banks)
    out = bind("moe_mlp", 6, 3, 9, sizes, **banks)(x, *choices, poisoned(9, 64))
    assert torch.allclose(out, reference(x, *choices, poisoned(9, 64)), atol=1e-6)
