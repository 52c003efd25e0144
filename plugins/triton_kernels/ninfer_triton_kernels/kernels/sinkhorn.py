"""Residual streams with doubly stochastic mixes, one or several programs for a token."""

import triton
import triton.language as tl

from ninfer_triton_kernels.kernels.overlap import release, wait


@triton.jit
def sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit
def sinkhorn_read(
    products, base, scale, streams, out, mix, products_stride, streams_stride, out_stride,
    mix_stride, width, eps, norm_eps, S: tl.constexpr, ITERATIONS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Every program of a token takes the norm of all of it; then each has blocks of columns."""
    wait()
    release()
    t = tl.program_id(0).to(tl.int64)
    products, streams = products + t * products_stride, streams + t * streams_stride
    i, s = tl.arange(0, BLOCK), tl.arange(0, S)
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, S * width, BLOCK):
        row = tl.load(streams + start + i, mask=start + i < S * width, other=0.0).to(tl.float32)
        squares += row * row
    norm = 1 / tl.sqrt(tl.sum(squares) / (S * width) + norm_eps)
    weights = tl.load(products + s) * norm * tl.load(scale) + tl.load(base + s)
    weights = sigmoid(weights) + eps
    for block in range(tl.program_id(1), tl.cdiv(width, BLOCK), tl.num_programs(1)):
        column = block * BLOCK + i
        rows = load_streams(streams, column, width, S)
        read = tl.sum(weights[:, None] * rows, 0).to(out.dtype.element_ty)
        tl.store(out + t * out_stride + column, read, mask=column < width)
    if tl.program_id(1) == 0:
        mix += t * mix_stride
        post = tl.load(products + S + s) * norm * tl.load(scale + 1) + tl.load(base + S + s)
        tl.store(mix + s, 2 * sigmoid(post))
        at = s[:, None] * S + s[None, :]
        comb = tl.load(products + 2 * S + at) * norm * tl.load(scale + 2)
        comb = balanced(comb + tl.load(base + 2 * S + at), eps, ITERATIONS)
        tl.store(mix + S + at, comb)


@triton.jit
def balanced(comb, eps, ITERATIONS: tl.constexpr):
    """Softmax over columns, then columns and rows divided by their sums in turn."""
    comb = tl.exp(comb - tl.max(comb, 1)[:, None])
    comb = comb / tl.sum(comb, 1)[:, None] + eps
    comb = comb / (tl.sum(comb, 0)[None, :] + eps)
    for _ in range(ITERATIONS - 1):
        comb = comb / (tl.sum(comb, 1)[:, None] + eps)
        comb = comb / (tl.sum(comb, 0)[None, :] + eps)
    return comb


@triton.jit
def load_streams(streams, column, width, S: tl.constexpr):
    """fp32 ``[S, BLOCK]``."""
    at = tl.arange(0, S)[:, None] * width + column[None, :]
    return tl.load(streams + at, mask=(column < width)[None, :], other=0.0).to(tl.float32)


@triton.jit
def sinkhorn_write(
    y, mix, streams, y_stride, mix_stride, streams_stride, width, S: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A block of columns of all streams, which only this program reads."""
    wait()
    release()
    t = tl.program_id(0).to(tl.int64)
    mix, streams = mix + t * mix_stride, streams + t * streams_stride
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    s, live = tl.arange(0, S), column < width
    rows = load_streams(streams, column, width, S)
    added = tl.load(y + t * y_stride + column, mask=live, other=0.0).to(tl.float32)
    for to in tl.static_range(S):
        weights = tl.load(mix + S + s * S + to)
        row = tl.load(mix + to) * added + tl.sum(weights[:, None] * rows, 0)
        tl.store(streams + to * width + column, row.to(streams.dtype.element_ty), mask=live)


@triton.jit
def stream_mean(
    streams, out, streams_stride, out_stride, width, S: tl.constexpr, BLOCK: tl.constexpr,
):
    wait()
    release()
    t = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mean = tl.sum(load_streams(streams + t * streams_stride, column, width, S), 0) / S
    tl.store(out + t * out_stride + column, mean.to(out.dtype.element_ty), mask=column < width)
