"""The paged cache: what is stored by each codec, and attention over it."""

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ninfer_profile_cpu.kernels.attention import attention_body, scratch_bytes, static_block
from ninfer_profile_cpu.kernels.attention_call import attention
from ninfer_profile_cpu.kernels.kv_codecs import KV_CODECS, plane_block
from ninfer_profile_cpu.kernels.pool import pool
from ninfer_profile_cpu.kernels.rope import rope_kv_append, rope_kv_append_body
from ninfer_profile_cpu.kernels.rope import static_block as rope_block

PAGE = 64
EPS = 1e-4
DTYPES = {
    "fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.int8, "fp8": torch.float8_e4m3fn,
}


def _planes(codec, num_pages, heads, dim):
    """Poisoned storage of one plane: codes, and scales if the codec has them."""
    codes = torch.full((num_pages, PAGE, heads, dim), 127.0 if codec == "int8" else torch.nan)
    scales = None
    if codec == "int8":
        scales = torch.full((num_pages, PAGE, heads, -(-dim // 64)), torch.nan, dtype=torch.float16)
    elif codec == "fp8":
        scales = torch.full((num_pages, PAGE, heads), torch.nan)
    return codes.to(DTYPES[codec]), scales


def _decoded(codec, codes, scales):
    """Values of stored components, straight from the definition of the codec."""
    values = codes.float()
    if codec == "int8":
        return values * scales.float().repeat_interleave(64, -1)[..., : values.shape[-1]]
    return values * scales.unsqueeze(-1) if codec == "fp8" else values


class Layer:
    """One layer of a cache with its kernels bound by hand."""

    def __init__(
        self, codec, num_heads, num_kv_heads, head_dim, num_pages, rotary_dim=0, **constants
    ):
        self.codec, self.sizes = codec, (num_heads, num_kv_heads, head_dim)
        angles = torch.rand(num_pages * PAGE, rotary_dim // 2) * 6
        self.cos, self.sin = angles.cos(), angles.sin()
        self.keys = _planes(codec, num_pages, num_kv_heads, head_dim)
        self.values = _planes(codec, num_pages, num_kv_heads, head_dim)
        self.blocks = [plane_block(codec, *self.keys), plane_block(codec, *self.values)]
        addresses = [block.ctypes.data for block in self.blocks]
        self.constants = constants
        tables = {"cos": self.cos, "sin": self.sin, **constants}
        self.rope = rope_block(
            *self.sizes, *addresses, half=rotary_dim // 2, eps=EPS, offset=1.0,
            **{name: table.data_ptr() for name, table in tables.items()},
        )
        self.static = static_block(*self.sizes, head_dim**-0.5, *addresses)
        self.partials = np.zeros(1 << 22, dtype=np.uint8)
        pool().reserve(scratch_bytes(*self.sizes))

    def append(self, qkv, batch):
        q, k = (4 * count * self.sizes[2] for count in self.sizes[:2])  # bytes
        starts, stride = (qkv.data_ptr() + at for at in (0, q, q + k)), 4 * qkv.stride(0)
        columns = [number for start in starts for number in (start, stride)]
        turns = batch.rope_positions
        rope_kv_append(
            pool().address, rope_kv_append_body(), len(qkv), self.rope.ctypes.data, *columns,
            turns.data_ptr(), 8 * turns.stride(0), batch.positions.data_ptr(),
            batch.token_row.data_ptr(), batch.table.data_ptr(), 4 * batch.table.stride(0),
        )

    def attend(self, q, batch, partial_bytes=1 << 22):
        out = torch.full((len(q), self.sizes[0] * self.sizes[2]), torch.nan)
        attention(
            pool().address, attention_body(), self.static.ctypes.data,
            q.data_ptr(), 4 * q.stride(0), out.data_ptr(), 4 * out.stride(0),
            batch.row_start.data_ptr(), batch.positions.data_ptr(), batch.table.data_ptr(),
            4 * batch.table.stride(0), len(batch.row_start) - 1, len(q), self.partials.ctypes.data,
            partial_bytes,
        )
        return out


def _batch(table, *rows):
    """Rows of ``(first position, number of tokens)``; row b has line b of the page table."""
    counts = torch.tensor([count for _, count in rows])
    positions = torch.cat([torch.arange(start, start + count) for start, count in rows])
    return SimpleNamespace(
        positions=positions, rope_positions=positions.repeat(3, 1),
        token_row=torch.arange(len(rows)).repeat_interleave(counts).int(),
        row_start=torch.cat([torch.zeros(1), counts.cumsum(0)]).int(),
        table=table,
    )


def _rotated(heads, cos, sin):
    """[T, H, D] by complex multiplication of component pairs (i, i + R/2)."""
    half = cos.shape[1]
    pairs = torch.complex(heads[..., :half].double(), heads[..., half : 2 * half].double())
    pairs = pairs * torch.complex(cos.double(), sin.double()).unsqueeze(1)
    return torch.cat([pairs.real, pairs.imag, heads[..., 2 * half :].double()], -1)


def _attention(q, k, v, positions):
    """fp64 [T, Hq, D] of queries at ``positions`` over keys [N, Hkv, D]."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(group, 1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.double(), k) * q.shape[2] ** -0.5
    hidden = torch.arange(len(k)) > positions.unsqueeze(1)
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, v)


@pytest.mark.parametrize("codec", KV_CODECS)
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(64, 64), (80, 20), (128, 0)])
def test_append_rotates_and_encodes(codec, head_dim, rotary_dim, randn):
    layer = Layer(codec, 4, 2, head_dim, num_pages=6, rotary_dim=rotary_dim)
    batch = _batch(torch.tensor([[3, 1], [5, 2]], dtype=torch.int32), (60, 9), (0, 2))
    qkv = randn(11, 8 * head_dim)
    heads = qkv.clone().view(11, 8, head_dim)
    rotated = _rotated(heads[:, :6], layer.cos[batch.positions], layer.sin[batch.positions])
    layer.append(qkv, batch)
    assert torch.allclose(qkv.view(11, 8, head_dim)[:, :6].double(), rotated, rtol=0, atol=1e-5)
    assert torch.equal(qkv.view(11, 8, head_dim)[:, 6:], heads[:, 6:])

    pages = batch.table[batch.token_row, batch.positions // PAGE].long()
    tolerance = {"fp32": 0, "bf16": 2**-8, "int8": 0.01, "fp8": 2**-4}[codec]
    for stored, first in ((layer.keys, 4), (layer.values, 6)):
        rows = [None if x is None else x[pages, batch.positions % PAGE] for x in stored]
        written = qkv.view(11, 8, head_dim)[:, first : first + 2]
        error = (_decoded(codec, *rows) - written).abs()
        assert (error <= tolerance * written.abs().amax(-1, keepdim=True)).all()
        untouched = torch.ones(6, PAGE, dtype=torch.bool)
        untouched[pages, batch.positions % PAGE] = False
        rest = stored[0].float()[untouched]
        assert (rest == 127).all() if codec == "int8" else rest.isnan().all()


@pytest.mark.parametrize("normed", ["query_norm", "key_norm"])
def test_append_normalises_before_it_rotates(normed, randn):
    layer = Layer("fp32", 3, 2, 80, num_pages=2, rotary_dim=20, **{normed: randn(80, seed=4)})
    batch, qkv = _batch(torch.tensor([[1]], dtype=torch.int32), (0, 11)), randn(11, 7 * 80)
    heads = qkv.double().view(11, 7, 80).clone()
    part = heads[:, :3] if normed == "query_norm" else heads[:, 3:5]
    rms = (part.square().mean(-1, keepdim=True) + EPS).sqrt()
    part.copy_(part / rms * (1 + layer.constants[normed].double()))
    layer.append(qkv, batch)
    exact = _rotated(heads[:, :5], layer.cos[batch.positions], layer.sin[batch.positions])
    assert torch.allclose(qkv.view(11, 7, 80)[:, :5].double(), exact, rtol=0, atol=1e-5)
    assert torch.equal(layer.keys[0][1, :11], qkv.view(11, 7, 80)[:, 3:5])
    assert torch.equal(qkv.view(11, 7, 80)[:, 5:].double(), heads[:, 5:])


@pytest.mark.parametrize("rotary_dim", [2, 30, 64])
def test_pairs_turn_by_the_position_of_their_axis(rotary_dim, randn):
    axes = torch.randint(0, 3, (rotary_dim // 2,), generator=torch.Generator().manual_seed(8))
    layer = Layer("fp32", 2, 1, 64, num_pages=4, rotary_dim=rotary_dim, axes=axes)
    batch, qkv = _batch(torch.tensor([[1]], dtype=torch.int32), (0, 30)), randn(30, 4 * 64)
    batch.rope_positions = torch.randint(0, 200, (3, 40))  # the buffer is longer than the step
    pairs, rows = torch.arange(rotary_dim // 2), batch.rope_positions[axes, :30].T
    exact = _rotated(qkv.view(30, 4, 64)[:, :3], layer.cos[rows, pairs], layer.sin[rows, pairs])
    layer.append(qkv, batch)
    assert torch.allclose(qkv.view(30, 4, 64)[:, :3].double(), exact, rtol=0, atol=1e-5)


@pytest.mark.parametrize("codec", KV_CODECS)
def test_codes_are_those_of_the_core(codec, randn):
    """Bit for bit what the core's own codec stores, for ordinary, tiny, zero and broken values."""
    from ninfer_core.state import codecs

    layer = Layer(codec, 1, 1, 128, num_pages=2)
    qkv = randn(40, 3 * 128) * torch.logspace(-44, 30, 40).unsqueeze(1)
    qkv[7] = 0
    qkv[8, 130], qkv[9, 300] = torch.inf, torch.nan
    layer.append(qkv, _batch(torch.tensor([[1]], dtype=torch.int32), (0, 40)))
    own = {"fp32": "Fp32Codec", "bf16": "Bf16Codec", "int8": "Int8Codec", "fp8": "Fp8Codec"}[codec]
    expected = getattr(codecs, own)()
    for stored, values in ((layer.keys, qkv[:, 128:256]), (layer.values, qkv[:, 256:])):
        decoded = _decoded(codec, *[None if x is None else x[1, :40] for x in stored])[:, 0]
        reference = expected.decode(expected.encode(values.unsqueeze(1)))[:, 0]
        finite = reference.isfinite()
        assert torch.equal(decoded.isfinite(), finite)
        assert torch.equal(decoded[finite], reference[finite])


@pytest.mark.parametrize("codec", KV_CODECS)
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim"), [(9, 3, 64), (2, 2, 80), (8, 1, 128), (50, 1, 16)]
)
def test_attention(codec, num_heads, num_kv_heads, head_dim, randn):
    """Prefill, decode and verify rows together, around the edges of blocks and spans."""
    layer = Layer(codec, num_heads, num_kv_heads, head_dim, num_pages=20)
    table = (torch.randperm(19, generator=torch.Generator().manual_seed(0)) + 1).int().view(1, 19)
    width = (num_heads + 2 * num_kv_heads) * head_dim
    table = torch.stack([table[0, :7], table[0, 7:14]])
    qkv = randn(2 * 300, width)
    layer.append(qkv.clone(), _batch(table, (0, 300), (0, 300)))
    stored = []
    for planes in (layer.keys, layer.values):
        rows = [None if x is None else x[table.long()].flatten(1, 2) for x in planes]
        stored.append(_decoded(codec, *rows))
    steps = [(299, 1), (0, 1)], [(63, 1), (64, 1)], [(255, 3), (250, 20)], [(0, 300), (64, 65)]
    for rows in steps:
        batch = _batch(table, *rows)
        q = randn(len(batch.positions), width)[:, : num_heads * head_dim]  # strided rows
        out = layer.attend(q, batch)
        for b, (start, end) in enumerate(batch.row_start.unfold(0, 2, 1).tolist()):
            positions = batch.positions[start:end]
            seen = int(positions[-1]) + 1
            queries = q[start:end].reshape(end - start, num_heads, head_dim)
            exact = _attention(queries, stored[0][b][:seen], stored[1][b][:seen], positions)
            assert torch.allclose(out[start:end].double(), exact.flatten(1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("codec", ["fp32", "int8"])
def test_bits_of_attention_depend_on_the_position_alone(codec, randn):
    """One prefill, any chunks of it, single tokens and other threads: the same bits."""
    layer = Layer(codec, 6, 2, 64, num_pages=12)
    table = torch.arange(1, 12, dtype=torch.int32).view(1, 11)
    qkv = randn(600, 10 * 64)
    layer.append(qkv.clone(), _batch(table, (0, 600)))
    whole = layer.attend(qkv[:, :384], _batch(table, (0, 600)))
    chunkings = [0, 64, 320, 600], [0, 100, 101, 257, 600], [599, 600], [255, 256], [510, 515, 523]
    for cuts in chunkings:
        for start, end in pairwise(cuts):
            part = layer.attend(qkv[start:end, :384], _batch(table, (start, end - start)))
            assert torch.equal(part, whole[start:end]), (start, end)
            unsplit = layer.attend(qkv[start:end, :384], _batch(table, (start, end - start)), 0)
            assert torch.equal(unsplit, whole[start:end]), (start, end)
    before = pool().num_threads
    for num_threads in (1, 3):
        pool().set_num_threads(num_threads)
        assert torch.equal(layer.attend(qkv[-1:, :384], _batch(table, (599, 1))), whole[-1:])
    pool().set_num_threads(before)


def test_attention_of_extreme_scores(randn):
    """One key far above, and all keys far below, the range of exp."""
    layer = Layer("fp32", 1, 1, 16, num_pages=4)
    qkv = randn(130, 48)
    qkv[:, 16:32] *= 400
    table = torch.tensor([[1, 2, 3]], dtype=torch.int32)
    layer.append(qkv, _batch(table, (0, 130)))
    batch = _batch(table, (0, 130))
    out = layer.attend(qkv, batch)
    exact = _attention(qkv[:, None, :16], qkv[:, None, 16:32], qkv[:, None, 32:], batch.positions)
    assert torch.allclose(out.double(), exact[:, 0], rtol=1e-4, atol=1e-4)
