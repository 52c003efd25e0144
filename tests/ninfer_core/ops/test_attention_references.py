"""`rope_kv_append` and `paged_attention` against dense FP64 formulas over whole sequences."""

import pytest
import torch

from ninfer_core.ops.paged_attention import reference as attention
from ninfer_core.ops.rope_kv_append import reference as rope

HQ, HKV, D = 6, 2, 16


@pytest.fixture
def tables():
    angles = torch.rand(200, D // 2, generator=torch.Generator().manual_seed(3)) * 6
    return angles.cos(), angles.sin()


@pytest.fixture
def qkv():
    return torch.randn(150, (HQ + 2 * HKV) * D, generator=torch.Generator().manual_seed(4))


@pytest.fixture
def sizes():
    return {"num_heads": HQ, "num_kv_heads": HKV, "head_dim": D, "scale": 0.3}


def rotated(x, cos, sin):
    """``[T, H, D]`` by complex multiplication, FP64."""
    half = cos.shape[1]
    pairs = torch.complex(x[..., :half].double(), x[..., half : 2 * half].double())
    turned = pairs * torch.complex(cos.double(), sin.double()).unsqueeze(1)
    return torch.cat((turned.real, turned.imag, x[..., 2 * half :].double()), dim=-1)


def run(qkv, chunks, cache, tables, sizes, make_request, make_batch, pages=(5, 2, 9)):
    """Append and attend a sequence chunk by chunk; returns ``[T, Hq D]``."""
    cos, sin = tables
    sizes = {**sizes, "rotary_dim": 0 if cos is None else 2 * cos.shape[1]}
    append = rope.bind(make_request("rope_kv_append", sizes=sizes), cache, cos, sin)
    attend = attention.bind(make_request("paged_attention", sizes=sizes), cache)
    outs, start = [], 0
    for count in chunks:
        part = qkv[start : start + count].clone()
        batch = make_batch([(range(start, start + count), pages)])
        append(part, batch)
        out = torch.full((count, HQ * D), torch.nan)
        outs.append(attend(part[:, : HQ * D], batch, out))
        start += count
    return torch.cat(outs)


def dense(qkv, tables, scale):
    heads = qkv.view(qkv.shape[0], -1, D)
    cos, sin = (table[: qkv.shape[0]] for table in tables)
    q = rotated(heads[:, :HQ], cos, sin)
    k = rotated(heads[:, HQ : HQ + HKV], cos, sin).repeat_interleave(HQ // HKV, 1)
    v = heads[:, HQ + HKV :].double().repeat_interleave(HQ // HKV, 1)
    scores = torch.einsum("thd,shd->hts", q, k) * scale
    hidden = torch.ones(qkv.shape[0], qkv.shape[0], dtype=torch.bool).triu(1)
    probabilities = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    return torch.einsum("hts,shd->thd", probabilities, v).flatten(1)


@pytest.mark.parametrize("rotary", [D, D // 2])
def test_chunks_equal_the_dense_formula(
    rotary, qkv, tables, sizes, make_cache, make_request, make_batch
):
    cut = tuple(table[:, : rotary // 2] for table in tables)
    out = run(qkv, (64, 64, 22), make_cache(HKV, D), cut, sizes, make_request, make_batch)
    assert torch.allclose(out.double(), dense(qkv, cut, 0.3), atol=1e-6)


def test_without_rotation_queries_and_keys_stay(qkv, sizes, make_cache, make_request, make_batch):
    out = run(qkv, (150,), make_cache(HKV, D), (None, None), sizes, make_request, make_batch)
    still = torch.ones(150, 1), torch.zeros(150, 1)
    assert torch.allclose(out.double(), dense(qkv, still, 0.3), atol=1e-6)


@pytest.mark.parametrize("codec", ["fp32", "bf16", "int8", "fp8"])
def test_bits_do_not_depend_on_chunking(
    codec, qkv, tables, sizes, make_cache, make_request, make_batch
):
    whole = run(qkv, (150,), make_cache(HKV, D, codec), tables, sizes, make_request, make_batch)
    for chunks in ((1,) * 150, (63, 1, 1, 65, 20), (128, 22)):
        cache = make_cache(HKV, D, codec)
        assert run(qkv, chunks, cache, tables, sizes, make_request, make_batch).equal(whole)


@pytest.mark.parametrize(("codec", "limit"), [("bf16", 0.02), ("int8", 0.05), ("fp8", 0.12)])
def test_quantised_caches_stay_close(
    codec, limit, qkv, tables, sizes, make_cache, make_request, make_batch
):
    """Keys and values of deviation 4 with outliers of 50, as reported from real models."""
    loud = qkv * 4
    loud[::17, HQ * D :: 5] *= 12
    out = run(loud, (150,), make_cache(HKV, D, codec), tables, sizes, make_request, make_batch)
    exact = dense(loud, tables, 0.3)
    assert (out - exact).norm() / exact.norm() < limit


def test_rows_of_a_batch_are_what_they_are_alone(
    qkv, tables, sizes, make_cache, make_request, make_batch
):
    sizes = {**sizes, "rotary_dim": D}
    cache = make_cache(HKV, D)
    append = rope.bind(make_request("rope_kv_append", sizes=sizes), cache, *tables)
    attend = attention.bind(make_request("paged_attention", sizes=sizes), cache)
    rows = [(range(0, 70), (1, 2)), (range(0, 1), (3,)), (range(0, 79), (4, 7))]
    batch, x = make_batch(rows), qkv.clone()
    append(x, batch)
    together = attend(x[:, : HQ * D], batch, torch.empty(150, HQ * D))
    for start, (positions, pages) in zip((0, 70, 71), rows, strict=True):
        part = qkv[start : start + len(positions)]
        alone = run(
            part, (len(positions),), make_cache(HKV, D), tables, sizes, make_request, make_batch,
            pages,
        )
        assert alone.equal(together[start : start + len(positions)])


def test_append_writes_only_the_rows_of_the_batch(
    qkv, tables, sizes, make_cache, make_request, make_batch
):
    cache = make_cache(HKV, D)
    for planes in cache.planes.values():
        planes["values"].fill_(torch.nan)
    request = make_request("rope_kv_append", sizes={**sizes, "rotary_dim": D})
    rope.bind(request, cache, *tables)(qkv[:5].clone(), make_batch([(range(62, 67), (4, 6))]))
    written = ~cache.planes["value"]["values"].isnan().all(-1).all(-1)
    expected = torch.zeros_like(written)
    expected[4, 62:] = True
    expected[6, :3] = True
    assert written.equal(expected)


def test_stale_rows_beyond_the_position_are_never_read(
    qkv, tables, sizes, make_cache, make_request, make_batch
):
    clean, stale = make_cache(HKV, D), make_cache(HKV, D)
    for planes in stale.planes.values():
        planes["values"].fill_(torch.nan)
    outs = [
        run(qkv[:70], (70,), cache, tables, sizes, make_request, make_batch)
        for cache in (clean, stale)
    ]
    assert outs[0].equal(outs[1])
