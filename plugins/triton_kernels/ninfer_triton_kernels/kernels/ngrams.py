"""Hashes of the last tokens of each sequence."""

import triton
import triton.language as tl

from ninfer_triton_kernels.kernels.overlap import release, wait


@triton.jit
def earlier(committed, record, v, live, KEPT: tl.constexpr):
    """Entry ``v`` of the committed ones followed by those of the record: ids + 1."""
    old = tl.load(committed + v, mask=live & (v < KEPT), other=0)
    new = tl.load(record + v - KEPT, mask=live & (v >= KEPT), other=0)
    return old + new


@triton.jit
def ngram_rows(
    token_ids, rows, committed, record, multipliers, moduli, offsets, row_start, slots, replay,
    certain, rows_stride, slot_stride, record_stride, eos, heads, N: tl.constexpr,
    TOKENS: tl.constexpr, HEADS: tl.constexpr, KEPT_BLOCK: tl.constexpr,
):
    """``TOKENS`` tokens of one sequence. The first tokens alone need what was before the step:
    their program also writes the state, when it has read it. ``HEADS``: of one order, padded.
    """
    wait()
    release()
    row, first = tl.program_id(0), tl.program_id(1) * TOKENS
    kept: tl.constexpr = N - 1
    slot = tl.load(slots + row).to(tl.int64)
    state, log = committed + slot * slot_stride, record + slot * record_stride
    begin = tl.load(row_start + row)
    count = tl.load(row_start + row + 1) - begin
    applied = tl.load(replay + row)
    advanced = tl.where(tl.load(certain + row) != 0, count, 0)
    j = tl.arange(0, KEPT_BLOCK)
    last = tl.zeros((KEPT_BLOCK,), tl.int64)
    if first == 0:
        at, is_kept = j + advanced - kept, j < kept
        last = tl.load(token_ids + begin + at, mask=is_kept & (at >= 0), other=-1) + 1
        last += earlier(state, log, applied + at + kept, is_kept & (at < 0), kept)
    if first < count:
        t = first + tl.arange(0, TOKENS)
        live = t < count
        h = tl.arange(0, HEADS)
        target = rows + (begin + t).to(tl.int64)[:, None] * rows_stride + h[None, :]
        mixed = tl.load(token_ids + begin + t, mask=live, other=0) * tl.load(multipliers)
        is_cut = t < 0
        for s in tl.static_range(1, N):
            place = t - s
            token = tl.load(token_ids + begin + place, mask=live & (place >= 0), other=-1) + 1
            if first == 0:
                token += earlier(state, log, applied + place + kept, live & (place < 0), kept)
            is_cut = is_cut | (token == 0) | (token == eos + 1)
            mixed = mixed ^ (tl.where(is_cut, eos, token - 1) * tl.load(multipliers + s))
            head = (s - 1) * heads + h
            is_head = h < heads
            modulo = tl.load(moduli + head, mask=is_head, other=1)
            offset = tl.load(offsets + head, mask=is_head, other=0)
            found = mixed[:, None] % modulo[None, :] + offset[None, :]
            tl.store(target + (s - 1) * heads, found, mask=live[:, None] & is_head[None, :])
    if first == 0:
        tl.debug_barrier()  # the program has read what it overwrites
        tl.store(state + j, last, mask=j < kept)
        if advanced == 0:
            for start in range(0, count, TOKENS):
                t = start + tl.arange(0, TOKENS)
                raw = tl.load(token_ids + begin + t, mask=t < count, other=0)
                tl.store(log + t, raw + 1, mask=t < count)
