"""Index keys, the choice of blocks and attention to them, against formulas over whole sequences."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_core.api import KernelRequest, KVCodecSpec, PagedStateSpec, PluginError, StatePlane
from ninfer_core.ops.paged_attention import reference as paged_attention
from ninfer_core.state.store import StateStore
from ninfer_core.state.views import SlotPlanes
from ninfer_ops.head_projection import reference as head_projection
from ninfer_ops.index_keys import reference as index_keys
from ninfer_ops.index_select import reference as index_select
from ninfer_ops.key_append import reference as key_append
from ninfer_ops.selected_attention import reference as selected_attention

HI, D, TOKENS, ROWS = 3, 6, 90, 7
PAGES = {1: [5, 2], 2: [1, 6], 3: [3, 4]}


def randn(*shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def request(op, **sizes):
    return KernelRequest(op=op, device="cpu", dtype="float32", sizes=sizes)


def make_planes(block, *planes, codec="fp32"):
    """A cache whose every byte is a NaN, as far as its codec has one."""
    planes = (*planes, StatePlane("index_key", (D,), block))
    kv = KVCodecSpec(codec, f"ninfer_core.state.codecs:{codec.capitalize()}Codec")
    store = StateStore(
        [PagedStateSpec("kv", 1, planes)], kv, num_pages=7, max_sequences=3, max_context=128,
        max_verify_rows=ROWS,
    )
    store.memory.rows.fill_(0xFF)
    return store.view("kv", 0)


def entries(planes, block, slot=1):
    stored = planes.planes["index_key"]
    pages = PAGES[slot]
    return planes.codec.decode({n: each[pages].flatten(0, 1) for n, each in stored.items()})


class Mean:
    """``mean_index_append`` on inputs of queries and keys."""

    widths, tail_width = (HI * D, D), D + 3
    cos, sin = (randn(200, 2, seed=3).sin(), randn(200, 2, seed=3).cos())
    axes = torch.tensor([1, 2])
    query_norm, key_norm = randn(D, seed=8), randn(D, seed=9)

    @classmethod
    def bind(cls, block, planes, tail):
        sizes = {"num_heads": HI, "head_dim": D, "block": block, "rotary_dim": 4, "eps": 0.01,
                 "unit_offset": True}
        return index_keys.bind_mean(
            request("mean_index_append", **sizes), planes, tail, cls.cos, cls.sin, cls.axes,
            cls.query_norm, cls.key_norm,
        )

    @classmethod
    def turned(cls, x, positions):
        """``[N, D]`` by complex multiplication at rope positions ``[3, N]``."""
        pairs = torch.complex(x[:, :2], x[:, 2:4])
        rows = positions[cls.axes].T
        turns = torch.complex(*(t.double().gather(0, rows) for t in (cls.cos, cls.sin)))
        return torch.cat(((pairs * turns).real, (pairs * turns).imag, x[:, 4:]), 1)

    @classmethod
    def normed(cls, x, weight):
        return x / (x.square().mean(-1, keepdim=True) + 0.01).sqrt() * (1 + weight.double())

    @classmethod
    def keys(cls, inputs, block, positions):
        k = inputs[1].double()
        count = len(k) // block
        means = k[: count * block].view(count, block, D).mean(1)
        starts = positions[:, : count * block : block]
        return cls.turned(cls.normed(means, cls.key_norm), starts)


class Softmax:
    """``softmax_index_append`` on inputs of keys and scores."""

    widths, tail_width = (D, D), 2 * D
    norm, norm_bias = randn(D, seed=8), randn(D, seed=9)

    @classmethod
    def bind(cls, block, planes, tail):
        sizes = {"head_dim": D, "block": block, "eps": 0.01}
        return index_keys.bind_softmax(
            request("softmax_index_append", **sizes), planes, tail, cls.norm, cls.norm_bias,
            randn(block, D, seed=10),
        )

    @classmethod
    def keys(cls, inputs, block, positions):
        k, s = (x.double() for x in inputs)
        k = torch.nn.functional.layer_norm(k, (D,), cls.norm.double(), cls.norm_bias.double(), 0.01)
        count = len(k) // block
        k, s = (x[: count * block].view(count, block, D) for x in (k, s))
        return ((s + randn(block, D, seed=10)).softmax(1) * k).sum(1)


def rope_positions(seed=4):
    return torch.randint(0, 200, (3, TOKENS + ROWS), generator=torch.Generator().manual_seed(seed))


def make_tail(width, size=64):
    return SlotPlanes(torch.full((4, size, width), torch.nan), torch.zeros(4, ROWS, 0))


@st.composite
def histories(draw):
    """Steps of (tokens, accepted) that commit at most `TOKENS`."""
    steps, committed = [], 0
    while committed < TOKENS and len(steps) < 40:
        accepted = draw(st.one_of(st.none(), st.integers(0, ROWS)))
        limit = min(TOKENS - committed, TOKENS if accepted is None else ROWS)
        if accepted is None:
            most = min(limit, draw(st.sampled_from([3, TOKENS])))
            count = accepted_count = draw(st.integers(1, most))
        else:
            accepted = accepted_count = min(accepted, limit)
            count = draw(st.integers(max(1, accepted), ROWS))
        steps.append((count, accepted))
        committed += accepted_count
    return steps


@pytest.mark.parametrize("kind", [Mean, Softmax])
@settings(max_examples=25)
@given(steps=histories(), block=st.sampled_from([1, 2, 4, 8, 16, 32]))
def test_keys_are_those_of_the_committed_tokens(kind, steps, block, drive):
    inputs = [randn(TOKENS, width, seed=20 + width) for width in kind.widths]
    positions = rope_positions()
    results = []
    for each in (steps, None):
        count = sum(n if kept is None else kept for n, kept in steps)
        planes, tail = make_planes(block), make_tail(kind.tail_width)
        append = kind.bind(block, planes, tail)

        def call(*arguments, append=append):
            append(*arguments)
            return arguments[0]

        call_steps = [(count, None)] if each is None else each
        if count:
            drive(
                call, inputs, call_steps, pages=PAGES, rope_positions=positions
            )
        results.append(entries(planes, block)[: count // block])
        assert tail.committed[[0, 2, 3]].isnan().all()
    assert results[0].equal(results[1])
    expected = kind.keys([x[:count] for x in inputs], block, positions)
    assert torch.allclose(results[0].double(), expected, atol=1e-5)


def test_queries_are_normed_and_rotated_in_place(step_batch):
    q, k, positions = randn(9, HI * D + 1)[:, 1:], randn(9, D), rope_positions()
    given_q = q.double().reshape(9, HI, D)
    append = Mean.bind(4, make_planes(4), make_tail(Mean.tail_width))
    append(q, k, step_batch((2, 12, 9, 0, True), pages=PAGES, rope_positions=positions))
    for head in range(HI):
        normed = Mean.normed(given_q[:, head], Mean.query_norm)
        expected, own = Mean.turned(normed, positions[:, 12:21]), q[:, head * D : head * D + D]
        assert torch.allclose(own.double(), expected, atol=1e-6)


@pytest.mark.parametrize("kind", [Mean, Softmax])
def test_sequences_do_not_touch_each_other(kind, step_batch):
    steps = [[(1, 0, 6, 0, True), (2, 0, 30, 0, True)], [(2, 30, 5, 0, False), (1, 6, 3, 0, False)],
             [(1, 7, 5, 0, True), (3, 0, 9, 0, True), (2, 33, 2, 0, True)]]
    data = {slot: [randn(40, w, seed=30 + slot) for w in kind.widths] for slot in PAGES}
    results = []
    for together in (True, False):
        planes, tail = make_planes(4), make_tail(kind.tail_width)
        append = kind.bind(4, planes, tail)
        for rows in steps:
            for group in [rows] if together else [[row] for row in rows]:
                parts = [torch.cat([data[s][i][b : b + n] for s, b, n, *_ in group])
                         for i in range(len(kind.widths))]
                append(*parts, step_batch(*group, pages=PAGES))
        stored = planes.planes["index_key"]["values"]
        results.append((stored.nan_to_num(), tail.committed.nan_to_num()))
    for own, alone in zip(*results, strict=True):
        assert own.equal(alone)


@pytest.mark.parametrize(("block", "size"), [(4, 9), (4, 10), (8, 12), (64, 64)])
def test_tails_that_rejected_tokens_would_overrun_are_refused(block, size):
    with pytest.raises(PluginError, match="wrong size"):
        Softmax.bind(block, make_planes(block), make_tail(2 * D, size=size))


def naive_choice(query, weights, keys, scale, budget):
    scores = []
    for number, key in enumerate(keys):
        parts = [max(0.0, scale * float(head @ key)) for head in query.view(HI, D)]
        weighed = [p * w for p, w in zip(parts, weights.tolist(), strict=True)]
        scores.append((-sum(weighed), number))
    return sorted(number for _, number in sorted(scores)[:budget])


@pytest.mark.parametrize("weighed", [False, True])
@settings(max_examples=50)
@given(budget=st.integers(1, 12), block=st.sampled_from([2, 4, 8]), seed=st.integers(0, 99),
       lengths=st.tuples(st.integers(0, 80), st.integers(0, 80)))
def test_the_best_blocks_and_of_equal_ones_the_lower(
    weighed, budget, block, seed, lengths, step_batch
):
    """Small whole numbers, so that most scores are equal to another."""
    generator = torch.Generator().manual_seed(seed)

    def integers(*shape):
        return torch.randint(-1, 2, shape, generator=generator).float()

    planes, keys = make_planes(block), {}
    for slot, begin in zip((1, 2), lengths, strict=True):
        count = (begin + 3) // block
        keys[slot] = integers(count, D)
        stored = planes.planes["index_key"]["values"]
        for number, key in enumerate(keys[slot]):
            stored[PAGES[slot][number * block // 64], number * block % 64 // block] = key
    rows = [(slot, begin, 3, 0, True) for slot, begin in zip((1, 2), lengths, strict=True)]
    q, weights = integers(6, HI * D), integers(6, HI) if weighed else None
    sizes = {"num_heads": HI, "head_dim": D, "block": block, "budget": budget, "scale": 0.5}
    op = index_select.bind(request("index_select", **sizes), planes)
    blocks = torch.full((6, budget), 77, dtype=torch.int32)
    assert op(q, weights, step_batch(*rows, pages=PAGES), blocks) is blocks
    for t in range(6):
        slot, begin = rows[t // 3][:2]
        complete = keys[slot][: (begin + t % 3 + 1) // block]
        own = torch.ones(HI) if weights is None else weights[t]
        expected = naive_choice(q[t], own, complete, 0.5, budget)
        assert blocks[t].tolist() == [*expected, *[-1] * (budget - len(expected))]


def filled(block, codec="fp32", heads=2, latent=False, tokens=80):
    """A cache of ``tokens`` random tokens in slot 2's pages; what is behind them is NaN."""
    names = ("key",) if latent else ("key", "value")
    planes = make_planes(block, *[StatePlane(name, (heads, D)) for name in names], codec=codec)
    for name in names:
        encoded = planes.codec.encode(randn(tokens, heads, D, seed=len(name)) * 2)
        for part, values in encoded.items():
            flat = planes.planes[name][part][PAGES[2]].flatten(0, 1)
            flat[:tokens] = values
            planes.planes[name][part][PAGES[2]] = flat.unflatten(0, (2, 64))
    return planes


