"""Ops of mixtures of experts against FP64 formulas; bits against company."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import silu

from ninfer_core.ops.moe_mlp import reference as moe_mlp
from ninfer_core.ops.moe_route import reference as moe_route
from ninfer_core.ops.moe_router import reference as moe_router
from ninfer_core.ops.shared_moe_mlp import reference as shared_moe_mlp

E, K, H, I = 5, 3, 64, 24  # noqa: E741
SIZES = {"num_experts": E, "top_k": K}
FORMATS = [
    ("fp32", "contiguous_le_v1"), ("bf16", "contiguous_le_v1"),
    ("q4_g64_fp16", "row_split_k128_v1"), ("q8_g32_fp16", "row_split_k128_v1"),
]


def randn(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def route(logits, top_k, make_request):
    ids = torch.full((len(logits), top_k), -1, dtype=torch.int32)
    weights = torch.full((len(logits), top_k), torch.nan)
    sizes = {"num_experts": logits.shape[1], "top_k": top_k}
    moe_route.bind(make_request("moe_route", sizes=sizes), None)(logits, ids, weights)
    return ids, weights


@given(
    values=st.lists(st.integers(-3, 3), min_size=4, max_size=9), top_k=st.integers(1, 4),
)
def test_the_likeliest_by_falling_share_and_rising_id(values, top_k):
    logits = torch.tensor([values], dtype=torch.float32)
    ids, weights = route(logits, top_k, lambda op, sizes: _Request(sizes))
    order = sorted(range(len(values)), key=lambda e: (-values[e], e))[:top_k]
    shares = logits.double().softmax(1)[0, order]
    assert ids[0].tolist() == order
    assert torch.allclose(weights[0].double(), shares / shares.sum(), rtol=1e-6)


@given(
    values=st.lists(st.integers(-3, 3), min_size=4, max_size=9), top_k=st.integers(1, 4),
    scale=st.sampled_from([1.0, 2.5]), data=st.data(),
)
def test_sigmoids_are_chosen_with_their_bias_and_shared_without(values, top_k, scale, data):
    logits, count = torch.tensor([values], dtype=torch.float32), len(values)
    bias = data.draw(st.none() | st.lists(st.integers(-2, 2), min_size=count, max_size=count))
    sizes = {"num_experts": count, "top_k": top_k, "scoring": "sigmoid", "scale": scale}
    ids, weights = torch.empty(1, top_k, dtype=torch.int32), torch.empty(1, top_k)
    added = None if bias is None else torch.tensor(bias, dtype=torch.float32)
    moe_route.bind(_Request(sizes), added)(logits, ids, weights)
    scores = logits[0].sigmoid()
    wanted = (scores if added is None else scores + added).tolist()
    order = sorted(range(count), key=lambda e: (-wanted[e], e))[:top_k]
    shares = logits[0].double().sigmoid()[order]
    assert ids[0].tolist() == order
    assert torch.allclose(weights[0].double(), scale * shares / shares.sum(), rtol=1e-6)


class _Request:
    def __init__(self, sizes):
        self.sizes = sizes


def test_experts_are_valid_whatever_the_logits(make_request):
    logits = torch.full((4, 6), torch.nan)
    logits[1], logits[2], logits[3, ::2] = torch.inf, -torch.inf, 1.0
    ids, _ = route(logits, 4, make_request)
    assert all(sorted(set(row)) == sorted(row) for row in ids.tolist())
    assert ids.min() >= 0 and ids.max() < 6


@pytest.mark.parametrize("scored", [False, True])
def test_a_router_norms_scores_and_chooses(scored, make_weight, make_request):
    weight, norm = randn(E + scored, H) / 8, randn(H, seed=2) / 4
    sizes = {**SIZES, "eps": 1e-6, "unit_offset": True, "scoring": "softmax"}
    router = moe_router.bind(make_request("moe_router", sizes=sizes), norm, make_weight(weight))
    x = 3 * randn(7, 2 * H, seed=4)[:, H:]  # strided
    normed, scores = torch.full((7, H), torch.nan), torch.full((7, E + scored), torch.nan)
    ids, weights = torch.full((7, K), -1, dtype=torch.int32), torch.full((7, K), torch.nan)
    assert router(x, normed, scores, ids, weights) is normed
    wide = x.double()
    wide = wide / (wide.square().mean(1, keepdim=True) + 1e-6).sqrt() * (1 + norm.double())
    logits = wide @ weight.double().T
    assert torch.allclose(normed.double(), wide, atol=1e-5)
    assert torch.allclose(scores.double()[:, E:], logits[:, E:], atol=1e-5)
    expected = logits[:, :E].topk(K)
    assert ids.tolist() == expected.indices.tolist()
    assert torch.allclose(weights.double(), expected.values.softmax(1), atol=1e-5)


def exact(x, gate_up, down, ids, weights):
    out = torch.zeros(x.shape[0], down.shape[1], dtype=torch.float64)
    for t, chosen in enumerate(ids.tolist()):
        for expert, share in zip(chosen, weights[t].double(), strict=True):
            gate, up = (gate_up[expert].double() @ x[t].double()).chunk(2)
            out[t] += share * (down[expert].double() @ (silu(gate) * up))
    return out


@pytest.fixture
def choices(make_request):
    return route(randn(17, E, seed=3), K, make_request)


@pytest.mark.parametrize(("format", "layout"), FORMATS)
@pytest.mark.parametrize("residual", [None, "other", "out"])
def test_experts_by_their_shares(format, layout, residual, choices, make_weight, make_request):
    banks = make_weight(randn(E * 2 * I, H) / 8, format, layout), make_weight(
        randn(E * H, I, seed=2) / 4, format, layout)
    op = moe_mlp.bind(make_request("moe_mlp", sizes=SIZES), *banks)
    x = randn(17, 2 * H, seed=4)[:, H:]  # strided
    wide, narrow = (bank.dense().view(E, -1, bank.info.shape[1]) for bank in banks)
    expected = exact(x, wide, narrow, *choices)
    stream = randn(17, 100, seed=5)[:, 9 : 9 + H]
    out = stream if residual == "out" else torch.full((17, H), torch.nan)
    if residual:
        expected += stream.double()
    assert op(x, *choices, out, stream if residual else None) is out
    assert torch.allclose(out.double(), expected, atol=1e-5)


def test_banks_of_matrices_are_the_same_as_rows(choices, make_weight, make_request):
    wide, narrow, x = randn(E, 2 * I, H), randn(E, H, I, seed=2), randn(17, H, seed=4)
    request = make_request("moe_mlp", sizes=SIZES)
    outs = [
        moe_mlp.bind(request, make_weight(a), make_weight(b))(x, *choices, torch.empty(17, H))
        for a, b in (
            (wide, narrow), (wide.flatten(0, 1), narrow.flatten(0, 1)),
            (wide.view(2 * E, I, H), narrow),  # gates and up projections out of banks of their own
        )
    ]
    assert outs[0].equal(outs[1]) and outs[0].equal(outs[2])


def nvfp4(*shape):
    generator = torch.Generator().manual_seed(sum(shape))
    words = torch.randint(0, 127, (*shape[:-1], shape[-1] // 16), generator=generator)
    return {
        "codes": torch.randint(0, 16, shape, generator=generator).to(torch.uint8),
        "scales": words.to(torch.uint8).view(torch.float8_e4m3fn),
        "divisor": 900 + 100 * torch.rand(shape[0], generator=generator),
    }


@pytest.mark.parametrize(("layout", "wide"), [
    ("expert_block_scale_k16_m128x4_v1", (E, 128, 128)),
    ("block_scale_k16_plain_v1", (2 * E, 64, 128)),
])
def test_banks_of_nvfp4_with_a_divisor_for_each_matrix(
    layout, wide, choices, make_weight, make_request
):
    banks = (make_weight(nvfp4(*wide), "nvfp4", layout),
             make_weight(nvfp4(E, 128, 64), "nvfp4", "expert_block_scale_k16_m128x4_v1"))
    op, x = moe_mlp.bind(make_request("moe_mlp", sizes=SIZES), *banks), randn(17, 128, seed=4)
    expected = exact(x, banks[0].dense().view(E, 128, 128), banks[1].dense(), *choices)
    out = op(x, *choices, torch.full((17, 128), torch.nan)).double()
    assert torch.allclose(out, expected, atol=1e-6 * expected.abs().max())


def test_products_are_clamped(choices, make_weight, make_request):
    """The gate's from above alone."""
    banks = [make_weight(randn(*shape)) for shape in ((E, 2 * I, H), (E, H, I))]
    op = moe_mlp.bind(make_request("moe_mlp", sizes={**SIZES, "limit": 1.5}), *banks)
    x, expected = randn(17, H, seed=4), torch.zeros(17, H, dtype=torch.float64)
    for t, (chosen, shares) in enumerate(zip(*(each.tolist() for each in choices), strict=True)):
        for expert, share in zip(chosen, shares, strict=True):
            gate, up = (banks[0].dense()[expert].double() @ x[t].double()).chunk(2)
            product = silu(gate.minimum(torch.tensor(1.5))) * up.clamp(-1.5, 1.5)
            expected[t] += share * (banks[1].dense()[expert].double() @ product)
    out = op(x, *choices, torch.full((17, H), torch.nan))
    assert torch.allclose(out.double(), expected, atol=1e-4)


