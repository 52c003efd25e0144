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
    norms = {"eps": 0.01, "unit_offset": True}
    return {"num_heads": HQ, "num_kv_heads": HKV, "head_dim": D, "scale": 0.3, **norms}


@pytest.fixture
def bind_append(sizes, make_request):
    """Bind without axes or norms, where they are not given."""

    def bind(cache, cos=None, sin=None, axes=None, query_norm=None, key_norm=None):
        request = make_request(
            "rope_kv_append", sizes={**sizes, "rotary_dim": 0 if cos is None else 2 * cos.shape[1]}
        )
        op = rope.bind(request, cache, cos, sin, axes, query_norm, key_norm)
        return lambda qkv, batch: op(*qkv.split([HQ * D, HKV * D, HKV * D], dim=1), batch)

    return bind


def rotated(x, cos, sin):
    """``[T, H, D]`` by complex multiplication, FP64."""
    half = cos.shape[1]
    pairs = torch.complex(x[..., :half].double(), x[..., half : 2 * half].double())
    turned = pairs * torch.complex(cos.double(), sin.double()).unsqueeze(1)
    return torch.cat((turned.real, turned.imag, x[..., 2 * half :].double()), dim=-1)


@pytest.fixture
def run(sizes, bind_append, make_request, make_batch):
    """Append and attend a sequence chunk by chunk; returns ``[T, Hq D]``."""

    def run(qkv, chunks, cache, tables=(), pages=(5, 2, 9), **constants):
        append = bind_append(cache, *tables, **constants)
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

    return run


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
def test_chunks_equal_the_dense_formula(rotary, qkv, tables, run, make_cache):
    cut = tuple(table[:, : rotary // 2] for table in tables)
    out = run(qkv, (64, 64, 22), make_cache(HKV, D), cut)
    assert torch.allclose(out.double(), dense(qkv, cut, 0.3), atol=1e-6)


def test_without_rotation_queries_and_keys_stay(qkv, run, make_cache):
    out = run(qkv, (150,), make_cache(HKV, D))
    still = torch.ones(150, 1), torch.zeros(150, 1)
    assert torch.allclose(out.double(), dense(qkv, still, 0.3), atol=1e-6)


def test_norms_come_before_the_rotation(qkv, tables, run, make_cache):
    weights = {"query_norm": torch.rand(D), "key_norm": torch.rand(D) - 2}
    heads = qkv.double().view(150, -1, D).clone()
    for name, part in (("query_norm", heads[:, :HQ]), ("key_norm", heads[:, HQ : HQ + HKV])):
        rms = (part.square().mean(-1, keepdim=True) + 0.01).sqrt()
        part.copy_(part / rms * (1 + weights[name].double()))
    out = run(qkv, (64, 1, 85), make_cache(HKV, D), tables, **weights)
    assert torch.allclose(out.double(), dense(heads.flatten(1), tables, 0.3), atol=1e-6)
    for name in weights:
        alone = run(qkv, (150,), make_cache(HKV, D), tables, **{name: weights[name]})
        assert not torch.allclose(alone, out, atol=1e-3)


def test_pairs_turn_by_the_position_of_their_axis(
    qkv, tables, bind_append, make_cache, make_batch
):
    cache, axes = make_cache(HKV, D), torch.tensor([0, 1, 2, 0, 1, 2, 0, 2])
    batch, x = make_batch([(range(60, 80), (4, 6))]), qkv[:20].clone()
    batch.rope_positions[:, :20] = torch.randint(0, 200, (3, 20))
    bind_append(cache, *tables, axes=axes)(x, batch)
    angles = [torch.stack([
        table[batch.rope_positions[axis, :20], pair] for pair, axis in enumerate(axes.tolist())
    ], dim=1) for table in tables]
    heads = rotated(qkv[:20].view(20, -1, D)[:, : HQ + HKV], *angles)
    assert torch.allclose(x[:, : HQ * D].double(), heads[:, :HQ].flatten(1), atol=1e-6)
    places = [4] * 4 + [6] * 16, [*range(60, 64), *range(16)]
    stored = cache.planes["key"]["values"][places]
    assert torch.allclose(stored.double(), heads[:, HQ:], atol=1e-6)


def test_bf16_is_rounded_once(qkv, tables, bind_append, make_cache, make_batch):
    cache, norm = make_cache(HKV, D), torch.rand(D)
    x, exact = qkv[:9].bfloat16(), qkv[:9].bfloat16().float()
    for values in (x, exact):
        append = bind_append(cache, *tables, query_norm=norm, key_norm=norm)
        append(values, make_batch([(range(9), (1,))]))
    assert x[:, : HQ * D].equal(exact[:, : HQ * D].bfloat16())


@pytest.mark.parametrize("codec", ["fp32", "bf16", "int8", "fp8"])
@pytest.mark.parametrize("normed", [False, True])
def test_bits_do_not_depend_on_chunking(codec, normed, qkv, tables, run, make_cache):
    weights = {"query_norm": torch.rand(D), "key_norm": torch.rand(D)} if normed else {}
    whole = run(qkv, (150,), make_cache(HKV, D, codec), tables, **weights)
    for chunks in ((1,) * 150, (63, 1, 1, 65, 20), (128, 22)):
        again = run(qkv, chunks, make_cache(HKV, D, codec), tables, **weights)
        assert again.equal(whole)


@pytest.mark.parametrize(("codec", "limit"), [("bf16", 0.02), ("int8", 0.05), ("fp8", 0.12)])
def test_quantised_caches_stay_close(codec, limit, qkv, tables, run, make_cache):
    """Keys and values of deviation 4 with outliers of 50, as reported from real models."""
    loud = qkv * 4
    loud[::17, HQ * D :: 5] *= 12
    out = run(loud, (150,), make_cache(HKV, D, codec), tables)
    exact = dense(loud, tables, 0.3)
    assert (out - exact).norm() / exact.norm() < limit


def test_rows_of_a_batch_are_what_they_are_alone(
    qkv, tables, sizes, run, bind_append, make_cache, make_request, make_batch
):
    cache = make_cache(HKV, D)
    attend = attention.bind(make_request("paged_attention", sizes=sizes), cache)
    rows = [(range(0, 70), (1, 2)), (range(0, 1), (3,)), (range(0, 79), (4, 7))]
    batch, x = make_batch(rows), qkv.clone()
    bind_append(cache, *tables)(x, batch)
    together = attend(x[:, : HQ * D], batch, torch.empty(150, HQ * D))
    for start, (positions, pages) in zip((0, 70, 71), rows, strict=True):
        part = qkv[start : start + len(positions)]
        alone = run(part, (len(positions),), make_cache(HKV, D), tables, pages)
        assert alone.equal(together[start : start + len(positions)])


def test_append_writes_only_the_rows_of_the_batch(
    qkv, tables, bind_append, make_cache, make_batch
):
    cache = make_cache(HKV, D)
    for planes in cache.planes.values():
        planes["values"].fill_(torch.nan)
    bind_append(cache, *tables)(qkv[:5].clone(), make_batch([(range(62, 67), (4, 6))]))
    written = ~cache.planes["value"]["values"].isnan().all(-1).all(-1)
    expected = torch.zeros_like(written)
    expected[4, 62:] = True
    expected[6, :3] = True
    assert written.equal(expected)


def test_stale_rows_beyond_the_position_are_never_read(qkv, tables, run, make_cache):
    clean, stale = make_cache(HKV, D), make_cache(HKV, D)
    for planes in stale.planes.values():
        planes["values"].fill_(torch.nan)
    outs = [run(qkv[:70], (70,), cache, tables) for cache in (clean, stale)]
    assert outs[0].equal(outs[1])