@pytest.mark.parametrize("latent", [False, True])
@pytest.mark.parametrize("begin", [0, 1, 2, 3, 20, 71, 72])
def test_attention_to_chosen_blocks(latent, begin, step_batch):
    planes, block, count = filled(4, latent=latent), 4, 8
    sizes = {"num_heads": 6, "num_kv_heads": 2, "head_dim": D, "scale": 0.4, "block": block}
    op = selected_attention.bind(request("selected_attention", **sizes), planes)
    q, out = randn(count, 6 * D + 1)[:, 1:], torch.full((count, 6 * D), torch.nan)
    generator = torch.Generator().manual_seed(begin)
    blocks = torch.full((count, 5), -1, dtype=torch.int32)
    allowed = torch.zeros(count, 80, dtype=torch.bool)
    for t in range(count):
        p = begin + t
        picked = torch.randperm((p + 1) // block, generator=generator)[:5].sort().values
        blocks[t, : len(picked)] = picked
        allowed[t, (p + 1) // block * block : p + 1] = True
        for each in picked.tolist():
            allowed[t, each * block : each * block + block] = True
    assert allowed.any(1).all()
    assert op(q, blocks, step_batch((2, begin, count, 0, True), pages=PAGES), out) is out
    k, v = (
        planes.planes[name]["values"][PAGES[2]].flatten(0, 1)[:80].double().repeat_interleave(3, 1)
        for name in ("key", "key" if latent else "value")
    )
    scores = torch.einsum("thd,shd->hts", q.double().reshape(count, 6, D), k) * 0.4
    shares = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
    expected = torch.einsum("hts,shd->thd", shares, v).flatten(1)
    assert torch.allclose(out.double(), expected, atol=1e-6)


@pytest.mark.parametrize("codec", ["fp32", "bf16", "int8", "fp8"])
@pytest.mark.parametrize("block", [2, 8, 64])
def test_all_blocks_have_the_bits_of_paged_attention(codec, block, step_batch):
    planes = filled(block, codec)
    sizes = {"num_heads": 4, "num_kv_heads": 2, "head_dim": D, "scale": 0.4}
    batch = step_batch((2, 60, 20, 0, True), pages=PAGES)
    q, every = randn(20, 4 * D), torch.arange(40, dtype=torch.int32).expand(20, 40)
    ends = (torch.arange(60, 80) + 1) // block
    blocks = torch.where(every < ends.unsqueeze(1), every, -1)
    own, dense = torch.full((2, 20, 4 * D), torch.nan)
    request_of = request("selected_attention", **sizes, block=block)
    selected_attention.bind(request_of, planes)(q, blocks, batch, own)
    paged_attention.bind(request("paged_attention", **sizes), planes)(q, batch, dense)
    assert own.equal(dense) and not own.isnan().any()


@pytest.mark.parametrize("codec", ["fp32", "bf16", "int8", "fp8"])
def test_keys_are_appended_where_their_positions_are(codec, step_batch):
    planes = make_planes(4, StatePlane("key", (2, D)), codec=codec)
    op = key_append.bind(request("key_append", num_kv_heads=2, head_dim=D), planes)
    before = {part: each.clone() for part, each in planes.planes["key"].items()}
    keys = randn(10, 2 * D + 3)[:, 2 : 2 * D + 2]
    op(keys, step_batch((1, 60, 7, 0, True), (3, 5, 3, 0, False), pages=PAGES))
    pages = [5] * 4 + [2] * 3 + [3] * 3
    places = [60, 61, 62, 63, 0, 1, 2, 5, 6, 7]
    for part, values in planes.codec.encode(keys.unflatten(1, (2, D))).items():
        now = planes.planes["key"][part]
        assert now[pages, places].view(torch.uint8).equal(values.view(torch.uint8))
        now[pages, places] = before[part][pages, places]
        assert now.view(torch.uint8).equal(before[part].view(torch.uint8))


def test_a_product_for_each_head(make_weight):
    weight, x = randn(3, 5, 4), randn(7, 14)[:, 1:13]
    asked = request("head_projection", num_heads=3)
    op = head_projection.bind(asked, make_weight(weight.flatten(0, 1)))
    out = torch.full((7, 15), torch.nan)
    assert op(x, out) is out
    expected = torch.einsum("hnk,thk->thn", weight.double(), x.double().reshape(7, 3, 4)).flatten(1)
    assert torch.allclose(out.double(), expected, atol=1e-6)
    assert op(x[3:4], torch.empty(1, 15)).equal(out[3:4])
