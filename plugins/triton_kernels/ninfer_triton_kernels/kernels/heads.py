"""Keys of a step into the cache, and a product for each head."""

import triton
import triton.language as tl

from ninfer_triton_kernels.kernels.cache import PAGE, append
from ninfer_triton_kernels.kernels.overlap import release, wait
from ninfer_triton_kernels.kernels.products import multiply


@triton.jit
def key_append(
    key, stride, codes, scales, page_stride, scale_stride, positions, token_row, page_table,
    table_stride, num_heads, width, CODEC: tl.constexpr, BLOCK: tl.constexpr,
):
    """One head of one token."""
    wait()
    release()
    t = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) + tl.arange(0, 1)
    i = tl.arange(0, BLOCK)[None, :]
    values = tl.load(key + t * stride + head[:, None] * width + i, mask=i < width, other=0.0)
    position = tl.load(positions + t)
    row = tl.load(token_row + t)
    page = tl.load(page_table + row * table_stride + position // PAGE).to(tl.int64)
    at = position % PAGE * num_heads + head
    groups = (width + 63) // 64 if CODEC == "int8" else 1
    append(values.to(tl.float32), codes, scales, page * page_stride + at * width,
           page * scale_stride + at * groups, head < num_heads, width, CODEC, BLOCK)


@triton.jit
def head_projection(
    x, weight, out, x_stride, out_stride, num_tokens, rows, depth, M: tl.constexpr,
    N: tl.constexpr, K: tl.constexpr,
):
    """``M`` tokens by ``N`` rows of the matrix of one head: the same for any number of tokens."""
    wait()
    release()
    head = tl.program_id(0)
    n = tl.program_id(1) * N + tl.arange(0, N)
    t = (tl.program_id(2) * M + tl.arange(0, M)).to(tl.int64)
    exists, live = t < num_tokens, n < rows
    matrix = weight + head.to(tl.int64) * rows * depth + n.to(tl.int64)[:, None] * depth
    total = tl.zeros((M, N), tl.float32)
    for first in range(0, depth, K):
        i = first + tl.arange(0, K)
        known = i < depth
        tile = tl.load(matrix + i[None, :], mask=live[:, None] & known[None, :], other=0.0)
        at = t[:, None] * x_stride + head * depth + i[None, :]
        rows_of = tl.load(x + at, mask=exists[:, None] & known[None, :], other=0.0)
        total = multiply(rows_of, tl.trans(tile), total)
    tl.store(out + t[:, None] * out_stride + head * rows + n[None, :],
             total.to(out.dtype.element_ty), mask=exists[:, None] & live[None, :])
