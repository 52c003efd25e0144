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
from ninfer_core.plugin_host.builtin import ninfer_weight_formats, ninfer_weight_layouts
from ninfer_core.state.step import StepBatch
from ninfer_core.state.store import StateStore
from ninfer_fixtures.contracts import CONTRACTS
from ninfer_profile_cpu.bindings.matrix import bind_head_projection
from ninfer_profile_cpu.kernels.pool import pool
from ninfer_profile_cpu.plugin import ninfer_hardware_profiles, ninfer_kernels
from ninfer_profile_cpu.profile import num_cores

KERNELS = {spec.op: spec for spec in ninfer_kernels() if spec.batch_invariant}
"""All but what runs where it is asked for."""
SPECS = {spec.name: spec for spec in ninfer_weight_formats()}
LAYOUTS = {spec.name: spec for spec in ninfer_weight_layouts()}
FORMATS = {
    "fp32": "contiguous_le_v1", "bf16": "contiguous_le_v1", "q4_g64_fp16": "row_split_k128_v1",
    "q5_g64_fp16": "row_split_k128_v1", "q6_g64_fp16": "row_split_k128_v1",
    "q8_g32_fp16": "row_split_k128_v1", "fp8_e4m3fn_row_bf16": "row_scale_v1",
    "fp8_e4m3fn_g128_fp32": "row_scale_g128_v1",
}


def _weight(values, name):
    return _packed(name, FORMATS[name], SPECS[name].codec.load()().quantize(values))


def _packed(name, layout_name, parts):
    layout, shape = LAYOUTS[layout_name].layout.load()(), tuple(parts["codes"].shape)
    image = layout.pack(name, parts)
    planes = {plane.name: plane_view(image, plane) for plane in layout.planes(name, shape)}
    return Weight(
        WeightInfo(shape, SPECS[name], layout_name), planes, SPECS[name].codec.load()(), layout
    )


