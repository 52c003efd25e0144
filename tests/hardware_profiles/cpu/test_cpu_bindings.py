"""Bound ops on the core's weights, caches and batches, against the references of the contracts."""

import sys
from subprocess import run

import pytest
import torch
from attrs import evolve

from ninfer_core.api import (
    AffineGroup,
    FormatSpec,
    KernelRequest,
    KVCodecSpec,
    PagedStateSpec,
    StatePlane,
    WeightInfo,
)
from ninfer_core.artifact.layouts.planar import plane_view
from ninfer_core.artifact.weight import Weight
from ninfer_core.ops.contracts import CONTRACTS
from ninfer_core.plugin_host.builtin import ninfer_weight_formats, ninfer_weight_layouts
from ninfer_core.state.step import StepBatch
from ninfer_core.state.store import StateStore
from ninfer_profile_cpu.kernels.pool import pool
from ninfer_profile_cpu.plugin import ninfer_hardware_profiles, ninfer_kernels
from ninfer_profile_cpu.profile import num_cores

KERNELS = {spec.op: spec for spec in ninfer_kernels()}
SPECS = {spec.name: spec for spec in ninfer_weight_formats()}
LAYOUTS = {spec.name: spec for spec in ninfer_weight_layouts()}
FORMATS = {
    "fp32": "contiguous_le_v1", "bf16": "contiguous_le_v1", "q4_g64_fp16": "row_split_k128_v1",
    "q5_g64_fp16": "row_split_k128_v1", "q6_g64_fp16": "row_split_k128_v1",
    "q8_g32_fp16": "row_split_k128_v1",
}


def _weight(values, name):
    spec, layout = SPECS[name], LAYOUTS[FORMATS[name]].layout.load()()
    codec, shape = spec.codec.load()(), tuple(values.shape)
    image = layout.pack(name, codec.quantize(values))
    planes = {plane.name: plane_view(image, plane) for plane in layout.planes(name, shape)}
    return Weight(WeightInfo(shape, spec, FORMATS[name]), planes, codec, layout)


def _bind(op, sizes=None, kv_codec="", **constants):
    """This profile's callable and the reference's, for one request."""
    weights = tuple(c.info for c in constants.values() if isinstance(c, Weight))
    request = KernelRequest(
        op, "cpu", "float32", weights=weights, kv_codec=kv_codec, sizes=sizes or {}
    )
    assert KERNELS[op].accepts.load()(request) is None
    factories = KERNELS[op].factory.load(), CONTRACTS[op].reference.load()
    return [factory(request, **constants) for factory in factories]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("num_tokens", [1, 9])
def test_matrix_ops(name, num_tokens, randn, poisoned):
    weight, x, residual = (
        _weight(randn(24, 160), name), randn(num_tokens, 160) / 16, randn(num_tokens, 24)
    )
    for bias in (None, randn(24, seed=5)):
        own, reference = _bind("linear", weight=weight, bias=bias)
        for rest in (None, residual):
            expected = reference(x, poisoned(num_tokens, 24), rest)
            assert torch.allclose(own(x, poisoned(num_tokens, 24), rest), expected, atol=1e-4)
    own, reference = _bind("swiglu", weight=weight)
    expected = reference(x, poisoned(num_tokens, 12))
    assert torch.allclose(own(x, poisoned(num_tokens, 12)), expected, atol=1e-4)
    own, reference = _bind("embedding", weight=weight)
    ids = torch.arange(num_tokens) * 2
    out, expected = poisoned(num_tokens, 160), poisoned(num_tokens, 160)
    assert torch.equal(own(ids, out), reference(ids, expected))


def test_residual_in_place(randn, poisoned):
    own, reference = _bind("linear", weight=_weight(randn(24, 160), "q8_g32_fp16"), bias=None)
    x, stream = randn(3, 160), randn(3, 24)
    expected = reference(x, poisoned(3, 24), stream)
    assert own(x, stream, stream) is stream
    assert torch.allclose(stream, expected, atol=1e-4)


@pytest.mark.parametrize("bits", [4, 5, 6, 8])
@pytest.mark.parametrize("minimum", [False, True])
def test_unknown_format_in_an_unknown_layout(bits, minimum, randn, poisoned):
    """What a plugin brings runs by its structure alone."""
    low, high = (0, 1 << bits) if minimum and bits < 8 else (-(1 << bits - 1), 1 << bits - 1)
    codes = torch.randint(low, high, (20, 100), generator=torch.Generator().manual_seed(3))
    parts = {"codes": codes.to(torch.int8), "scales": randn(20, 4).half()}
    if minimum:
        parts["minimums"] = randn(20, 4, seed=7).half()
    structure = AffineGroup(bits, 32, signed=low < 0, minimum=minimum)

    class Codec:
        def dequantize(self, parts):
            scales, minimums = (
                parts[n].float().repeat_interleave(32, 1)[:, :100] if n in parts else 0
                for n in ("scales", "minimums")
            )
            return parts["codes"].float() * scales + minimums

    class Layout:
        def unpack(self, format_name, shape, planes):
            return {name: plane.clone() for name, plane in planes.items()}

    info = WeightInfo((20, 100), FormatSpec("other", "m:C", bits, structure), "other_v1")
    weight, x = Weight(info, parts, Codec(), Layout()), randn(3, 100)
    own, reference = _bind("linear", weight=weight, bias=None)
    assert torch.allclose(own(x, poisoned(3, 20)), reference(x, poisoned(3, 20)), atol=1e-3)
    own, reference = _bind("embedding", weight=weight)
    ids = torch.tensor([19, 0])
    assert torch.equal(own(ids, poisoned(2, 100)), reference(ids, poisoned(2, 100)))


