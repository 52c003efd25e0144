"""Gated hyper-connections: residuals of ``STREAMS`` streams side by side."""

import triton
import triton.language as tl

from ninfer_triton_kernels.kernels.overlap import release, wait


@triton.jit
def opened(x):
    """The sigmoid."""
    return 1 / (1 + tl.exp(-x))


@triton.jit
def scaled_silu(
    x, out, x_stride, out_stride, width, scale, BLOCK: tl.constexpr,
):
    wait()
    release()
    t = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = i < width
    row = tl.load(x + t * x_stride + i, mask=live, other=0.0).to(tl.float32) * scale
    tl.store(out + t * out_stride + i, (row * opened(row)).to(out.dtype.element_ty), mask=live)


@triton.jit
def stream_read(
    gates, normed, out, gates_stride, normed_stride, out_stride, width, STREAMS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """``BLOCK`` components of one token."""
    wait()
    release()
    t = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = i < width
    total = tl.zeros((BLOCK,), tl.float32)
    for s in tl.static_range(STREAMS):
        at = s * width + i
        by = tl.load(gates + t * gates_stride + at, mask=live, other=0.0).to(tl.float32)
        part = tl.load(normed + t * normed_stride + at, mask=live, other=0.0).to(tl.float32)
        total += opened(by) * part
    tl.store(out + t * out_stride + i, (total / STREAMS).to(out.dtype.element_ty), mask=live)


@triton.jit
def stream_add(
    y, logits, streams, y_stride, logits_stride, streams_stride, width, STREAMS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """``BLOCK`` components of one token, in all streams."""
    wait()
    release()
    t = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = i < width
    added = tl.load(y + t * y_stride + i, mask=live, other=0.0).to(tl.float32)
    for s in tl.static_range(STREAMS):
        share = 2 * opened(tl.load(logits + t * logits_stride + s).to(tl.float32) / STREAMS)
        at = streams + t * streams_stride + s * width + i
        stream = tl.load(at, mask=live, other=0.0).to(tl.float32) + share * added
        tl.store(at, stream.to(streams.dtype.element_ty), mask=live)


@triton.jit
def signed_sqrt_gate(
    k, q, v, out, k_stride, q_stride, v_stride, out_stride, width, root, BLOCK: tl.constexpr,
):
    """One stream of one token; ``root``: of the width."""
    wait()
    release()
    t, s = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = tl.arange(0, BLOCK)
    live, at = i < width, s * width + i
    key = tl.load(k + t * k_stride + at, mask=live, other=0.0).to(tl.float32)
    query = tl.load(q + t * q_stride + at, mask=live, other=0.0).to(tl.float32)
    score = tl.sum(key * query) / root
    size = tl.sqrt(tl.maximum(tl.abs(score), 1e-6))
    signed = tl.where(score > 0, size, tl.where(score < 0, -size, score))
    value = tl.load(v + t * v_stride + i, mask=live, other=0.0).to(tl.float32)
    tl.store(
        out + t * out_stride + at, (opened(signed) * value).to(out.dtype.element_ty), mask=live)
