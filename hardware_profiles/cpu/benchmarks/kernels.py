"""Speed of the CPU kernels beside what the machine can do, in one run.

    python hardware_profiles/cpu/benchmarks/kernels.py [--threads N] [--shape N K] [--kv-heads 3]

First the limits (streaming reads, torch's fp32 matrix product), then for every weight format a
product of 1, 4, 16 and 512 tokens with more weights than caches hold, then attention. Times are
minima: other processes only ever add.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import torch

from ninfer_profile_cpu.kernels.attention import attention_body, scratch_bytes, static_block
from ninfer_profile_cpu.kernels.attention_call import attention
from ninfer_profile_cpu.kernels.decoders import decoder
from ninfer_profile_cpu.kernels.kv_codecs import KV_CODECS, plane_block
from ninfer_profile_cpu.kernels.launch import launch
from ninfer_profile_cpu.kernels.linear import linear_body
from ninfer_profile_cpu.kernels.pool import pool
from ninfer_profile_cpu.kernels.products import BUFFER_BYTES
from ninfer_profile_cpu.kernels.weight_block import weight_block
from ninfer_profile_cpu.kernels.weight_fields import AREA, BLOCK_ROWS

FORMATS = (
    "fp32", "bf16", "u4_g32_half_min", "s4_g64_pair", "s5_g64_pair", "s6_g64_pair", "s8_g32_pair",
)
TOKENS = (1, 4, 16, 512)
STREAM_BYTES = 96 << 20
"""Weights that are read one after the other, so that none comes from a cache."""

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
    options = parser.parse_args()
    limits(options)
    torch.set_num_threads(options.threads)
    print(f"launch of two items: {1e6 * launch_s():.2f} us")
    for fmt in FORMATS:
        products(fmt, *options.shape)
    for codec in KV_CODECS:
        attention_of(codec, options)


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
    weight = weight_block("fp32", (0, 0, 0, 0), 0, 16)
    arguments = weight.ctypes.data, *(0,) * 8  # no rows, no tokens: nothing to do
    shared, body = pool().address, linear_body()
    pool().reserve(1 << 20)

    def often() -> None:
        for _ in range(1000):
            launch(shared, body, 2, 1, *arguments)

    return fastest(often) / 1000


def products(fmt: str, rows: int, width: int) -> None:
    """Stream different weights of one format through products of different numbers of tokens."""
    form = decoder(fmt)
    groups = -(-width // form.step)
    sizes = [rows * groups * nbytes for nbytes in form.step_bytes]
    sizes[2:] = [size // 2 for size in sizes[2:]]  # scales are fp16 in memory
    copies = max(1, STREAM_BYTES // sum(sizes))
    memory = torch.ones(sum(sizes) * copies, dtype=torch.uint8)
    blocks = []
    for copy in range(copies):
        starts = memory.data_ptr() + copy * sum(sizes) + np.cumsum([0, *sizes[:3]])
        blocks.append(weight_block(fmt, starts.tolist(), rows, width, groups))
    pool().reserve(BUFFER_BYTES + int(blocks[0][AREA]))
    shared, body, items = pool().address, linear_body(), -(-rows // BLOCK_ROWS)
    for tokens in TOKENS:
        x, out = torch.ones(tokens, width), torch.empty(tokens, rows)
        used = blocks if tokens < 64 else blocks[:2]

        def run(used=used, x=x, out=out) -> None:
            for block in used:
                launch(
                    shared, body, items, 1, block.ctypes.data, x.data_ptr(), 4 * width, len(x),
                    out.data_ptr(), 4 * rows, 0, 0, 0,
                )

        seconds = fastest(run) / len(used)
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
