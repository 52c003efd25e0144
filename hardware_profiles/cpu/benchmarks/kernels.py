"""Speed of the CPU kernels beside what the machine can do, in one run.

    python hardware_profiles/cpu/benchmarks/kernels.py [--threads N] [--part PART]
        [--shape N K] [--kv-heads 3]

First the limits (streaming reads, torch's fp32 matrix product), then for every weight format a
product of 1, 4, 16 and 512 tokens with more weights than caches hold, then attention, then the ops
of a gated delta network beside its chunked form in torch, then a mixture of experts beside a dense
MLP with as many weights a token, then hyper-connections and index keys. Times are minima: other
processes only ever add.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from itertools import cycle
from types import SimpleNamespace

import numpy as np
import torch

from ninfer_core.api import KernelRequest, WeightInfo
from ninfer_core.artifact.layouts.planar import plane_view
from ninfer_core.artifact.weight import Weight
from ninfer_core.plugin_host.builtin import ninfer_weight_formats, ninfer_weight_layouts
from ninfer_core.state.codecs import Fp32Codec
from ninfer_core.state.step import StepBatch
from ninfer_core.state.views import PagedPlanes, SlotPlanes
from ninfer_profile_cpu import chunked_delta_rule
from ninfer_profile_cpu.bindings.experts import bind_moe_mlp, bind_moe_route
from ninfer_profile_cpu.bindings.index_keys import bind_softmax_index_append
from ninfer_profile_cpu.bindings.matrix import bind_linear, bind_swiglu
from ninfer_profile_cpu.bindings.rows import bind_gated_rmsnorm
from ninfer_profile_cpu.bindings.sinkhorn import (
    bind_sinkhorn_read,
    bind_sinkhorn_write,
    bind_stream_mean,
)
from ninfer_profile_cpu.bindings.slots import bind_causal_conv1d, bind_gated_delta_rule
from ninfer_profile_cpu.kernels.attention import attention_body, scratch_bytes, static_block
from ninfer_profile_cpu.kernels.attention_call import attention
from ninfer_profile_cpu.kernels.decoders import decoder
from ninfer_profile_cpu.kernels.kv_codecs import KV_CODECS, plane_block
from ninfer_profile_cpu.kernels.launch import launch
from ninfer_profile_cpu.kernels.linear import linear_body
from ninfer_profile_cpu.kernels.minifloats import NVFP4_TABLE
from ninfer_profile_cpu.kernels.planes import Planes, Scales
from ninfer_profile_cpu.kernels.pool import pool
from ninfer_profile_cpu.kernels.products import BUFFER_BYTES
from ninfer_profile_cpu.kernels.weight_block import weight_block
from ninfer_profile_cpu.kernels.weight_fields import AREA, BLOCK_ROWS

FORMATS = (
    "fp32", "bf16", "u4_g32_half_min", "s4_g64_pair", "s5_g64_pair", "s6_g64_pair", "s8_g32_pair",
    "fp8_row", "fp8_g128", "nvfp4_tiled", "nvfp4_rows",
)
TOKENS = (1, 4, 16, 512)
STREAM_BYTES = 96 << 20
"""Weights that are read one after the other, so that none comes from a cache."""

KEY_HEADS, HEAD_DIM, TAPS = 16, 128, 4
VALUE_HEADS = (32, 48)
"""Gated delta networks of Qwen3.5, 35B-A3B and 27B."""

EXPERTS, TOP_K, WIDTH, INNER = 256, 8, 2048, 512
"""A mixture of experts of Qwen3.5-35B-A3B."""

STREAMS, STREAM_WIDTH, INDEX_DIM, BLOCK, TAIL = 4, 4096, 128, 4, 64
"""Hyper-connections and index keys of GLM-5.3-Flash."""

KV_DTYPES = {
    "fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.int8, "fp8": torch.float8_e4m3fn,
}


def main() -> None:
    """Print one line a case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--shape", type=int, nargs=2, default=(3072, 576), metavar=("N", "K"))
    parser.add_argument("--heads", type=int, default=9)
    parser.add_argument("--kv-heads", type=int, default=3)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--part", choices=("products", "attention", "delta", "experts", "streams"))
    options = parser.parse_args()
    limits(options)
    torch.set_num_threads(options.threads)
    print(f"launch of two items: {1e6 * launch_s():.2f} us")
    if options.part in (None, "products"):
        for fmt in FORMATS:
            products(fmt, *options.shape)
    if options.part in (None, "attention"):
        for codec in KV_CODECS:
            attention_of(codec, options)
    if options.part in (None, "delta"):
        for heads in VALUE_HEADS:
            delta_network(heads, options.threads)
    if options.part in (None, "experts"):
        mixture_of_experts()
    if options.part in (None, "streams"):
        mixing_streams()
        index_keys()


