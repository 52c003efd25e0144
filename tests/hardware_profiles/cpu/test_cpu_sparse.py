"""The ops of sparse attention against the references, and bit for bit."""

import pytest
import torch

from ninfer_core.api import KernelRequest, KVCodecSpec, PagedStateSpec, StatePlane
from ninfer_core.state.step import StepBatch
from ninfer_core.state.store import StateStore
from ninfer_fixtures.contracts import CONTRACTS
from ninfer_profile_cpu.bindings import sparse
from ninfer_profile_cpu.bindings.cache import bind_key_append, bind_paged_attention
from ninfer_profile_cpu.kernels.kv_codecs import KV_CODECS
from ninfer_profile_cpu.kernels.pool import pool

PAGES = ([3, 1, 8, 5, 7], [2, 6, 4, 9, 10])
TOKENS = 300
HI, DI = 3, 24


def make_request(op, codec="fp32", **sizes):
    return KernelRequest(op, "cpu", "float32", kv_codec=codec, sizes=sizes)


def make_planes(block, randn, codec="fp32", heads=2, dim=64, latent=False):
    """Two sequences of `TOKENS` random tokens; what they do not have is a NaN, or large."""
    names = ("key",) if latent else ("key", "value")
    planes = [StatePlane(name, (heads, dim)) for name in names]
    spec = KVCodecSpec(codec, f"ninfer_core.state.codecs:{codec.capitalize()}Codec")
    store = StateStore(
        [PagedStateSpec("kv", 1, (*planes, StatePlane("index_key", (DI,), block)))], spec,
        num_pages=10, max_sequences=1, max_context=512, max_verify_rows=1,
    )
    store.memory.rows.fill_(0xFF)
    view = store.view("kv", 0)
    for number, (name, parts) in enumerate(view.planes.items()):
        entries = TOKENS // block if name == "index_key" else TOKENS
        for sequence, pages in enumerate(PAGES):
            shape = [*next(iter(parts.values())).shape[2:-1], DI if name == "index_key" else dim]
            values = randn(entries, *shape, seed=10 * number + sequence)
            for part, encoded in view.codec.encode(values).items():
                flat = parts[part][pages].flatten(0, 1)
                flat[:entries] = encoded
                parts[part][pages] = flat.view(len(pages), -1, *flat.shape[1:])
    return view


def make_batch(*rows):
    """Of (sequence, position of the first token, tokens)."""
    count = sum(row[2] for row in rows)
    batch = StepBatch.allocate(max_tokens=count + 2, max_rows=3, max_pages=5, max_logits=1)
    batch.num_tokens, batch.num_rows, start = count, len(rows), 0
    for index, (sequence, begin, tokens) in enumerate(rows):
        batch.positions[start : start + tokens] = torch.arange(begin, begin + tokens)
        batch.token_row[start : start + tokens] = index
        batch.page_table[index] = torch.tensor(PAGES[sequence])
        start += tokens
        batch.row_start[index + 1] = start
    return batch


ROWS = (  # (sequence, position of the first token, tokens)
    [(0, 0, 70)], [(0, 130, 40)], [(1, 290, 10), (0, 5, 3)], [(0, 297, 1), (1, 63, 4)],
    [(0, 0, 1)], [(1, 250, 1), (0, 254, 4)],
)


def select(factory, planes, block, budget, q, weights, rows):
    sizes = {"num_heads": HI, "head_dim": DI, "block": block, "budget": budget, "scale": 0.25}
    op = factory(make_request("index_select", **sizes), planes)
    blocks = torch.full((len(q), budget), 77, dtype=torch.int32)
    assert op(q, weights, make_batch(*rows), blocks) is blocks
    return blocks


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(("block", "budget"), [(4, 12), (2, 1), (32, 3), (64, 2)])
def test_blocks_are_those_of_the_reference(rows, weighed, whole, block, budget, randn):
    """With whole numbers, for which FP32 is exact, most scores are equal to another."""
    planes, count = make_planes(block, randn), sum(row[2] for row in rows)
    q = randn(count, HI * DI + 5, seed=3)[:, 2:-3]
    weights = randn(count, HI, seed=4) if weighed else None
    if whole:
        planes.planes["index_key"]["values"].round_().clamp_(-1, 1)
        q = q.round().clamp(-1, 1)
        weights = None if weights is None else weights.round()
    own, expected = (
        select(factory, planes, block, budget, q, weights, rows)
        for factory in (sparse.bind_index_select, CONTRACTS["index_select"].reference.load())
    )
    assert own.equal(expected)


def test_choice_does_not_depend_on_company_or_threads(randn, monkeypatch):
    planes, before = make_planes(4, randn), pool().num_threads
    rows = [(0, 200, 30), (1, 270, 7)]
    q, weights = randn(37, HI * DI, seed=3), randn(37, HI, seed=4)
    together = select(sparse.bind_index_select, planes, 4, 9, q, weights, rows)
    pool().set_num_threads(3)
    monkeypatch.setattr(sparse, "SCORE_BYTES", 1)
    alone = [
        select(
            sparse.bind_index_select, planes, 4, 9, q[t : t + 1], weights[t : t + 1],
            [(0, 200 + t, 1) if t < 30 else (1, 240 + t, 1)],
        )
        for t in range(37)
    ]
    pool().set_num_threads(before)
    assert torch.cat(alone).equal(together)