@pytest.mark.parametrize("unit_offset", [False, True])
def test_rmsnorm(unit_offset, randn, poisoned):
    sizes = {"eps": 1e-6, "unit_offset": unit_offset}
    own, reference = _bind("rmsnorm", sizes, weight=randn(100))
    x = randn(20, 100, seed=4)
    assert torch.allclose(own(x, poisoned(20, 100)), reference(x, poisoned(20, 100)), atol=1e-5)


@pytest.mark.parametrize("codec", ["fp32", "bf16", "int8", "fp8"])
@pytest.mark.parametrize("rotary_dim", [0, 32, 64])
def test_cache_ops(codec, rotary_dim, randn, poisoned):
    sizes = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 64}
    angles = torch.rand(2048, rotary_dim // 2) * 6 if rotary_dim else None
    cos, sin = (None, None) if angles is None else (angles.cos(), angles.sin())
    results = []
    for index in (0, 1):
        planes = _cache(codec)
        rope = {**sizes, "rotary_dim": rotary_dim}
        append = _bind("rope_kv_append", rope, codec, planes=planes, cos=cos, sin=sin)
        attend = _bind("paged_attention", {**sizes, "scale": 0.125}, codec, planes=planes)
        results.append([])
        for rows in ([(0, 70), (0, 5)], [(70, 1), (5, 3)]):
            batch = _batch(rows)
            qkv = randn(batch.num_tokens, 8 * 64, seed=rows[0][0])
            append[index](qkv, batch)
            out = attend[index](qkv[:, :256], batch, poisoned(batch.num_tokens, 256))
            results[-1] += [qkv, out]
        stored = [part[1:4] for plane in planes.planes.values() for part in plane.values()]
        results[-1] += [part.float() for part in stored]
    for own, expected in zip(*results, strict=True):
        assert torch.allclose(own, expected, atol=1e-5)


def _cache(codec):
    planes = StatePlane("key", (2, 64)), StatePlane("value", (2, 64))
    spec = KVCodecSpec(codec, f"ninfer_core.state.codecs:{codec.capitalize()}Codec")
    store = StateStore(
        [PagedStateSpec("kv", 1, planes)], spec, num_pages=8, max_sequences=1, max_context=512,
        max_verify_rows=1,
    )
    view = store.view("kv", 0)
    for plane in view.planes.values():
        for part in plane.values():
            part.zero_()
    return view


def _batch(rows):
    total = sum(count for _, count in rows)
    batch = StepBatch.allocate(max_tokens=total + 2, max_rows=3, max_pages=4, max_logits=1)
    batch.num_tokens, batch.num_rows, start = total, len(rows), 0
    for b, (first, count) in enumerate(rows):
        batch.positions[start : start + count] = torch.arange(first, first + count)
        batch.token_row[start : start + count] = b
        batch.page_table[b, :2] = torch.tensor([2 * b + 1, 2 * b + 2])
        start += count
        batch.row_start[b + 1] = start
    return batch


def test_refusals_say_why():
    q4 = WeightInfo((8, 64), SPECS["q4_g64_fp16"], "row_split_k128_v1")
    nvfp4 = WeightInfo((8, 64), SPECS["nvfp4"], "block_scale_k16_m128x4_v1")
    odd = evolve(q4, format=evolve(q4.format, structure=AffineGroup(3, 64)))
    heads = {"num_heads": 2, "num_kv_heads": 1, "head_dim": 6, "rotary_dim": 2, "scale": 1.0}
    for op, facts, word in (
        ("linear", {"dtype": "bfloat16", "weights": (q4,)}, "float32"),
        ("linear", {"weights": (nvfp4,)}, "nvfp4"),
        ("swiglu", {"weights": (odd,)}, "bits"),
        ("embedding", {"weights": (nvfp4,)}, "nvfp4"),
        ("rmsnorm", {"dtype": "float16"}, "float32"),
        ("rope_kv_append", {"kv_codec": "fp6", "sizes": heads}, "fp6"),
        ("paged_attention", {"kv_codec": "fp32", "sizes": heads}, "6"),
    ):
        request = KernelRequest(op=op, device="cpu", **{"dtype": "float32", **facts})
        assert word in KERNELS[op].accepts.load()(request)


def test_every_op_of_the_core_is_registered_and_loads():
    assert set(KERNELS) == set(CONTRACTS)
    for spec in KERNELS.values():
        assert callable(spec.factory.load()) and spec.batch_invariant


def test_profile():
    (spec,) = ninfer_hardware_profiles()
    assert spec.detect.load()().score == 10
    profile = spec.profile.load()()
    for asked, got in ((1, 1), (2, 2), (None, num_cores())):
        profile.prepare(asked)
        assert pool().num_threads == got
    figures = profile.figures()
    assert figures.read_bytes_per_s > 1e8 and figures.flops["float32"] > 1e8
    assert 0 < profile.memory_budget() < figures.memory_bytes


def test_registering_imports_no_heavy_module():
    code = "import sys, ninfer_profile_cpu.plugin as p, ninfer_profile_cpu.profile as q\n"
    code += "p.ninfer_kernels(); q.detect(); assert not {'torch', 'numba'} & set(sys.modules)"
    assert run([sys.executable, "-c", code], timeout=60).returncode == 0