def limits(options: argparse.Namespace) -> None:
    """What torch reaches on the same threads."""
    torch.set_num_threads(options.threads)
    rows, width = options.shape
    data, x, w = torch.ones(STREAM_BYTES // 4), torch.ones(512, width), torch.ones(rows, width)
    read_s, product_s = fastest(data.sum), fastest(lambda: x @ w.T)
    flops = 2 * 512 * rows * width / product_s
    print(f"{options.threads} threads: reads {data.nbytes / read_s / 1e9:.1f} GB/s, torch.mm "
          f"[512, {width}] x [{width}, {rows}] {flops / 1e9:.0f} GFLOP/s")


def launch_s() -> float:
    """Fork and join of two empty items."""
    weight = weight_block("fp32", Planes(), 0, 16)
    arguments = weight.ctypes.data, *(0,) * 8  # no rows, no tokens: nothing to do
    shared, body = pool().address, linear_body()
    pool().reserve(1 << 20)

    def often() -> None:
        for _ in range(1000):
            launch(shared, body, 2, 1, *arguments)

    return fastest(often) / 1000


def products(fmt: str, rows: int, width: int) -> None:
    """Stream different weights of one format through products of different numbers of tokens."""
    form, table = decoder(fmt), torch.ones(NVFP4_TABLE)
    steps = -(-width // form.step)
    strides = form.strides(width, steps)
    lines = -(-rows // 128) if form.scales is Scales.TILED else rows
    sizes = [rows * strides.codes, rows * strides.high, lines * strides.scales,
             rows * strides.minimums]
    copies = max(1, STREAM_BYTES // sum(sizes))
    memory = torch.ones(sum(sizes) * copies, dtype=torch.uint8)
    blocks = []
    for copy in range(copies):
        starts = memory.data_ptr() + copy * sum(sizes) + np.cumsum([0, *sizes[:3]])
        planes = Planes(*starts.tolist())._replace(table=table.data_ptr())
        blocks.append(weight_block(fmt, planes, rows, width, steps))
    pool().reserve(BUFFER_BYTES + int(blocks[0][AREA]))
    shared, body, items = pool().address, linear_body(), -(-rows // BLOCK_ROWS)
    for tokens in TOKENS:
        x, out, turns = torch.ones(tokens, width), torch.empty(tokens, rows), cycle(blocks)

        def run(x=x, out=out, turns=turns) -> None:
            launch(
                shared, body, items, 1, next(turns).ctypes.data, x.data_ptr(), 4 * width, len(x),
                out.data_ptr(), 4 * rows, 0, 0, 0,
            )

        seconds = fastest(run)
        print(f"{fmt:16} T={tokens:<4} {1e6 * seconds:8.1f} us  "
              f"{sum(sizes) / seconds / 1e9:6.1f} GB/s of weights  "
              f"{2e-9 * tokens * rows * width / seconds:6.1f} GFLOP/s")


def attention_of(codec: str, options: argparse.Namespace) -> None:
    """Decode at several lengths of context, and a prefill of 512 tokens."""
    heads = options.heads, options.kv_heads, options.head_dim
    planes = [kv_plane(codec, *heads[1:]) for _ in range(2)]
    blocks = [plane_block(codec, *plane) for plane in planes]
    static = static_block(*heads, heads[2] ** -0.5, *[block.ctypes.data for block in blocks])
    pool().reserve(scratch_bytes(*heads))
    partials, table = np.zeros(8 << 20, np.uint8), torch.arange(1, 33, dtype=torch.int32)
    for start, tokens in ((511, 1), (2047, 1), (0, 512)):
        q = torch.ones(tokens, heads[0] * heads[2])
        case = SimpleNamespace(
            out=torch.empty_like(q), bounds=torch.tensor([0, tokens], dtype=torch.int32),
            positions=torch.arange(start, start + tokens),
        )

        def run(q=q, case=case) -> None:
            attention(
                pool().address, attention_body(), static.ctypes.data, q.data_ptr(),
                4 * q.stride(0), case.out.data_ptr(), 4 * q.stride(0), case.bounds.data_ptr(),
                case.positions.data_ptr(), table.data_ptr(), 128, 1, len(q), partials.ctypes.data,
                partials.nbytes,
            )

        seconds, visible = fastest(run), sum(range(start + 1, start + tokens + 1))
        flops = 4 * heads[0] * heads[2] * visible / seconds
        print(f"attention {codec:6} {tokens} tokens from {start}: {1e6 * seconds:8.1f} us  "
              f"{flops / 1e9:6.1f} GFLOP/s")


def kv_plane(codec: str, heads: int, dim: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Codes and scales of 33 pages."""
    codes = torch.ones(33, 64, heads, dim).to(KV_DTYPES[codec])
    if codec == "int8":
        return codes, torch.ones(33, 64, heads, -(-dim // 64), dtype=torch.float16)
    return codes, torch.ones(33, 64, heads) if codec == "fp8" else None


def delta_network(heads: int, threads: int) -> None:
    """The ops of one layer: states of more sequences than caches hold, and a prefill."""
    keys, values = KEY_HEADS * HEAD_DIM, heads * HEAD_DIM
    sizes = {"num_key_heads": KEY_HEADS, "num_value_heads": heads, "key_dim": HEAD_DIM,
             "value_dim": HEAD_DIM, "eps": 1e-6}
    num_slots = STREAM_BYTES // (4 * heads * HEAD_DIM**2)
    planes = SlotPlanes(
        torch.zeros(num_slots + 1, heads, HEAD_DIM, HEAD_DIM),
        torch.zeros(num_slots + 1, 4, keys + values + 2 * heads),
    )
    request = KernelRequest("gated_delta_rule", "cpu", "float32", sizes=sizes)
    constants = torch.zeros(heads), torch.zeros(heads)
    own = bind_gated_delta_rule(request, planes, *constants)
    widths = keys, keys, values, heads, heads
    for tokens, replay, certain in ((1, 0, True), (4, 3, False), (512, 0, True)):
        inputs, out = [torch.randn(tokens, w) for w in widths], torch.empty(tokens, values)
        slots = range(1, num_slots + 1 if tokens < 64 else 2)
        batches = [slot_batch(slot, tokens, replay, certain) for slot in slots]

        def run(inputs=inputs, out=out, batches=batches) -> None:
            for batch in batches:
                own(*inputs, batch, out)

        seconds = fastest(run) / len(batches)
        flops = 7 * heads * HEAD_DIM**2 * (tokens + replay) / seconds
        moved = 2 * planes.committed[0].nbytes / seconds
        print(f"gated_delta_rule {heads} heads, {tokens} tokens, {replay} replayed: "
              f"{1e6 * seconds:8.1f} us  {moved / 1e9:5.1f} GB/s of state  "
              f"{flops / 1e9:6.1f} GFLOP/s")
    torch.set_num_threads(threads)
    form = chunked_delta_rule.bind(request, planes, *constants)
    other = fastest(partial(form, *inputs, batches[0], out))
    torch.set_num_threads(1)
    print(f"    by chunks in torch: {1e6 * other:.1f} us, {other / seconds:.1f} times as long")
    delta_surroundings(heads, 2 * keys + values)


def delta_surroundings(heads: int, channels: int) -> None:
    """The convolution before the rule and the gated norm behind it."""
    planes = SlotPlanes(torch.zeros(2, TAPS - 1, channels), torch.zeros(2, 4, channels))
    request = KernelRequest("causal_conv1d", "cpu", "float32")
    convolve = bind_causal_conv1d(request, torch.ones(TAPS, channels), planes)
    sizes = {"eps": 1e-6, "num_heads": heads, "activation": "silu"}
    request = KernelRequest("gated_rmsnorm", "cpu", "float32", sizes=sizes)
    norm = bind_gated_rmsnorm(request, torch.ones(HEAD_DIM))
    for tokens in (1, 512):
        x, out = torch.ones(tokens, channels), torch.empty(tokens, channels)
        batch = slot_batch(1, tokens, 0, True)
        y, gate = (torch.ones(tokens, heads * HEAD_DIM) for _ in range(2))
        times = [1e6 * fastest(each) for each in (
            partial(convolve, x, batch, out), partial(norm, y, gate, y))]
        print(f"    {tokens} tokens: causal_conv1d {times[0]:.1f} us, "
              f"gated_rmsnorm {times[1]:.1f} us")


def slot_batch(slot: int, tokens: int, replay: int, certain: bool) -> StepBatch:
    """A step of one row."""
    batch = StepBatch.allocate(max_tokens=tokens, max_rows=1, max_pages=1, max_logits=1)
    batch.num_rows, batch.num_tokens, batch.row_start[1] = 1, tokens, tokens
    batch.slots[0], batch.replay[0], batch.certain[0] = slot, replay, certain
    return batch


def mixture_of_experts() -> None:
    """One layer of 4-bit gates and 5-bit down projections, and dense MLPs on parts of its banks."""
    sizes = {"num_experts": EXPERTS, "top_k": TOP_K}
    banks = (random_weight("q4_g64_fp16", EXPERTS * 2 * INNER, WIDTH),
             random_weight("q5_g64_fp16", EXPERTS * WIDTH, INNER))
    expert_bytes = sum(plane.nbytes for bank in banks for plane in bank.planes.values()) / EXPERTS
    request = KernelRequest("moe_mlp", "cpu", "float32", max_tokens=512, sizes=sizes)
    mix, route = bind_moe_mlp(request, *banks), bind_moe_route(request, None)
    dense = [dense_mlp(banks[0].part(part, EXPERTS // TOP_K)) for part in range(EXPERTS // TOP_K)]
    for tokens in (1, 4, 16, 512):
        x, out = torch.randn(tokens, WIDTH), torch.empty(tokens, WIDTH)
        choices = [distinct_choices(part, tokens) for part in range(32 if tokens < 64 else 2)]

        def run(x=x, out=out, choices=choices) -> None:
            for chosen in choices:
                mix(x, *chosen, out)

        def run_dense(x=x, out=out, choices=choices) -> None:
            for mlp, _ in zip(dense, choices, strict=False):
                mlp(x, out)

        seconds, peer = (fastest(each) / len(choices) for each in (run, run_dense))
        used = sum(len(ids.unique()) for ids, _ in choices) / len(choices)
        flops = 6 * tokens * TOP_K * WIDTH * INNER / seconds
        print(f"moe_mlp of {EXPERTS} experts, {tokens} tokens: {1e6 * seconds:9.1f} us  "
              f"{used * expert_bytes / seconds / 1e9:5.1f} GB/s of {used:.0f} experts  "
              f"{flops / 1e9:6.1f} GFLOP/s; dense {1e6 * peer:9.1f} us")
    logits = torch.randn(512, EXPERTS)
    seconds = fastest(partial(route, logits, *distinct_choices(0, 512)))
    print(f"moe_route, 512 tokens: {1e6 * seconds:.1f} us")


def distinct_choices(part: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and shares: of one token, those that no other part has; else at random."""
    ids = torch.rand(tokens, EXPERTS).argsort(1)[:, :TOP_K].int().contiguous()
    if tokens == 1:
        ids = torch.arange(part * TOP_K, (part + 1) * TOP_K, dtype=torch.int32).unsqueeze(0)
    return ids, torch.full((tokens, TOP_K), 1 / TOP_K)


def dense_mlp(gate_up: Weight) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """An MLP of as many weights as a token's experts have."""
    down = random_weight("q5_g64_fp16", WIDTH, TOP_K * INNER)
    gate = bind_swiglu(KernelRequest("swiglu", "cpu", "float32"), gate_up)
    project = bind_linear(KernelRequest("linear", "cpu", "float32"), down, None)
    products = torch.empty(512, TOP_K * INNER)
    return lambda x, out: project(gate(x, products[: len(x)]), out)


def mixing_streams() -> None:
    """What a block of GLM-5.3-Flash has around it."""
    sizes = {"num_streams": STREAMS, "iterations": 20, "eps": 1e-6, "norm_eps": 1e-5}
    request, size = KernelRequest("", "cpu", "float32", sizes=sizes), STREAMS * (STREAMS + 2)
    read = bind_sinkhorn_read(request, torch.zeros(size), torch.ones(3))
    write, mean = bind_sinkhorn_write(request), bind_stream_mean(request)
    for tokens in (1, 512):
        streams, products = torch.randn(tokens, STREAMS * STREAM_WIDTH), torch.randn(tokens, size)
        out, mix = torch.empty(tokens, STREAM_WIDTH), torch.empty(tokens, STREAMS * (STREAMS + 1))
        seconds = [fastest(each) for each in (
            partial(read, products, streams, out, mix), partial(write, out, mix, streams),
            partial(mean, streams, out))]
        times = " ".join(f"{1e6 * each:8.1f}" for each in seconds)
        print(f"sinkhorn_read, sinkhorn_write, stream_mean, {tokens} tokens: {times} us  "
              f"{2 * streams.nbytes / seconds[1] / 1e9:5.1f} GB/s of streams written anew")


def index_keys() -> None:
    """Of one layer, by softmax."""
    entries = torch.zeros(9, 64 // BLOCK, INDEX_DIM)
    planes = PagedPlanes("float32", Fp32Codec(), {"index_key": {"values": entries}})
    tail = SlotPlanes(torch.zeros(2, TAIL, 2 * INDEX_DIM), torch.zeros(2, 4, 0))
    sizes = {"head_dim": INDEX_DIM, "block": BLOCK, "eps": 1e-6}
    request = KernelRequest("softmax_index_append", "cpu", "float32", sizes=sizes)
    norms = torch.ones(INDEX_DIM), torch.zeros(INDEX_DIM), torch.zeros(BLOCK, INDEX_DIM)
    append = bind_softmax_index_append(request, planes, tail, *norms)
    for tokens in (1, 512):
        batch = StepBatch.allocate(max_tokens=tokens, max_rows=1, max_pages=8, max_logits=1)
        batch.num_rows, batch.num_tokens, batch.row_start[1] = 1, tokens, tokens
        batch.slots[0] = 1
        batch.positions.copy_(torch.arange(BLOCK - 1, BLOCK - 1 + tokens) % 512)
        batch.page_table.copy_(torch.arange(1, 9))
        k, s = torch.randn(tokens, INDEX_DIM), torch.randn(tokens, INDEX_DIM)
        seconds = fastest(partial(append, k, s, batch))
        print(f"softmax_index_append, {tokens} tokens: {1e6 * seconds:.1f} us")


def random_weight(name: str, rows: int, width: int) -> Weight:
    """Codes at random in the layout of artifacts; scales of 0.01."""
    format, layout_name = (
        {spec.name: spec for spec in ninfer_weight_formats()}[name], "row_split_k128_v1"
    )
    layout = {spec.name: spec for spec in ninfer_weight_layouts()}[layout_name].layout.load()()
    image = torch.randint(0, 256, (layout.nbytes(name, (rows, width)),), dtype=torch.uint8)
    planes = {each.name: plane_view(image, each) for each in layout.planes(name, (rows, width))}
    planes["scales"].fill_(0.01)
    info = WeightInfo((rows, width), format, layout_name)
    return Weight(info, planes, format.codec.load()(), layout)


def fastest(run: Callable[[], object], seconds: float = 0.4) -> float:
    """Shortest run within a time."""
    run()
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


if __name__ == "__main__":
    main()
