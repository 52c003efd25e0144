"""The paged cache: what each codec stores, and attention over it."""

import pytest
import torch
import triton
import triton.language as tl

from ninfer_conformance.tolerances import require_close
from ninfer_core.api import KVCodecSpec, PagedStateSpec, StatePlane
from ninfer_core.state.store import StateStore
from ninfer_triton_kernels.bindings import cache
from ninfer_triton_kernels.kernels import attention

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
@pytest.mark.parametrize("head_dim, rotary_dim, normed, axes, is_prompt", [
    (64, 64, False, False, False), (80, 32, True, True, False), (32, 0, True, False, False),
    (80, 32, True, True, True),
])
def test_rope_kv_append(
    codec, head_dim, rotary_dim, normed, axes, is_prompt, bind, make_planes, paged_batch, randn,
    device, monkeypatch,
):
    if is_prompt:
        monkeypatch.setattr(cache, "LEAST_PROMPT", 0)
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


def test_programs_that_share_a_tile():
    """Of 132 multiprocessors, each with one at a time."""
    from ninfer_triton_kernels.bindings.prompt_attention import _parts

    assert [_parts(tiles, 132, 1 << 20) for tiles in (384, 192, 96, 48, 4)] == [1, 2, 4, 8, 31]
    assert _parts(4, 132, 20 << 20) == 3
    assert _parts(4, 132, 1 << 30) == _parts(7, 1, 1 << 20) == 1


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("segment_pages, processors", [(1, 1), (3, 1), (2, 64)])
def test_prefill_of_rows_by_segments(
    codec, segment_pages, processors, bind, make_planes, paged_batch, randn, poisoned, monkeypatch
):
    """Two rows, of which one ends in the first segment; a segment begins among the tokens of a
    tile; one program a tile, or several; heads that are no power of two; anything behind the last
    token."""
    from ninfer_triton_kernels.bindings import prompt_attention

    row_bytes = 2 * 2 * 128 * 2
    monkeypatch.setattr(prompt_attention, "num_processors", lambda device: processors)
    monkeypatch.setattr(prompt_attention, "SEGMENT_BYTES", segment_pages * 64 * 2 * row_bytes)
    sizes = {"num_heads": 6, "num_kv_heads": 2, "head_dim": 80, "scale": 80**-0.5}
    batch = paged_batch((150, 90), (0, 20), pages=5)
    batch.num_pages = 4 if processors > 1 else 0  # of the table's five
    planes = make_planes(codec, 2, 80, 6)
    for row, (count, last) in enumerate(((4, 239), (1, 19))):
        fill(planes, batch.page_table[row, :count].long(), randn)
        for name in planes.planes:
            codes = planes.planes[name]["values" if codec == "bf16" else "codes"]
            if codec != "int8":
                codes[batch.page_table[row, last // 64].long(), last % 64 + 1 :] = torch.nan
    attend, reference = bind("paged_attention", sizes, codec, planes=planes)
    q = randn(110, 480)
    require_close(
        attend(q, batch, poisoned(110, 480)), reference(q, batch, poisoned(110, 480)), "attention",
        "bf16")


@pytest.mark.parametrize("processors", [1, 64])
def test_a_bound_of_pages_changes_no_bit(
    processors, bind, make_planes, paged_batch, randn, poisoned, monkeypatch
):
    """Of a context of three pages: what its length asks for, room for more in the one segment, and
    a segment in vain behind it; one program a tile, or several."""
    from ninfer_triton_kernels.bindings import prompt_attention

    monkeypatch.setattr(prompt_attention, "num_processors", lambda device: processors)
    monkeypatch.setattr(prompt_attention, "SEGMENT_BYTES", 4 * 64 * 256)
    sizes = {"num_heads": 2, "num_kv_heads": 1, "head_dim": 64, "scale": 0.125}
    batch = paged_batch((130, 20), pages=6)
    planes, q = make_planes("bf16", 1, 64, 7), randn(20, 128)
    fill(planes, batch.page_table[0, :3].long(), randn)
    attend, reference = bind("paged_attention", sizes, "bf16", planes=planes)
    found = []
    for batch.num_pages in (3, 4, 6):
        found.append(attend(q, batch, poisoned(20, 128)).clone())
    require_close(found[0], reference(q, batch, poisoned(20, 128)), "attention", "bf16")
    assert all(torch.equal(each, found[0]) for each in found)


@pytest.mark.parametrize("codec, heads, kv_heads, head_dim", [
    ("bf16", 3, 1, 64), ("int8", 3, 1, 64), ("fp8", 3, 1, 64), ("int8", 20, 2, 32),
    ("fp8", 36, 1, 48)])
def test_company_and_width_change_no_bit(
    codec, heads, kv_heads, head_dim, bind, make_planes, paged_batch, randn, poisoned
):
    """Groups of which four, two and one token share a program, the last in two shares; a row that
    ends in another page than it begins in."""
    width = heads * head_dim
    sizes = {"num_heads": heads, "num_kv_heads": kv_heads, "head_dim": head_dim, "scale": 0.125}
    planes, q = make_planes(codec, kv_heads, head_dim, 6), randn(7, width)
    attend, reference = bind("paged_attention", sizes, codec, planes=planes)
    together = paged_batch((126, 4), (3, 3))
    fill(planes, together.page_table[0].long(), randn)
    fill(planes, together.page_table[1, :1].long(), randn)
    actual = attend(q, together, poisoned(7, width))
    require_close(actual, reference(q, together, poisoned(7, width)), "attention", "bf16")
    for row, token, position in ((0, 3, 129), (1, 4, 3)):
        alone = paged_batch((position, 1), pages=3)
        alone.page_table[0] = together.page_table[row]
        out = attend(q[token : token + 1], alone, poisoned(1, width))
        assert torch.equal(out[0], actual[token])


@pytest.mark.parametrize("codec, wide, rows, tokens, stages", [
    ("bf16", 256, 8, 1, 2), ("bf16", 256, 1, 1, 3), ("bf16", 256, 8, 4, 3), ("bf16", 128, 8, 1, 3),
    ("fp8", 256, 8, 1, 3),
])
def test_stages_of_programs(codec, wide, rows, tokens, stages):
    """Of six queries for each of four key heads, on 132 multiprocessors."""
    products = -(-tokens * 6 // cache.COLUMNS)
    assert cache._stages(rows * 4 * 32, products, codec, wide, 132) == stages


def test_stages_change_no_bit(bind, make_planes, paged_batch, randn, poisoned, monkeypatch):
    sizes = {"num_heads": 2, "num_kv_heads": 1, "head_dim": 256, "scale": 0.0625}
    planes, batch, read = make_planes("bf16", 1, 256, 4), paged_batch((70, 1), (5, 1), pages=2), []
    for row, pages in enumerate((2, 1)):
        fill(planes, batch.page_table[row, :pages].long(), randn)
    attend, _ = bind("paged_attention", sizes, "bf16", planes=planes)
    q = randn(2, 512)
    for held in (0, 1 << 16):
        monkeypatch.setattr(cache, "HELD", held)
        read.append(attend(q, batch, poisoned(2, 512)))
    assert read[0].isfinite().all() and torch.equal(*read)


def test_a_row_of_many_tokens_over_two_pages(bind, make_planes, paged_batch, randn, poisoned):
    sizes = {"num_heads": 2, "num_kv_heads": 2, "head_dim": 32, "scale": 0.2}
    planes, batch = make_planes("fp8", 2, 32, 6), paged_batch((130, 1), (59, 15), pages=3)
    for row, count in enumerate((3, 2)):
        fill(planes, batch.page_table[row, :count].long(), randn)
    attend, reference = bind("paged_attention", sizes, "fp8", planes=planes)
    q = randn(16, 64)
    require_close(
        attend(q, batch, poisoned(16, 64)), reference(q, batch, poisoned(16, 64)), "attention",
        "bf16")


def test_a_row_whose_context_begins_to_have_more_parts(
    bind, make_planes, paged_batch, randn, poisoned, device
):
    if device == "cpu":
        pytest.skip("a context of 16,385 tokens takes the interpreter half a minute")
    sizes = {"num_heads": 1, "num_kv_heads": 1, "head_dim": 32, "scale": 0.2}
    planes, batch = make_planes("fp8", 1, 32, 258), paged_batch((16_382, 3))
    fill(planes, batch.page_table[0].long(), randn)
    attend, reference = bind("paged_attention", sizes, "fp8", planes=planes)
    q = randn(3, 32, scale=4.0)
    require_close(
        attend(q, batch, poisoned(3, 32)), reference(q, batch, poisoned(3, 32)), "attention",
        "bf16")


@pytest.mark.parametrize("codec", CODECS)
def test_values_much_smaller_than_others(codec, bind, make_planes, paged_batch, randn, poisoned):
    """Of the token that gets the largest weight, and of a whole context."""
    sizes = {"num_heads": 2, "num_kv_heads": 1, "head_dim": 64, "scale": 1.0}
    batch = paged_batch((40, 1), (5, 1))
    planes = make_planes(codec, 1, 64, 3)
    attend, reference = bind("paged_attention", sizes, codec, planes=planes)
    for row, tiny in enumerate((slice(20, 21), slice(None))):
        page = batch.page_table[row, :1].long()
        keys, values = (randn(64, 1, 64, seed=seed).float() for seed in (1, 2))
        keys[20] *= 3
        values[tiny] *= 1e-3 if codec == "int8" else 1e-12
        for name, given in (("key", keys), ("value", values)):
            for part, stored in planes.codec.encode(given).items():
                planes.planes[name][part][page] = stored.unflatten(0, (-1, 64))
    q = randn(2, 128)
    q[0] = 0.1 * decoded(planes, "key")[batch.page_table[0, 0].long(), 20].repeat(1, 2)
    actual, expected = attend(q, batch, poisoned(2, 128)), reference(q, batch, poisoned(2, 128))
    for row in range(2):
        require_close(actual[row], expected[row], "attention", "bf16")


@triton.jit
def _cuts(positions, out, PARTS: tl.constexpr, N: tl.constexpr):
    position = tl.load(positions + tl.program_id(0))
    part = tl.arange(0, PARTS)
    begin, end = attention.part_of(part, position, N)
    at = out + (tl.program_id(0) * PARTS + part) * 3
    tl.store(at, begin)
    tl.store(at + 1, end)
    tl.store(at + 2, attention.is_seen(part, position, N).to(tl.int32))


@pytest.mark.parametrize("block", [32, 64])
def test_parts_cover_a_context_once(block, device):
    contexts = [1, 31, 64, 65, 1024, 2049, 16_384, 16_385, 99_999, 1 << 20]
    positions = torch.tensor([context - 1 for context in contexts], dtype=torch.int32)
    out = torch.zeros(len(contexts), 64, 3, dtype=torch.int32, device=device)
    _cuts[len(contexts),](positions.to(device), out, 64, block)
    for context, cuts in zip(contexts, out.tolist(), strict=True):
        num_pages = -(-context // 64)
        parts = cache.num_parts(num_pages, block)
        begins, ends = [begin for begin, *_ in cuts], [end for _, end, _ in cuts]
        assert begins[:parts] == [0, *ends[: parts - 1]]
        assert all(begin < end for begin, end, _ in cuts[:parts])
        assert ends[parts - 1] == num_pages * 64 // block
        assert all(begin * block >= context for begin in begins[parts:])
        assert all(seen == (begin * block < context) for begin, _, seen in cuts)
