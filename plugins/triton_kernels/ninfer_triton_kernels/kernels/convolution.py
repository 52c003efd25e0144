"""A short depthwise convolution along each sequence."""

import triton
import triton.language as tl

from ninfer_triton_kernels.kernels.overlap import release, wait
from ninfer_triton_kernels.kernels.products import INTERPRETED


@triton.jit
def earlier(committed, record, v, c, live, width, KEPT: tl.constexpr):
    """Column ``v`` of the committed ones followed by those of the record."""
    old = tl.load(committed + v * width + c, mask=live & (v < KEPT), other=0.0)
    new = tl.load(record + (v - KEPT) * width + c, mask=live & (v >= KEPT), other=0.0)
    return old + new


@triton.jit
def load_taps(weight, c, width, TAPS: tl.constexpr):
    """Factors of channels ``c``."""
    factors: tl.tuple = ()
    for tap in tl.static_range(TAPS):
        factors += (tl.load(weight + tap * width + c, mask=c < width, other=0.0).to(tl.float32),)
    return factors


@triton.jit
def convolve_earlier(
    committed, record, factors, applied, t, c, count, width, TAPS: tl.constexpr,
    DILATION: tl.constexpr,
):
    """The part of the sums of tokens ``t`` and channels ``c`` that is from before the step. All is
    loaded first, or each tap would wait for the one before."""
    KEPT: tl.constexpr = (TAPS - 1) * DILATION
    live = (t < count)[:, None] & (c < width)[None, :]
    columns: tl.tuple = ()
    for tap in tl.static_range(TAPS - 1):
        place = (t + tap * DILATION - KEPT)[:, None]
        own = earlier(
            committed, record, applied + place + KEPT, c[None, :], live & (place < 0), width, KEPT)
        columns += (own,)
    total = tl.zeros((t.shape[0], c.shape[0]), tl.float32)
    for tap in tl.static_range(TAPS - 1):
        total += factors[tap][None, :] * columns[tap]
    return total


@triton.jit
def convolve(
    total, x, factors, t, c, count, width, x_stride, TAPS: tl.constexpr, DILATION: tl.constexpr,
):
    """``total``, of `convolve_earlier`, with the part that is from the step: taps in ascending
    order, as older tokens have lower ones."""
    live = (t < count)[:, None] & (c < width)[None, :]
    oldest = t[:, None] - (TAPS - 1) * DILATION
    at = x + oldest.to(tl.int64) * x_stride + c[None, :]
    columns: tl.tuple = ()
    for tap in tl.static_range(TAPS):
        is_new = oldest + tap * DILATION >= 0
        columns += (tl.load(at + tap * DILATION * x_stride, mask=live & is_new, other=0.0),)
    for tap in tl.static_range(TAPS):
        total += factors[tap][None, :] * columns[tap].to(tl.float32)
    return total


@triton.jit
def silu(x):
    """``x / (1 + e^-x)``, with the fewest instructions: the divisor is not below 1, and where it is
    not finite, the result is zero."""
    divisor = 1 + tl.exp2(x * -1.4426950408889634)
    if INTERPRETED:
        inverse = 1 / divisor
    else:
        inverse = tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=r,r", [divisor], dtype=tl.float32, is_pure=True, pack=1)
    return x * inverse


@triton.jit
def convolve_run(
    source, target, factors, t, c, count, width, x_stride, out_stride, TAPS: tl.constexpr,
    DILATION: tl.constexpr, RUN: tl.constexpr,
):
    """``RUN`` tokens from each of ``t`` on, which need nothing from before the step; each column is
    loaded once. Sums as of `convolve`."""
    KEPT: tl.constexpr = (TAPS - 1) * DILATION
    live = (t < count)[:, None] & (c < width)[None, :]
    at = source + (t[:, None] - KEPT).to(tl.int64) * x_stride + c[None, :]
    to = target + t.to(tl.int64)[:, None] * out_stride + c[None, :]
    columns: tl.tuple = ()
    for place in tl.static_range(KEPT + RUN):
        exists = live & (t + place - KEPT < count)[:, None]
        columns += (tl.load(at + place * x_stride, mask=exists, other=0.0),)
    for place in tl.static_range(RUN):
        total = tl.zeros((t.shape[0], c.shape[0]), tl.float32)
        for tap in tl.static_range(TAPS):
            total += factors[tap][None, :] * columns[place + tap * DILATION].to(tl.float32)
        tl.store(to + place * out_stride, silu(total).to(target.dtype.element_ty),
                 mask=live & (t + place < count)[:, None])


