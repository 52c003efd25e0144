"""Rows of tables, dequantised on the way."""

import triton
import triton.language as tl

from ninfer_triton_kernels.kernels.overlap import release, wait


@triton.jit
def dense_rows(
    ids, table, scales, out, out_stride, width, GROUP: tl.constexpr, BLOCK: tl.constexpr,
):
    """Values, or E4M3 codes with a scale for ``GROUP`` of a row; 0: none."""
    wait()
    release()
    t = tl.program_id(0).to(tl.int64)
    row = tl.load(ids + t)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = i < width
    values = tl.load(table + row * width + i, mask=live, other=0.0).to(tl.float32)
    if GROUP > 0:
        at = scales + row * tl.cdiv(width, GROUP) + i // GROUP
        values *= tl.load(at, mask=live, other=0.0).to(tl.float32)
    tl.store(out + t * out_stride + i, values.to(out.dtype.element_ty), mask=live)


@triton.jit
def nvfp4_rows(
    ids, codes, scales, divisor, out, out_stride, width, TILED: tl.constexpr, BLOCK: tl.constexpr,
):
    """E2M1 codes with an E4M3 scale for 16: row by row, or in tiles of 128 rows and four scales."""
    wait()
    release()
    t = tl.program_id(0).to(tl.int64)
    row = tl.load(ids + t)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = i < width
    packed = tl.load(codes + row * (width // 2) + i // 2, mask=live, other=0).to(tl.int32)
    word = (packed >> (i % 2 * 4)) & 15
    exponent, mantissa = (word >> 1) & 3, word & 1
    halves = tl.where(exponent == 0, mantissa, (2 + mantissa) << exponent >> 1)
    magnitude = halves.to(tl.float32) * 0.5
    group = i // 16
    if TILED:
        tile = (row // 128) * (width // 64) + group // 4
        at = tile * 512 + row % 32 * 16 + row % 128 // 32 * 4 + group % 4
    else:
        at = row * (width // 16) + group
    scale = tl.load(scales + at, mask=live, other=0.0).to(tl.float32)
    values = tl.where(word < 8, magnitude, -magnitude) * scale
    values = tl.div_rn(values, tl.load(divisor) + tl.zeros_like(values))
    tl.store(out + t * out_stride + i, values.to(out.dtype.element_ty), mask=live)


@triton.jit
def grouped_rows(
    ids, codes, high, scales, out, out_stride, width, stored, BITS: tl.constexpr,
    GROUP: tl.constexpr, BLOCK: tl.constexpr,
):
    """Signed codes in the layout ``row_split_k128_v1``: ``stored`` columns in memory."""
    wait()
    release()
    t = tl.program_id(0).to(tl.int64)
    row = tl.load(ids + t)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = i < width
    if BITS == 8:
        words = tl.load(codes + row * stored + i, mask=live, other=0).to(tl.int32)
    else:
        packed = tl.load(codes + row * (stored // 2) + i // 2, mask=live, other=0).to(tl.int32)
        words = (packed >> (i % 2 * 4)) & 15
        if BITS > 4:
            MORE: tl.constexpr = BITS - 4
            PER: tl.constexpr = 8 // MORE
            at = high + row * (stored // PER) + i // PER
            above = tl.load(at, mask=live, other=0).to(tl.int32)
            words |= ((above >> (i % PER * MORE)) & ((1 << MORE) - 1)) << 4
        words = (words ^ (1 << (BITS - 1))) - (1 << (BITS - 1))
    at = scales + row * (stored // GROUP) + i // GROUP
    values = words.to(tl.float32) * tl.load(at, mask=live, other=0.0).to(tl.float32)
    tl.store(out + t * out_stride + i, values.to(out.dtype.element_ty), mask=live)