def test_broken_scores_choose_as_many_blocks(randn):
    planes, q = make_planes(4, randn), randn(3, HI * DI)
    q[1, 5] = torch.nan
    planes.planes["index_key"]["values"][PAGES[0][0], 3] = torch.inf
    blocks = select(sparse.bind_index_select, planes, 4, 9, q, None, [(0, 200, 3)])
    assert blocks.diff().gt(0).all() and blocks.ge(0).all() and blocks.lt(51).all()


def choose(rows, block, budget, seed=5, every=False):
    """Some blocks for each token, or all there are."""
    generator, lines = torch.Generator().manual_seed(seed), []
    for _, begin, tokens in rows:
        for p in range(begin, begin + tokens):
            count = (p + 1) // block
            picked = torch.randperm(count, generator=generator)[: count if every else budget]
            lines.append(picked.sort().values.int())
    blocks = torch.full((len(lines), max(budget, *map(len, lines))), -1, dtype=torch.int32)
    for line, picked in zip(blocks, lines, strict=True):
        line[: len(picked)] = picked
    return blocks


def attend(factory, planes, codec, latent, q, blocks, rows, block=4):
    dims = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 64, "scale": 0.1, "block": block}
    request = make_request("selected_attention", codec, **dims)
    wide = torch.full((len(q), 4 * 64 + 7), torch.nan)
    out = factory(request, planes)(q, blocks, make_batch(*rows), wide[:, 3:-4])
    assert wide[:, :3].isnan().all() and wide[:, -4:].isnan().all()
    return out


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("codec", KV_CODECS)
@pytest.mark.parametrize("latent", [False, True])
def test_attention_is_that_of_the_reference(rows, codec, latent, randn, monkeypatch):
    monkeypatch.setattr(sparse, "GATHERED_BYTES", 1 << 18)  # several groups of tokens
    planes = make_planes(4, randn, codec, latent=latent)
    blocks = choose(rows, 4, 11)
    q = randn(len(blocks), 4 * 64 + 5, seed=3)[:, 2:-3]
    own, expected = (
        attend(factory, planes, codec, latent, q, blocks, rows)
        for factory in (
            sparse.bind_selected_attention, CONTRACTS["selected_attention"].reference.load()
        )
    )
    assert torch.allclose(own, expected, atol=1e-5) and own.isfinite().all()


@pytest.mark.parametrize("block", [2, 4, 64])
@pytest.mark.parametrize("codec", KV_CODECS)
def test_all_blocks_have_the_bits_of_paged_attention(codec, block, randn):
    """Beside a token that has not, too."""
    planes, rows = make_planes(block, randn, codec), [(0, 296, 4), (1, 120, 40)]
    q, blocks = randn(44, 4 * 64, seed=3), choose(rows, block, 1, every=True)
    sizes = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 64, "scale": 0.1}
    dense = bind_paged_attention(make_request("paged_attention", codec, **sizes), planes)
    expected = dense(q, make_batch(*rows), torch.full((44, 256), torch.nan))
    for partial in (False, True):
        if partial:
            blocks[0, : (297 // block) - 1] = blocks[0, 1 : 297 // block].clone()
            blocks[0, 297 // block - 1] = -1
        own = attend(sparse.bind_selected_attention, planes, codec, False, q, blocks, rows, block)
        assert own[partial:].equal(expected[partial:]) and own.isfinite().all()


def test_attention_does_not_depend_on_company(randn):
    planes, rows = make_planes(4, randn), [(0, 200, 20), (1, 270, 7)]
    q, blocks = randn(27, 4 * 64, seed=3), choose(rows, 4, 11)
    together = attend(sparse.bind_selected_attention, planes, "fp32", False, q, blocks, rows)
    for t in range(27):
        row = [(0, 200 + t, 1) if t < 20 else (1, 250 + t, 1)]
        part = q[t : t + 1], blocks[t : t + 1]
        alone = attend(sparse.bind_selected_attention, planes, "fp32", False, *part, row)
        assert alone.equal(together[t : t + 1])


@pytest.mark.parametrize("codec", KV_CODECS)
@pytest.mark.parametrize("heads", [1, 3])
def test_keys_are_stored_as_by_the_reference(codec, heads, randn):
    """Bit for bit, and nothing else is written."""
    rows, stored = [(0, 60, 70), (1, 3, 1)], []
    key = randn(71, heads * 64 + 5)[:, 2:-3]
    for factory in (bind_key_append, CONTRACTS["key_append"].reference.load()):
        planes = make_planes(4, randn, codec, heads=heads, latent=True)
        request = make_request("key_append", codec, num_kv_heads=heads, head_dim=64)
        factory(request, planes)(key, make_batch(*rows))
        stored.append(planes.planes["key"])
    for name, found in stored[0].items():
        own, wanted = (each.contiguous().view(torch.uint8) for each in (found, stored[1][name]))
        assert own.equal(wanted)
