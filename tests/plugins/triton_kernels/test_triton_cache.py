"""The paged cache: what each codec stores, and attention over it."""

import pytest
import torch

from ninfer_conformance.tolerances import require_close
from ninfer_core.api import KVCodecSpec, PagedStateSpec, StatePlane
from ninfer_core.state.store import StateStore

CODECS = {"bf16": "Bf16Codec", "int8": "Int8Codec", "fp8": "Fp8Codec"}


@pytest.fixture
def make_planes(device):
    """``(codec, kv_heads, head_dim, pages) -> PagedPlanes``, filled with NaN where there is one."""

    def make(codec, kv_heads, head_dim, pages):
        shape = (kv_heads, head_dim)
        state = PagedStateSpec("kv", 2, (StatePlane("key", shape), StatePlane("value", shape)))
        store = StateStore(
            (state,), KVCodecSpec(codec, f"ninfer_core.state.codecs:{CODECS[codec]}"),
            num_pages=pages, max_sequences=1, max_context=64, max_verify_rows=1, device=device)
        store.memory.rows.fill_(0xFF)
        return store.view("kv", 1)

    return make


def decoded(planes, name):
    return planes.codec.decode(planes.planes[name])


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("head_dim, rotary_dim, normed, axes", [
    (64, 64, False, False), (80, 32, True, True), (32, 0, True, False),
])
def test_rope_kv_append(
    codec, head_dim, rotary_dim, normed, axes, bind, make_planes, paged_batch, randn, device
):
    half = rotary_dim // 2
    angles = randn(200, half, seed=9).float() * 6
    constants = {
        "cos": angles.cos() if half else None, "sin": angles.sin() if half else None,
        "axes": torch.arange(half, device=device) % 3 if axes else None,
        "query_norm": randn(head_dim, seed=7) if normed else None,
        "key_norm": randn(head_dim, seed=8) if normed else None,
    }
    sizes = {"num_heads": 3, "num_kv_heads": 2, "head_dim": head_dim, "rotary_dim": rotary_dim,
             "eps": 1e-4, "unit_offset": True}
    batch = paged_batch((62, 3), (5, 1))
    batch.rope_positions[1:] += torch.tensor([[3], [9]], device=device)
    both = [make_planes(codec, 2, head_dim, 3) for _ in range(2)]
    columns = randn(4, 7 * head_dim)
    queries = []
    for which, planes in enumerate(both):
        append = bind("rope_kv_append", sizes, codec, planes=planes, **constants)[which]
        copy = columns.clone()
        queries.append(copy[:, : 3 * head_dim])
        append(queries[-1], copy[:, 3 * head_dim : 5 * head_dim], copy[:, 5 * head_dim :], batch)
    require_close(queries[0], queries[1], "queries", "bf16")
    for name in ("key", "value"):
        actual, expected = (decoded(planes, name) for planes in both)
        assert torch.equal(actual.isnan(), expected.isnan())
        step = {"bf16": 2**-6, "int8": 2**-6, "fp8": 2**-3}[codec]  # where both round another way
        error = (actual.nan_to_num() - expected.nan_to_num()).abs()
        limit = {"bf16": 0.01, "int8": 0.1, "fp8": 0.01}[codec]
        assert bool((error <= limit + step * expected.nan_to_num().abs()).all())


@pytest.mark.parametrize("codec", ["int8", "fp8"])
def test_what_is_not_finite_stays_so(codec, bind, make_planes, paged_batch, randn):
    planes = make_planes(codec, 1, 64, 1)
    sizes = {"num_heads": 1, "num_kv_heads": 1, "head_dim": 64, "rotary_dim": 0, "eps": 0.0,
             "unit_offset": False}
    append, _ = bind("rope_kv_append", sizes, codec, planes=planes, cos=None, sin=None, axes=None,
                     query_norm=None, key_norm=None)
    q, k, v = randn(1, 64), randn(1, 64), randn(1, 64)
    k[0, 3], v[0, 5] = torch.nan, torch.inf
    batch = paged_batch((0, 1))
    append(q, k, v, batch)
    page = batch.page_table[0, 0]
    assert not decoded(planes, "key")[page, 0, 0, 3].isfinite()
    assert not decoded(planes, "value")[page, 0, 0, 5].isfinite()