@pytest.mark.parametrize("count", [1, 2, 5, 16])
def test_bits_of_a_row_do_not_depend_on_its_company(count, choices, make_weight, make_request):
    banks = make_weight(randn(E * 2 * I, H)), make_weight(randn(E * H, I, seed=2))
    op, x = moe_mlp.bind(make_request("moe_mlp", sizes=SIZES), *banks), randn(17, H, seed=4)
    whole = op(x, *choices, torch.full((17, H), torch.nan))
    for start in range(0, 17, count):
        rows = slice(start, start + count)
        part = op(x[rows], *(each[rows] for each in choices), torch.full_like(x[rows], torch.nan))
        assert part.equal(whole[rows])
    logits = randn(17, E, seed=3)
    for t in range(17):
        ids, weights = route(logits[t : t + 1], K, make_request)
        assert ids[0].equal(choices[0][t]) and weights[0].equal(choices[1][t])


def test_only_chosen_experts_are_read(choices, make_weight, make_request):
    ids, weights = choices
    banks = make_weight(randn(E, 2 * I, H)), make_weight(randn(E, H, I, seed=2))
    op = moe_mlp.bind(make_request("moe_mlp", sizes=SIZES), *banks)
    banks[0].planes["codes"][2] = torch.nan
    out = op(randn(17, H, seed=4), ids, weights, torch.empty(17, H))
    assert out.isnan().any(1).equal((ids == 2).any(1))


