"""A short depthwise convolution along each sequence."""

import triton
import triton.language as tl

from ninfer_triton_kernels.kernels.overlap import release, wait


@triton.jit
def earlier(committed, record, v, c, live, width, KEPT: tl.constexpr):
    """Column ``v`` of the committed ones followed by those of the record."""
    old = tl.load(committed + v * width + c, mask=live & (v < KEPT), other=0.0)
    new = tl.load(record + (v - KEPT) * width + c, mask=live & (v >= KEPT), other=0.0)
    return old + new


@triton.jit
def causal_conv1d(
    x, out, weight, committed, record, row_start, slots, replay, certain, width, x_stride,
    out_stride, slot_stride, record_stride, TAPS: tl.constexpr, DILATION: tl.constexpr,
    TOKENS: tl.constexpr, BLOCK: tl.constexpr,
):
    """``TOKENS`` tokens of one row by ``BLOCK`` channels. The first tokens alone need what was
    before the step: their program also writes the state, when it has read it.
    """
    wait()
    release()
    row = tl.program_id(0)
    kept: tl.constexpr = (TAPS - 1) * DILATION
    slot = tl.load(slots + row).to(tl.int64)
    state, log = committed + slot * slot_stride, record + slot * record_stride
    begin = tl.load(row_start + row)
    count = tl.load(row_start + row + 1) - begin
    applied = tl.load(replay + row)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_channel = (c < width)[None, :]
    source = x + begin.to(tl.int64) * x_stride
    target = out + begin.to(tl.int64) * out_stride
    first = tl.program_id(2) * TOKENS
    advanced = tl.where(tl.load(certain + row) != 0, count, 0)
    j = tl.arange(0, triton.next_power_of_2(kept))[:, None]
    is_kept = (j < kept) & is_channel
    last = tl.zeros((triton.next_power_of_2(kept), BLOCK), tl.float32)
    if first == 0:
        at = j + advanced - kept
        last = tl.load(source + at.to(tl.int64) * x_stride + c[None, :],
                       mask=is_kept & (at >= 0), other=0.0).to(tl.float32)
        last += earlier(
            state, log, applied + at + kept, c[None, :], is_kept & (at < 0), width, kept)
    if first < count:
        t = first + tl.arange(0, TOKENS)
        live = (t < count)[:, None] & is_channel
        total = tl.zeros((TOKENS, BLOCK), tl.float32)
        for tap in tl.static_range(TAPS):
            place = (t + tap * DILATION - kept)[:, None]
            column = tl.load(source + place.to(tl.int64) * x_stride + c[None, :],
                             mask=live & (place >= 0), other=0.0).to(tl.float32)
            if first == 0:
                column += earlier(
                    state, log, applied + place + kept, c[None, :], live & (place < 0), width, kept)
            factor = tl.load(weight + tap * width + c, mask=c < width, other=0.0).to(tl.float32)
            total += factor[None, :] * column
        total = total / (1 + tl.exp(-total))
        tl.store(target + t.to(tl.int64)[:, None] * out_stride + c[None, :],
                 total.to(out.dtype.element_ty), mask=live)
    if first == 0:
        tl.debug_barrier()  # the program has read what it overwrites
        tl.store(state + j * width + c[None, :], last, mask=is_kept)
        if advanced == 0:
            for begin_of in range(0, count, TOKENS):
                t = begin_of + tl.arange(0, TOKENS)
                live = (t < count)[:, None] & is_channel
                raw = tl.load(source + t.to(tl.int64)[:, None] * x_stride + c[None, :], mask=live)
                tl.store(log + t[:, None] * width + c[None, :], raw.to(tl.float32), mask=live)