@triton.jit
def causal_conv1d(
    x, out, weight, committed, record, row_start, slots, replay, certain, width, x_stride,
    out_stride, slot_stride, record_stride, TAPS: tl.constexpr, DILATION: tl.constexpr,
    TOKENS: tl.constexpr, RUN: tl.constexpr, BLOCK: tl.constexpr,
):
    """``BLOCK`` channels of one row. The first program alone has the tokens that need what was
    before the step, ``TOKENS`` at a time: without runs all, else the first of them; it also writes
    the state, when it has read it. Runs of the others are dealt out to all.

    The state is read before `wait`: nothing else writes it, and this kernel is not the one before.
    """
    KEPT: tl.constexpr = (TAPS - 1) * DILATION
    row = tl.program_id(0)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    part = tl.program_id(2)
    slot = tl.load(slots + row).to(tl.int64)
    state, log = committed + slot * slot_stride, record + slot * record_stride
    begin = tl.load(row_start + row).to(tl.int64)
    count = tl.load(row_start + row + 1) - begin.to(tl.int32)
    first_run = TOKENS + part * TOKENS * RUN
    if (part > 0) & (first_run >= count):
        return
    applied = tl.load(replay + row)
    advanced = tl.where(tl.load(certain + row) != 0, count, 0)
    source, target = x + begin * x_stride, out + begin * out_stride
    j = tl.arange(0, triton.next_power_of_2(KEPT))[:, None]
    at = j + advanced - KEPT
    is_kept = (j < KEPT) & (c < width)[None, :]
    last = tl.zeros((triton.next_power_of_2(KEPT), BLOCK), tl.float32)
    total = tl.zeros((TOKENS, BLOCK), tl.float32)
    factors = load_taps(weight, c, width, TAPS)
    if part == 0:
        last = earlier(
            state, log, applied + at + KEPT, c[None, :], is_kept & (at < 0), width, KEPT)
        total = convolve_earlier(
            state, log, factors, applied, tl.arange(0, TOKENS), c, count, width, TAPS, DILATION)
    wait()
    release()
    if part == 0:
        newest = tl.load(source + at.to(tl.int64) * x_stride + c[None, :],
                         mask=is_kept & (at >= 0), other=0.0)
        end = count if RUN == 0 else tl.minimum(count, TOKENS)
        for first in range(0, end, TOKENS):
            t = first + tl.arange(0, TOKENS)
            total = convolve(total, source, factors, t, c, count, width, x_stride, TAPS, DILATION)
            tl.store(target + t.to(tl.int64)[:, None] * out_stride + c[None, :],
                     silu(total).to(out.dtype.element_ty),
                     mask=(t < count)[:, None] & (c < width)[None, :])
            total = tl.zeros((TOKENS, BLOCK), tl.float32)
            if TOKENS < KEPT:
                total = convolve_earlier(
                    state, log, factors, applied, t + TOKENS, c, count, width, TAPS, DILATION)
        tl.debug_barrier()  # the program has read what it overwrites
        tl.store(state + j * width + c[None, :], last + newest.to(tl.float32), mask=is_kept)
        if advanced == 0:
            for first in range(0, count, TOKENS):
                t = first + tl.arange(0, TOKENS)
                live = (t < count)[:, None] & (c < width)[None, :]
                raw = tl.load(source + t.to(tl.int64)[:, None] * x_stride + c[None, :], mask=live)
                tl.store(log + t[:, None] * width + c[None, :], raw.to(tl.float32), mask=live)
    if RUN > 0:
        for first in range(first_run, count, tl.num_programs(2) * TOKENS * RUN):
            t = first + RUN * tl.arange(0, TOKENS)
            convolve_run(source, target, factors, t, c, count, width, x_stride, out_stride, TAPS,
                         DILATION, RUN)