def fill(planes, pages, randn):
    for seed, name in enumerate(("key", "value")):
        values = randn(len(pages) * 64, *planes.planes[name][next(iter(planes.planes[name]))]
                       .shape[2:], seed=seed + 20).float()
        for part, stored in planes.codec.encode(values).items():
            planes.planes[name][part][pages] = stored.unflatten(0, (-1, 64))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("heads, kv_heads, head_dim", [(3, 1, 64), (4, 2, 80)])
def test_decode(codec, heads, kv_heads, head_dim, bind, make_planes, paged_batch, randn, poisoned):
    """Rows of different lengths and widths, over one run and several."""
    sizes = {"num_heads": heads, "num_kv_heads": kv_heads, "head_dim": head_dim,
             "scale": head_dim**-0.5}
    batch = paged_batch((125, 4), (0, 1), (300, 2), pages=9)
    planes = make_planes(codec, kv_heads, head_dim, 10)
    for row, pages in enumerate((3, 1, 5)):
        fill(planes, batch.page_table[row, :pages].long(), randn)
        last = int(batch.positions[batch.row_start[row + 1] - 1])  # behind it is anything
        for name in planes.planes:
            codes = planes.planes[name]["values" if codec == "bf16" else "codes"]
            if codec != "int8":
                codes[batch.page_table[row, last // 64].long(), last % 64 + 1 :] = torch.nan
    attend, reference = bind("paged_attention", sizes, codec, planes=planes)
    q = randn(7, heads * head_dim)
    expected = reference(q, batch, poisoned(7, heads * head_dim))
    out = attend(q, batch, poisoned(7, heads * head_dim))
    require_close(out, expected, "attention", "bf16")


@pytest.mark.parametrize("codec", CODECS)
def test_prefill_with_history(codec, bind, make_planes, paged_batch, randn, poisoned):
    sizes = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 32, "scale": 0.2}
    batch = paged_batch((70, 67), pages=4)
    planes = make_planes(codec, 2, 32, 4)
    fill(planes, batch.page_table[0, :3].long(), randn)
    attend, reference = bind("paged_attention", sizes, codec, planes=planes)
    q = randn(67, 128)
    require_close(
        attend(q, batch, poisoned(67, 128)), reference(q, batch, poisoned(67, 128)), "attention",
        "bf16")


def test_company_and_width_change_no_bit(bind, make_planes, paged_batch, randn, poisoned):
    sizes = {"num_heads": 3, "num_kv_heads": 1, "head_dim": 64, "scale": 0.125}
    planes, q = make_planes("bf16", 1, 64, 6), randn(8, 192)
    attend, _ = bind("paged_attention", sizes, "bf16", planes=planes)
    together = paged_batch((126, 4), (3, 4))
    fill(planes, together.page_table[0].long(), randn)
    fill(planes, together.page_table[1, :1].long(), randn)
    expected = attend(q, together, poisoned(8, 192))
    for row, token, position in ((0, 0, 126), (0, 3, 129), (1, 6, 5)):
        alone = paged_batch((position, 1), pages=3)
        alone.page_table[0] = together.page_table[row]
        out = attend(q[token : token + 1], alone, poisoned(1, 192))
        assert torch.equal(out[0], expected[token])


@pytest.mark.parametrize("num_pages", [1, 2, 3, 32, 33, 40, 41, 512, 513, 528, 529, 4000])
def test_runs_cover_every_page_once(num_pages):
    from ninfer_triton_kernels.bindings.cache import num_runs
    from ninfer_triton_kernels.kernels import attention

    fine, medium, coarse = (
        range(32), range(32, 512, 4), range(512, 5000, 16))
    begins = [begin for begin in (*fine, *medium, *coarse) if begin < num_pages]
    assert num_runs(num_pages) == len(begins)
    assert (attention.FINE.value, attention.MEDIUM.value, attention.COARSE.value) == (1, 4, 16)
