"""The ops of sparse and latent attention against the references, and bit for bit."""

import pytest
import torch

from ninfer_conformance.tolerances import require_close
from ninfer_core.api import (
    KernelRequest,
    KVCodecSpec,
    PagedStateSpec,
    PluginError,
    SlotStateSpec,
    StatePlane,
)
from ninfer_core.state.store import StateStore
from ninfer_triton_kernels.bindings import sparse

CODECS = {"bf16": "Bf16Codec", "int8": "Int8Codec", "fp8": "Fp8Codec"}
DI, HI, PAGES = 32, 3, 6


@pytest.fixture
def make_state(device):
    """``(codec, block, tail width, heads, width, latent) -> (cache, tails)``; NaN where there is
    one."""

    def make(codec, block, tail_width=1, heads=2, width=32, latent=False):
        names = ("key",) if latent else ("key", "value")
        planes = [StatePlane(name, (heads, width)) for name in names]
        specs = (
            PagedStateSpec("kv", 2, (*planes, StatePlane("index_key", (DI,), block)),
                           None if codec in CODECS else codec),
            SlotStateSpec("tail", 2, (64, tail_width), (0,)),
        )
        store = StateStore(
            specs, KVCodecSpec("kv", f"ninfer_core.state.codecs:{CODECS.get(codec, 'Bf16Codec')}"),
            num_pages=PAGES, max_sequences=3, max_context=256, max_verify_rows=4, device=device)
        store.memory.rows.fill_(0xFF)
        tails = store.view("tail", 1)
        tails.committed.fill_(torch.nan)
        return store.view("kv", 1), tails

    return make


def decoded(planes, name):
    return planes.codec.decode(planes.planes[name])


STEPS = (  # rows of (first position, tokens)
    [(0, 6), (61, 1)], [(6, 1), (62, 3)], [(4, 3), (65, 4)], [(7, 70), (66, 2)], [(77, 1), (68, 8)],
    [(78, 3), (70, 6)],
)
"""Some come again, as after rejected drafts; row 1 begins at 60 when nothing is before it."""


class Mean:
    op, widths, tail_width = "mean_index_append", (2 * DI, DI), DI + 3

    @staticmethod
    def sizes(block):
        return {"num_heads": 2, "head_dim": DI, "block": block, "rotary_dim": 16, "eps": 1e-4,
                "unit_offset": True}

    @staticmethod
    def constants(randn, device, block):
        angles = randn(300, 8, seed=9).float() * 6
        return {"cos": angles.cos(), "sin": angles.sin(), "query_norm": randn(DI, seed=7),
                "axes": torch.arange(8, device=device) % 3, "key_norm": randn(DI, seed=8)}


class Softmax:
    op, widths, tail_width = "softmax_index_append", (DI, DI), 2 * DI

    @staticmethod
    def sizes(block):
        return {"head_dim": DI, "block": block, "eps": 1e-4}

    @staticmethod
    def constants(randn, device, block):
        return {"norm": randn(DI, seed=7), "norm_bias": randn(DI, seed=8),
                "position_bias": randn(block, DI, seed=9)}


def run_steps(which, kind, codec, block, steps, bind, make_state, paged_batch, randn, device):
    """Entries, and what the first input was left as, after some steps."""
    planes, tails = make_state(codec, block, kind.tail_width)
    constants = kind.constants(randn, device, block)
    append = bind(kind.op, kind.sizes(block), codec, planes=planes, tail=tails, **constants)[which]
    data = [[randn(120, w, seed=20 + i + 5 * row) for i, w in enumerate(kind.widths)]
            for row in range(2)]
    lefts = []
    for rows in steps:
        batch = paged_batch(*rows, pages=3, tables=[[1, 2, 3], [6, 4, 5]])
        batch.slots[:2] = torch.tensor([1, 3], device=device)
        batch.rope_positions[1:] += torch.tensor([[3], [9]], device=device)
        parts = [torch.cat([data[row][i][begin : begin + count]
                            for row, (begin, count) in enumerate(rows)])
                 for i in range(len(kind.widths))]
        append(*parts, batch)
        lefts.append(parts[0])
    return decoded(planes, "index_key"), torch.cat(lefts), tails.committed


