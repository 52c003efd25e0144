"""Mixtures of experts against the references."""

import pytest
import torch

from ninfer_conformance.tolerances import require_close
from ninfer_triton_kernels.bindings.banks import Bank, ExpertTile
from ninfer_triton_kernels.bindings.experts import NARROW, WIDE, Tiles
from ninfer_triton_kernels.kernels import expert_groups

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


@pytest.mark.parametrize("scored", [False, True])
@pytest.mark.parametrize("count", [1, 9, 130])
def test_moe_router(scored, count, bind, make_weight, randn, poisoned, device):
    """A token for each program, some, and by way of its parts; bits in any company."""
    sizes = {"num_experts": 40, "top_k": 3, "eps": 1e-6, "unit_offset": True, "scoring": "softmax"}
    weight, norm = make_weight("bf16", 40 + scored, 96), 0.1 * randn(96, seed=2)
    router, reference = bind("moe_router", sizes, norm=norm, weight=weight)
    x = 3 * randn(count, 100)[:, :96]

    def results(op, x):
        normed, scores = poisoned(len(x), 96), poisoned(len(x), 43)[:, : 40 + scored]
        ids = torch.full((len(x), 3), -1, dtype=torch.int32, device=device)
        shares = torch.full((len(x), 3), torch.nan, device=device)
        assert op(x, normed, scores, ids, shares) is normed
        return normed, scores[:, 40:], ids, shares

    found, (normed, score, _, shares) = results(router, x), results(reference, x)
    require_close(found[0], normed, "norm", "bf16")
    require_close(found[1], score, "score", "bf16")
    require_close(found[3], shares, "shares", "bf16")
    logits = (normed.double() @ weight.dense()[:40].double().T).bfloat16()
    assert all(len({*row}) == 3 for row in found[2].tolist())
    chosen = logits.gather(1, found[2].long())  # all but equal ones may change places
    require_close(chosen, logits.topk(3).values, "chosen", "bf16")
    if count < 100:
        alone, again = results(router, x[-1:]), results(router, x)
        assert all(torch.equal(*each) for each in zip(found, again, strict=True))
        assert all(torch.equal(a[-1:], b) for a, b in zip(found, alone, strict=True))


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
    """With weights in registers for few tokens, and grouped for prompts; some experts have more
    tokens than one program takes."""
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


@pytest.mark.parametrize("name", ["q4_1_g32_fp16", "q6_g64_fp16", "fp8_e4m3fn_row_bf16",
                                  "fp8_e4m3fn_g128_fp32", *BANKS])
def test_weights_of_prompts_are_decoded(name, make_weight, device):
    """Columns that are one in one place give the columns of the second of two matrices."""
    rows, depth, padded = 64, 96, 128
    shape = (2, rows, depth) if name in ("bf16", "nvfp4") else (2 * rows, depth)
    weight = make_weight(name, *shape)
    bank, is_tiled = Bank.of(weight), name != "bf16"
    ones = torch.eye(depth, dtype=torch.bfloat16, device=device)
    arranged = torch.full((depth, padded), torch.nan, dtype=torch.bfloat16, device=device)
    expert_groups.arrange_columns[depth, 1](ones, arranged, depth, padded, depth, is_tiled, padded)
    order = torch.arange(depth, dtype=torch.int32, device=device)
    table = torch.tensor([[1], [0], [depth]], dtype=torch.int32, device=device)
    found = torch.full((depth, rows), torch.nan, dtype=torch.bfloat16, device=device)
    expert_groups.down_of_group[1, 1](
        arranged, order, table, found, *bank.tensors, rows, depth, padded, *bank.kinds, 128, 32,
        64, 3)
    expected = weight.part(1, 2).dense().view(rows, depth).T
    torch.testing.assert_close(found.float(), expected, rtol=2**-8, atol=0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="an interpreter takes minutes")
@pytest.mark.parametrize("wide, narrow", [
    ("q4_g64_fp16", "q5_g64_fp16"), ("q4_g64_fp16", "q6_g64_fp16"), ("nvfp4", "nvfp4"),
    ("q8_g32_fp16", "q4_g64_fp16")])