def _nvfp4_parts(rows, width):
    generator = torch.Generator().manual_seed(6)
    scales = torch.randint(0, 127, (rows, width // 16), generator=generator, dtype=torch.uint8)
    codes = torch.randint(0, 16, (rows, width), generator=generator, dtype=torch.uint8)
    divisor = torch.tensor(1234.5)
    return {"codes": codes, "scales": scales.view(torch.float8_e4m3fn), "divisor": divisor}


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
    check_matrix_ops(_weight(randn(24, 160), name), num_tokens, randn, poisoned)


@pytest.mark.parametrize("layout, shape", [
    ("block_scale_k16_m128x4_v1", (256, 192)), ("block_scale_k16_plain_v1", (24, 208)),
])
@pytest.mark.parametrize("num_tokens", [1, 9])
def test_matrix_ops_of_nvfp4(layout, shape, num_tokens, randn, poisoned):
    weight = _packed("nvfp4", layout, _nvfp4_parts(*shape))
    check_matrix_ops(weight, num_tokens, randn, poisoned)


def check_matrix_ops(weight, num_tokens, randn, poisoned):
    rows, width = weight.info.shape
    x, residual = randn(num_tokens, width) / 16, randn(num_tokens, rows)
    for bias in (None, randn(rows, seed=5)):
        own, reference = _bind("linear", weight=weight, bias=bias)
        for rest in (None, residual):
            expected = reference(x, poisoned(num_tokens, rows), rest)
            assert torch.allclose(own(x, poisoned(num_tokens, rows), rest), expected, atol=1e-4)
    own, reference = _bind("swiglu", weight=weight)
    expected = reference(x, poisoned(num_tokens, rows // 2))
    assert torch.allclose(own(x, poisoned(num_tokens, rows // 2)), expected, atol=1e-4)
    own, reference = _bind("swiglu", {"limit": 0.5}, weight=weight)
    clamped = reference(x, poisoned(num_tokens, rows // 2))
    assert torch.allclose(own(x, poisoned(num_tokens, rows // 2)), clamped, atol=1e-4)
    check_embedding(weight, torch.arange(num_tokens) * 2, poisoned)


def check_embedding(weight, ids, poisoned):
    """Bit for bit, the sign of zeros included."""
    own, reference = _bind("embedding", weight=weight)
    out, expected = (poisoned(len(ids), weight.info.shape[1]) for _ in range(2))
    own(ids, out), reference(ids, expected)
    assert torch.equal(out.view(torch.int32), expected.view(torch.int32))


def test_every_value_of_nvfp4(poisoned):
    """Each code under each scale, in the layouts of the core and in one of somebody else."""
    codes = torch.arange(16, dtype=torch.uint8).repeat(128, 4)
    scales = torch.arange(128, dtype=torch.uint8).clamp(max=126).view(torch.float8_e4m3fn)
    for divisor in (1.0, 3.0, 2688.123, 1e-3):
        parts = {"codes": codes, "scales": scales.unsqueeze(1).expand(128, 4).contiguous(),
                 "divisor": torch.tensor(divisor)}
        for layout in ("block_scale_k16_m128x4_v1", "block_scale_k16_plain_v1"):
            check_embedding(_packed("nvfp4", layout, parts), torch.arange(128), poisoned)
        info = WeightInfo((128, 64), SPECS["nvfp4"], "other_v1")
        check_embedding(Weight(info, parts, SPECS["nvfp4"].codec.load()(), _Unpacked()),
                        torch.arange(128), poisoned)


@pytest.mark.parametrize("largest", [127.0, 128.0, 1e30])
def test_every_value_of_fp8(largest, poisoned):
    words = torch.arange(256, dtype=torch.uint8)
    codes = words[words & 127 != 127].view(torch.float8_e4m3fn).expand(8, -1)
    scales = torch.tensor([2.0**-130, 2.0**-126, 1e-20, 0.0123, 0.3, 1.0, 7.7, largest])
    for name, scales_of in (
        ("fp8_e4m3fn_row_bf16", scales.bfloat16()),
        ("fp8_e4m3fn_g128_fp32", scales.unsqueeze(1) * torch.tensor([1.0, 0.9])),
    ):
        parts = {"codes": codes, "scales": scales_of}
        check_embedding(_packed(name, FORMATS[name], parts), torch.arange(8), poisoned)


class _Unpacked:
    """A layout whose planes are parts."""

    def unpack(self, format_name, shape, planes):
        return {name: plane.clone() for name, plane in planes.items()}


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

    info = WeightInfo((20, 100), FormatSpec("other", "m:C", bits, structure), "other_v1")
    weight, x = Weight(info, parts, Codec(), _Unpacked()), randn(3, 100)
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


@pytest.mark.parametrize("rotary_dim", [0, 32, 64])
@pytest.mark.parametrize(
    ("codec", "special"),
    [("fp32", True), ("fp32", False), ("bf16", False), ("int8", False), ("fp8", False)],
)
def test_cache_ops(codec, special, rotary_dim, randn, poisoned):
    """``special``: norms, and pairs that turn by three axes."""
    sizes = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 64}
    tables = dict.fromkeys(("cos", "sin", "axes", "query_norm", "key_norm"))
    if rotary_dim:
        angles = torch.rand(2048, rotary_dim // 2) * 6
        tables |= {"cos": angles.cos(), "sin": angles.sin()}
    if special:
        tables |= {"query_norm": randn(64), "key_norm": randn(64, seed=2)}
        tables["axes"] = torch.arange(rotary_dim // 2) % 3 if rotary_dim else None
    results = []
    for index in (0, 1):
        planes = _cache(codec)
        rope = {**sizes, "rotary_dim": rotary_dim, "eps": 1e-4, "unit_offset": True}
        append = _bind("rope_kv_append", rope, codec, planes=planes, **tables)
        attend = _bind("paged_attention", {**sizes, "scale": 0.125}, codec, planes=planes)
        results.append([])
        for rows in ([(0, 70), (0, 5)], [(70, 1), (5, 3)]):
            batch = _batch(rows)
            qkv = randn(batch.num_tokens, 8 * 64, seed=rows[0][0])
            q, k, v = qkv.split([256, 128, 128], dim=1)
            append[index](q, k, v, batch)
            out = attend[index](q, batch, poisoned(batch.num_tokens, 256))
            results[-1] += [q, v, out]
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
        steps = torch.tensor([[1], [3], [2]]) * torch.arange(first, first + count)
        batch.rope_positions[:, start : start + count] = steps
        batch.token_row[start : start + count] = b
        batch.page_table[b, :2] = torch.tensor([2 * b + 1, 2 * b + 2])
        start += count
        batch.row_start[b + 1] = start
    return batch


def test_refusals_say_why():
    q4 = WeightInfo((8, 64), SPECS["q4_g64_fp16"], "row_split_k128_v1")
    int32 = WeightInfo((8, 64), SPECS["int32"], "contiguous_le_v1")
    bank = WeightInfo((2, 8, 64), SPECS["nvfp4"], "block_scale_k16_plain_v1")
    odd = evolve(q4, format=evolve(q4.format, structure=AffineGroup(3, 64)))
    heads = {"num_heads": 2, "num_kv_heads": 1, "head_dim": 6, "rotary_dim": 2, "scale": 1.0}
    for op, facts, word in (
        ("linear", {"dtype": "bfloat16", "weights": (q4,)}, "float32"),
        ("linear", {"weights": (int32,)}, "int32"),
        ("linear", {"weights": (bank,)}, "matrices"),
        ("swiglu", {"weights": (odd,)}, "bits"),
        ("embedding", {"weights": (int32,)}, "int32"),
        ("moe_mlp", {"weights": (q4, bank)}, "banks of nvfp4"),
        ("moe_mlp", {"weights": (q4, evolve(bank, format=SPECS["q4_g64_fp16"]))}, "matrices"),
        ("moe_mlp", {"weights": (q4, q4), "sizes": {"num_experts": 3}}, "no banks of 3 experts"),
        ("moe_route", {"dtype": "bfloat16"}, "float32"),
        ("moe_route", {"sizes": {"scoring": "softplus"}}, "softplus"),
        ("moe_route", {"sizes": {"scale": 2.0}}, "softmax"),
        ("rmsnorm", {"dtype": "float16"}, "float32"),
        ("rope_kv_append", {"kv_codec": "fp6", "sizes": heads}, "fp6"),
        ("paged_attention", {"kv_codec": "fp32", "sizes": heads}, "6"),
    ):
        request = KernelRequest(op=op, device="cpu", **{"dtype": "float32", **facts})
        assert word in KERNELS[op].accepts.load()(request)


def test_every_kernel_is_of_an_op_of_the_core_and_loads():
    assert set(KERNELS) <= set(CONTRACTS)
    for spec in ninfer_kernels():
        assert callable(spec.factory.load())
        assert spec.batch_invariant or spec.priority < -100  # which no op is bound to by itself


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


@pytest.mark.parametrize(("heads", "rows", "width"), [(1, 1, 1), (3, 40, 24), (4, 7, 33)])
@pytest.mark.parametrize("format", ["fp32", "bf16", "q8_g32_fp16"])
def test_a_product_for_each_head(format, heads, rows, width, randn):
    weight = _weight(randn(heads * rows, width), format)
    x = randn(20, heads * width + 5)[:, 2:-3]
    request = KernelRequest("head_projection", "cpu", "float32", sizes={"num_heads": heads})
    own = bind_head_projection(request, weight)
    reference = CONTRACTS["head_projection"].reference.load()(request, weight)
    wide, expected = torch.full((20, heads * rows + 3), torch.nan), torch.empty(20, heads * rows)
    out = own(x, wide[:, 1:-2])
    assert torch.allclose(out, reference(x, expected), atol=1e-5)
    assert wide[:, 0].isnan().all() and wide[:, -2:].isnan().all()
    for t in range(20):
        assert own(x[t : t + 1], torch.empty(1, heads * rows)).equal(out[t : t + 1])