@pytest.mark.parametrize(("codec", "block"), [
    ("bf16", 2), ("bf16", 4), ("bf16", 16), ("int8", 4), ("fp8", 4), ("float32", 4),
])
@pytest.mark.parametrize("kind", [Mean, Softmax])
def test_index_keys(kind, codec, block, bind, make_state, paged_batch, randn, device):
    steps = [[(0, 1), (60 // block * block, 61 - 60 // block * block)], *STEPS]
    own, expected = (
        run_steps(which, kind, codec, block, steps, bind, make_state, paged_batch, randn, device)
        for which in (0, 1)
    )
    assert torch.equal(own[0].isnan(), expected[0].isnan())
    step = {"float32": 1e-6, "bf16": 2**-6, "int8": 2**-6, "fp8": 2**-3}[codec]
    error = (own[0].nan_to_num() - expected[0].nan_to_num()).abs()
    limit = {"float32": 1e-5, "bf16": 0.01, "int8": 0.1, "fp8": 0.02}[codec]
    assert bool((error <= limit + step * expected[0].nan_to_num().abs()).all())
    require_close(own[1], expected[1], "queries", "bf16")
    assert torch.equal(own[2][[0, 2]].isnan(), expected[2][[0, 2]].isnan())


@pytest.mark.parametrize("kind", [Mean, Softmax])
def test_index_keys_do_not_depend_on_steps(kind, bind, make_state, paged_batch, randn, device):
    fixtures = bind, make_state, paged_batch, randn, device
    results = [
        run_steps(0, kind, "bf16", 4, steps, *fixtures)[0]
        for steps in (
            [[(0, 74), (0, 11)]],
            [[(0, 3), (0, 1)], [(3, 2), (1, 5)], [(5, 66), (4, 5)], [(70, 4), (9, 2)]],
        )
    ]
    for page, entries in ((1, 16), (2, 2), (6, 2)):
        assert torch.equal(results[0][page, :entries], results[1][page, :entries])
        assert results[0][page, :entries].isfinite().all()


@pytest.mark.parametrize("kind", [Mean, Softmax])
def test_a_tail_that_rejected_tokens_would_overwrite_is_refused(kind, make_state, randn, device):
    planes, tail = make_state("bf16", 64, kind.tail_width)
    request = KernelRequest(kind.op, "cuda", "bfloat16", 90, sizes=kind.sizes(64))
    constants = kind.constants(randn, device, 64)
    with pytest.raises(PluginError, match="wrong size"):
        getattr(sparse, f"bind_{kind.op}")(request, planes, tail, **constants)


def fill(planes, randn, tokens, block, device):
    """Random entries of the first tokens of pages 1, 2, 3 and of 6, 4, 5."""
    for sequence, pages in enumerate(([1, 2, 3], [6, 4, 5])):
        for number, (name, parts) in enumerate(planes.planes.items()):
            count = tokens // (block if name == "index_key" else 1)
            shape = next(iter(parts.values())).shape[2:]
            for part, stored in planes.codec.encode(
                    randn(count, *shape, seed=3 * sequence + number).float()).items():
                flat = parts[part][pages].flatten(0, 1)
                flat[:count] = stored
                parts[part][pages] = flat.view(3, -1, *flat.shape[1:])


ROWS = [[(150, 1)], [(150, 1), (177, 3)], [(0, 9), (170, 5)]]


def choose(which, planes, codec, block, budget, rows, weighed, bind, paged_batch, randn, device):
    count = sum(row[1] for row in rows)
    sizes = {"num_heads": HI, "head_dim": DI, "block": block, "budget": budget, "scale": 0.25}
    op = bind("index_select", sizes, codec, planes=planes)[which]
    q = torch.cat([randn(180, HI * DI, seed=30 + b)[p : p + n] for b, (p, n) in enumerate(rows)])
    w = torch.cat([randn(180, HI, seed=40 + b)[p : p + n] for b, (p, n) in enumerate(rows)])
    blocks = torch.full((count, budget), 77, dtype=torch.int32, device=device)
    batch = paged_batch(*rows, pages=3, tables=[[1, 2, 3], [6, 4, 5]])
    return op(q.round(), w.float().round() if weighed else None, batch, blocks)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize(("block", "budget"), [(4, 7), (2, 1), (16, 4)])
def test_the_best_blocks(
    rows, weighed, block, budget, bind, make_state, paged_batch, randn, device
):
    """Of whole numbers, where many scores are equal and none is rounded."""
    planes, _ = make_state("bf16", block)
    fill(planes, lambda *shape, seed: randn(*shape, seed=seed).round(), 180, block, device)
    fixtures = bind, paged_batch, randn, device
    own, expected = (
        choose(which, planes, "bf16", block, budget, rows, weighed, *fixtures) for which in (0, 1)
    )
    assert torch.equal(own, expected)


@pytest.mark.parametrize("codec", [*CODECS, "float32"])
def test_the_choice_by_each_codec(codec, bind, make_state, paged_batch, randn, device):
    """Nearly the same, and none of it depends on company."""
    planes, _ = make_state(codec, 4)
    fill(planes, randn, 180, 4, device)
    fixtures = bind, paged_batch, randn, device
    own, expected = (
        choose(which, planes, codec, 4, 8, ROWS[2], True, *fixtures) for which in (0, 1)
    )
    agreed = [len(set(a) & set(b)) for a, b in zip(own.tolist(), expected.tolist(), strict=True)]
    assert min(agreed[9:]) >= 7
    assert bool((own[9:].diff() > 0).all())
    alone = choose(0, planes, codec, 4, 8, [(0, 9)], True, *fixtures)
    assert torch.equal(alone, own[:9])


def chosen_blocks(positions, block, device):
    """Of each token another number, from one on."""
    generator = torch.Generator().manual_seed(1)
    blocks = torch.full((len(positions), 5), -1, dtype=torch.int32)
    for t, p in enumerate(positions):
        picked = torch.randperm((p + 1) // block, generator=generator)[: 1 + t % 5].sort().values
        blocks[t, : len(picked)] = picked
    return blocks.to(device)


@pytest.mark.parametrize("rows", [[(60, 4), (175, 3)], [(44, 3), (140, 40)]])
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("latent", [False, True])
@pytest.mark.parametrize("block", [2, 4, 32])
def test_attention_to_chosen_blocks(
    codec, latent, block, rows, bind, make_state, paged_batch, randn, poisoned, device
):
    """Of few tokens, whose own are cut into parts, and of a prompt; a token alone, and beside
    others in as many."""
    planes, _ = make_state(codec, block, latent=latent, heads=1 if latent else 2, width=48)
    fill(planes, randn, 180, block, device)
    heads = {"num_heads": 6, "num_kv_heads": 1 if latent else 2, "head_dim": 48}
    sizes = {**heads, "scale": 0.2, "block": block}
    positions = [first + n for first, count in rows for n in range(count)]
    blocks, count = chosen_blocks(positions, block, device), len(positions)
    q = randn(count, 6 * 48 + 5, seed=3)[:, 2:-3]
    batch = paged_batch(*rows, pages=3, tables=[[1, 2, 3], [6, 4, 5]])
    ops = bind("selected_attention", sizes, codec, planes=planes)
    own, expected = (op(q, blocks, batch, poisoned(count, 6 * 48)) for op in ops)
    require_close(own, expected, "attention", "bf16")
    alone = paged_batch(rows[1], pages=3, tables=[[6, 4, 5]])
    last = slice(rows[0][1], None)
    out = ops[0](q[last], blocks[last], alone, poisoned(rows[1][1], 6 * 48))
    assert torch.equal(out, own[last])


@pytest.mark.parametrize("codec", CODECS)
def test_one_token_beside_a_company_attends_with_the_same_bits(
    codec, bind, make_state, paged_batch, randn, poisoned, device
):
    planes, _ = make_state(codec, 4, width=48)
    fill(planes, randn, 180, 4, device)
    sizes = {"num_heads": 6, "num_kv_heads": 2, "head_dim": 48, "scale": 0.2, "block": 4}
    op = bind("selected_attention", sizes, codec, planes=planes)[0]
    blocks, q = chosen_blocks(range(60, 76), 4, device), randn(16, 6 * 48, seed=3)
    own = op(q, blocks, paged_batch((60, 16), pages=3, tables=[[1, 2, 3]]), poisoned(16, 288))
    for t in range(16):
        batch = paged_batch((60 + t, 1), pages=3, tables=[[1, 2, 3]])
        one = slice(t, t + 1)
        assert torch.equal(op(q[one], blocks[one], batch, poisoned(1, 288)), own[one])


@pytest.mark.parametrize("codec", CODECS)
def test_key_append(codec, bind, make_state, paged_batch, randn):
    both = [make_state(codec, 4, latent=True, width=40)[0] for _ in range(2)]
    keys = randn(7, 2 * 40 + 3)[:, 2:-1]
    for which, planes in enumerate(both):
        op = bind("key_append", {"num_kv_heads": 2, "head_dim": 40}, codec, planes=planes)[which]
        op(keys, paged_batch((62, 4), (5, 3), pages=3, tables=[[1, 2, 3], [6, 4, 5]]))
    own, expected = (decoded(planes, "key") for planes in both)
    assert torch.equal(own.isnan(), expected.isnan()) and expected.isfinite().any()
    assert torch.allclose(own.nan_to_num(), expected.nan_to_num(), rtol=2**-3, atol=0.02)


@pytest.mark.parametrize(("heads", "rows", "width", "format"), [
    (1, 16, 24, "bf16"), (3, 72, 80, "bf16"), (2, 72, 64, "q8_g32_fp16")])
def test_head_projection(heads, rows, width, format, bind, randn, poisoned, make_weight):
    weight = make_weight(format, heads * rows, width)
    ops = bind("head_projection", {"num_heads": heads}, weight=weight)
    x = randn(20, heads * width + 5, seed=2)[:, 2:-3]
    own, expected = (op(x, poisoned(20, heads * rows)) for op in ops)
    require_close(own, expected, "products", "bf16")
    assert torch.equal(ops[0](x[17:18], poisoned(1, heads * rows)), own[17:18])