@pytest.mark.parametrize("scored", [False, True])
@pytest.mark.parametrize("limit", [0.0, 0.4])
def test_the_shared_expert_comes_on_top(scored, limit, choices, make_weight, make_request):
    wide, narrow = randn(E, 2 * I, H) / 8, randn(E, H, I, seed=2) / 4
    common, down = randn(2 * 40, H, seed=6) / 8, randn(H, 40, seed=7) / 6
    request = make_request("shared_moe_mlp", sizes={**SIZES, "limit": limit})
    op = shared_moe_mlp.bind(request, *map(make_weight, (wide, narrow, common, down)))
    x, rest, score = randn(17, H, seed=4), randn(17, H, seed=8), randn(17, 3, seed=9)[:, 2:]
    out = op(x, *choices, score if scored else None, torch.full((17, H), torch.nan), rest)
    alone = moe_mlp.bind(make_request("moe_mlp", sizes={**SIZES, "limit": limit}),
                         make_weight(wide), make_weight(narrow))
    expected = alone(x, *choices, torch.empty(17, H), rest).double()
    gate, up = (x.double() @ common.double().T).chunk(2, dim=1)
    if limit:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    added = (silu(gate) * up) @ down.double().T
    expected += added * score.double().sigmoid() if scored else added
    assert torch.allclose(out.double(), expected, atol=1e-5)