@pytest.mark.parametrize("count", [300, 1500])
def test_prompts_of_real_size(
    wide, narrow, count, bind, make_weight, randn, poisoned, device
):
    """Many steps of many programs at once: right, and the same bits again."""
    width, inner = 1024, 576
    shape = (8, inner, width) if wide == "nvfp4" else (8 * inner, width)
    gate_up = make_weight(wide, *shape)
    shape = (4, width, inner) if narrow == "nvfp4" else (4 * width, inner)
    down = make_weight(narrow, *shape, seed=4)
    mlp, _ = bind("moe_mlp", SIZES, max_tokens=count, gate_up=gate_up, down=down)
    x, (ids, shares) = randn(count, width), choices(count, device)
    gate_up, down = (each.dense().view(4, -1, each.info.shape[-1]) for each in (gate_up, down))
    expected = torch.zeros(count, width, device=device)
    for expert in range(4):
        t, j = (ids == expert).nonzero(as_tuple=True)
        gates, ups = (x[t].float() @ gate_up[expert].T).chunk(2, 1)
        both = torch.nn.functional.silu(gates) * ups
        expected.index_add_(0, t, both @ down[expert].T * shares[t, j, None])
    found = mlp(x, ids, shares, poisoned(count, width))
    for _ in range(4):
        assert torch.equal(found, mlp(x, ids, shares, poisoned(count, width)))
    assert (found.float() - expected).norm() / expected.norm() < 6e-3


@pytest.mark.parametrize("evenly", [False, True])
@pytest.mark.parametrize("pairs, size, chosen", [
    (1, 16, (2,)), (70, 16, (4,)), (90, 32, (0, 3)), (700, 64, (1, 2, 3, 4))])
def test_pairs_of_prompts_are_sorted_and_cut(pairs, size, chosen, evenly, device):
    """Into groups of one expert each, every pair once, empty ones behind the last; and memory is
    left as it was found."""
    ids = torch.tensor([chosen[i * i % 7 % len(chosen)] for i in range(pairs)], dtype=torch.int32)
    blocks, count = -(-pairs // 32), pairs // size + 5
    counts = torch.zeros((16, expert_groups.SPREAD.value), dtype=torch.int32, device=device)
    arrivals = torch.zeros(1, dtype=torch.int32, device=device)
    ranks, order = torch.full((2, pairs), -1, dtype=torch.int32, device=device)
    expert_groups.count_pairs[blocks,](ids.to(device), counts, ranks, pairs, 32)
    assert counts[:5, 0].tolist() == ids.bincount(minlength=5).tolist()
    table = torch.full((3, count), -1, dtype=torch.int32, device=device)
    expert_groups.place_pairs[blocks + -(-count // 8),](
        ids.to(device), counts, ranks, order, table, arrivals, pairs, blocks, count, size, evenly,
        16, 32, 8)
    assert not counts.any() and not arrivals.any()
    assert sorted(order.tolist()) == [*range(pairs)]
    assert ids[order.long().cpu()].tolist() == ids.sort().values.tolist()
    found, groups = [], [each for each in table.T.tolist() if each[1] < each[2]]
    assert groups == table.T.tolist()[: len(groups)]
    for expert, begin, end in groups:
        assert end - begin <= size and {ids[i].item() for i in order[begin:end]} == {expert}
        found += order[begin:end].tolist()
    assert found == order.tolist()
    for expert, total in enumerate(ids.bincount().tolist()):
        own = [end - begin for other, begin, end in groups if other == expert]
        each = -(-total // len(own) // 16) * 16 if own and evenly else size
        assert own == [min(each, total - first) for first in range(0, total, each)]


def test_company_changes_no_bit(experts, randn, poisoned, device):
    """Tokens in other places among others, and with an expert of more than one program's."""
    mlp, _ = experts("q4_g64_fp16", 19)
    x, (ids, shares) = randn(19, 96), choices(19, device)
    together = mlp(x, ids, shares, poisoned(19, 96))
    for first, last in ((3, 4), (12, 17)):
        part = slice(first, last)
        alone = mlp(x[part], ids[part], shares[part], poisoned(last - first, 96))
        assert torch.equal(together[part], alone)


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
        own = None if given is None else given[1:2]
        alone = mlp(x[1:2], ids[1:2], shares[1:2], own, poisoned(1, 96), rest[1:2])
        assert torch.equal(alone.double(), actual[1:2])


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


@pytest.mark.parametrize("rows, lines, expected", [(1024, 1, "few"), (1024, 9, "many")])
def test_few_programs_have_more_in_flight(rows, lines, expected, device, monkeypatch):
    monkeypatch.setattr("ninfer_triton_kernels.bindings.experts.num_processors", lambda device: 8)
    tiles = Tiles(many=(ExpertTile(32, 4, 4, 2),) * 2, few=(ExpertTile(16, 4, 4, 4),) * 2, most=4)
    assert tiles.of(rows, lines, device) == getattr(tiles, expected)


@pytest.mark.parametrize("tiles", [WIDE, NARROW])
def test_tiles_add_columns_in_one_order(tiles):
    """Whatever the number of programs."""
    for many, few in zip(tiles.many, tiles.few, strict=True):
        assert (many.warps, many.batch) == (few.warps, few.batch)
        assert many.rows % few.rows == 0
