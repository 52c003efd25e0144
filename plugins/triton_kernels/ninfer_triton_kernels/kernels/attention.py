"""Paged attention: of one token by runs of the context, and of many tokens by tiles."""

import triton
import triton.language as tl

from ninfer_triton_kernels.kernels.cache import PAGE, as_operand, load_block
from ninfer_triton_kernels.kernels.overlap import release, wait
from ninfer_triton_kernels.kernels.products import INTERPRETED, multiply

SPLIT_ASSEMBLY = tl.constexpr("""{
.reg .b32 t;
.reg .b16 lo, hi;
prmt.b32 t, $2, 0, 0x3120;
mov.b32 {lo, hi}, t;
cvt.rn.f16x2.e4m3x2 $0, lo;
cvt.rn.f16x2.e4m3x2 $1, hi;
}""")
"""Bytes 0 and 2 of a register, and bytes 1 and 3."""

FINE = tl.constexpr(1)
"""Pages of a run in the first 2,048 tokens of a context: ``FINE_RUNS`` of them."""
FINE_RUNS = tl.constexpr(32)
MEDIUM = tl.constexpr(4)
"""Pages of a run behind them, up to 32,768 tokens."""
MEDIUM_RUNS = tl.constexpr(120)
COARSE = tl.constexpr(16)
"""Pages of the others."""


@triton.jit
def first_page(run):
    """Where a run begins. Runs lie at fixed places of the context, so that what is added to what
    depends on the position of a token alone."""
    fine = run * FINE
    medium = FINE * FINE_RUNS + (run - FINE_RUNS) * MEDIUM
    coarse = FINE * FINE_RUNS + MEDIUM * MEDIUM_RUNS + (run - FINE_RUNS - MEDIUM_RUNS) * COARSE
    return tl.where(
        run < FINE_RUNS, fine, tl.where(run < FINE_RUNS + MEDIUM_RUNS, medium, coarse))


@triton.jit
def run_of(page):
    """The run that a page is in."""
    medium = FINE_RUNS + (page - FINE * FINE_RUNS) // MEDIUM
    coarse = FINE_RUNS + MEDIUM_RUNS + (page - FINE * FINE_RUNS - MEDIUM * MEDIUM_RUNS) // COARSE
    return tl.where(
        page < FINE * FINE_RUNS, page // FINE,
        tl.where(page < FINE * FINE_RUNS + MEDIUM * MEDIUM_RUNS, medium, coarse))


@triton.jit
def page_of(token):
    """The page that a token is in; the interpreter counts tokens in plain integers."""
    return (tl.zeros((), tl.int32) + token) // PAGE


@triton.jit
def attend_block(
    queries, position, first, last, page, head, key_codes, key_scales, value_codes, value_scales,
    key_page, key_scale_page, value_page, value_scale_page, num_kv_heads, width, scale, top, mass,
    total, CODEC: tl.constexpr, EVEN: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr,
):
    """Tokens ``first`` to ``first + N`` for queries ``[M, BLOCK]`` at ``position`` ``[M]``: the
    running maximum, the sum of weights and the weighted sum of values (Milakov and Gimelshein,
    2018). Scores are powers of two."""
    n = tl.arange(0, N) + first
    live = n <= last
    page_row = (tl.zeros((), tl.int32) + first) % PAGE
    keys, key_factors = load_block(
        key_codes, key_scales, page, key_page, key_scale_page, page_row, head, num_kv_heads,
        live, width, CODEC, EVEN, N, BLOCK)
    values, value_factors = load_block(
        value_codes, value_scales, page, value_page, value_scale_page, page_row, head,
        num_kv_heads, live, width, CODEC, EVEN, N, BLOCK)
    zero = tl.zeros((queries.shape[0], N), tl.float32)
    scores = multiply(queries, tl.trans(as_operand(keys, key_factors, CODEC)), zero) * scale
    if CODEC == "fp8":
        scores *= key_factors[None, :]
    scores = tl.where(n[None, :] <= position[:, None], scores, float("-inf"))
    higher = tl.maximum(top, tl.max(scores, 1))
    base = tl.where(higher == float("-inf"), 0.0, higher)
    weights = tl.exp2(scores - base[:, None])
    faded = tl.exp2(top - base)
    mass = mass * faded + tl.sum(weights, 1)
    if CODEC == "fp8":
        weights *= value_factors[None, :]
    total = multiply(
        weights.to(tl.bfloat16), as_operand(values, value_factors, CODEC), total * faded[:, None])
    return higher, mass, total


@triton.jit
def split_pairs(pairs):
    """E4M3 codes of two neighbours each, as 16 bits, to fp16 of the first and of the second."""
    if INTERPRETED:
        first = (pairs & 255).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float16)
        second = ((pairs >> 8) & 255).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float16)
    else:
        first, second = tl.inline_asm_elementwise(
            SPLIT_ASSEMBLY, "=r,=r,r", [pairs], dtype=(tl.float16, tl.float16), is_pure=True,
            pack=2)
    return first, second


@triton.jit
def attend_bytes(
    queries, factors, position, first, last, page, head, key_codes, key_scales, value_pairs,
    value_scales, key_page, key_scale_page, value_page, value_scale_page, num_kv_heads, width, top,
    mass, even, odd, EVEN: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr,
):
    """As `attend_block`, of E4M3 codes in fp16, which holds them: queries up to 1, ``factors``
    ``[M]`` times which scores are; values as pairs of neighbours, which come to two sums (single
    bytes would be read from shared memory one by one). Weights are 2^14 times what they should be,
    for what is far below the largest, and so is ``mass``."""
    n = tl.arange(0, N) + first
    live = n <= last
    page_row = (tl.zeros((), tl.int32) + first) % PAGE
    keys, key_factors = load_block(
        key_codes, key_scales, page, key_page, key_scale_page, page_row, head, num_kv_heads,
        live, width, "fp8", EVEN, N, BLOCK)
    pairs, value_factors = load_block(
        value_pairs, value_scales, page, value_page // 2, value_scale_page, page_row, head,
        num_kv_heads, live, width // 2, "fp8", EVEN, N, BLOCK // 2)
    zero = tl.zeros((queries.shape[0], N), tl.float32)
    scores = multiply(queries, tl.trans(keys.to(tl.float16)), zero)
    scores = scores * factors[:, None] * key_factors[None, :]
    scores = tl.where(n[None, :] <= position[:, None], scores, float("-inf"))
    higher = tl.maximum(top, tl.max(scores, 1))
    base = tl.where(higher == float("-inf"), 0.0, higher)
    weights = tl.exp2(scores - base[:, None] + 14)
    faded = tl.exp2(top - base)
    mass = mass * faded + tl.sum(weights, 1)
    largest_factor = tl.maximum(tl.max(value_factors, 0), 1.1754943508222875e-38)
    shares = (weights * (value_factors / largest_factor)[None, :]).to(tl.float16)
    first_values, second_values = split_pairs(pairs)
    part = tl.zeros((queries.shape[0], BLOCK // 2), tl.float32)
    even = even * faded[:, None] + multiply(shares, first_values, part) * largest_factor
    odd = odd * faded[:, None] + multiply(shares, second_values, part) * largest_factor
    return higher, mass, even, odd


@triton.jit
def attend_run(
    q, q_stride, sums, tops, key_codes, key_scales, value_codes, value_scales, key_page,
    key_scale_page, value_page, value_scale_page, positions, token_row, page_table, table_stride,
    num_heads, num_kv_heads, width, scale, max_runs, CODEC: tl.constexpr, EVEN: tl.constexpr,
    GROUP: tl.constexpr, M: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    """One token, the ``GROUP`` query heads of one key head, one run of the context.

    ``sums`` fp32 ``[T, Hq, runs, width]`` and ``tops`` fp32 ``[2, T, Hq, runs]`` (maximum and mass)
    are written for the runs that the token sees.
    """
    wait()
    release()
    t = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    run = tl.num_programs(2) - 1 - tl.program_id(2)  # long ones first
    position = tl.load(positions + t).to(tl.int32)
    begin = first_page(run) * PAGE
    if begin <= position:
        end = tl.minimum(first_page(run + 1) * PAGE, position + 1)
        table = page_table + tl.load(token_row + t) * table_stride
        m = tl.arange(0, M)
        i = tl.arange(0, BLOCK)
        exists = m < GROUP
        heads = kv_head * GROUP + m
        live = exists[:, None] & (i < width)[None, :]
        queries = tl.load(
            q + t * q_stride + heads[:, None] * width + i[None, :], mask=live, other=0.0)
        places = tl.zeros((M,), tl.int32) + position
        top = tl.full((M,), float("-inf"), tl.float32)
        mass = tl.zeros((M,), tl.float32)
        if CODEC == "fp8":
            wide = queries.to(tl.float32)
            longest = tl.maximum(tl.max(tl.abs(wide), 1), 1.1754943508222875e-38)
            short = (wide / longest[:, None]).to(tl.float16)
            even = tl.zeros((M, BLOCK // 2), tl.float32)
            odd = tl.zeros((M, BLOCK // 2), tl.float32)
            for first in tl.range(begin, end, N, num_stages=STAGES):
                page = tl.load(table + page_of(first))
                top, mass, even, odd = attend_bytes(
                    short, longest * scale, places, first, position, page, kv_head, key_codes,
                    key_scales, value_codes, value_scales, key_page, key_scale_page, value_page,
                    value_scale_page, num_kv_heads, width, top, mass, even, odd, EVEN, N, BLOCK)
            total = tl.reshape(tl.join(even, odd), (M, BLOCK))
        else:
            total = tl.zeros((M, BLOCK), tl.float32)
            for first in tl.range(begin, end, N, num_stages=STAGES):
                page = tl.load(table + page_of(first))
                top, mass, total = attend_block(
                    queries, places, first, position, page, kv_head, key_codes, key_scales,
                    value_codes, value_scales, key_page, key_scale_page, value_page,
                    value_scale_page, num_kv_heads, width, scale, top, mass, total, CODEC, EVEN, N,
                    BLOCK)
        at = (t * num_heads + heads) * max_runs + run
        tl.store(sums + at[:, None] * width + i[None, :], total, mask=live)
        tl.store(tops + at, top, mask=exists)
        count = tl.num_programs(0).to(tl.int64) * num_heads * max_runs
        tl.store(tops + count + at, mass, mask=exists)


@triton.jit
def merge_runs(
    sums, tops, positions, out, out_stride, num_heads, width, max_runs, RUNS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """``BLOCK`` components of a head of one token: all its runs, ``RUNS`` at a time, in order."""
    wait()
    release()
    t = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    i = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    live = i < width
    num_runs = run_of(tl.load(positions + t).to(tl.int32) // PAGE) + 1
    count = tl.num_programs(0).to(tl.int64) * num_heads * max_runs
    base = (t * num_heads + head) * max_runs
    top = tl.max(tl.full((RUNS,), float("-inf"), tl.float32), 0)
    mass = tl.sum(tl.zeros((RUNS,), tl.float32), 0)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, num_runs, RUNS):
        run = first + tl.arange(0, RUNS)
        seen = run < num_runs
        tops_here = tl.load(tops + base + run, mask=seen, other=float("-inf"))
        higher = tl.maximum(top, tl.max(tops_here, 0))
        faded, fresh = tl.exp2(top - higher), tl.exp2(tops_here - higher)
        masses = tl.load(tops + count + base + run, mask=seen, other=0.0)
        mass = mass * faded + tl.sum(masses * fresh, 0)
        at = (base + run)[:, None] * width + i[None, :]
        parts = tl.load(sums + at, mask=seen[:, None] & live[None, :], other=0.0)
        total = total * faded + tl.sum(parts * fresh[:, None], 0)
        top = higher
    row = (total / mass).to(out.dtype.element_ty)
    tl.store(out + t * out_stride + head * width + i, row, mask=live)


@triton.jit
def attend_tile(
    q, q_stride, out, out_stride, key_codes, key_scales, value_codes, value_scales, key_page,
    key_scale_page, value_page, value_scale_page, positions, row_start, page_table, table_stride,
    num_kv_heads, width, scale, CODEC: tl.constexpr, EVEN: tl.constexpr, GROUP: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):
    """``M`` pairs of a token and a query head of one key head, tokens of one sequence."""
    row = tl.program_id(0)
    kv_head = tl.program_id(1)
    begin = tl.load(row_start + row)
    num_tokens = tl.load(row_start + row + 1) - begin
    first_pair = tl.program_id(2) * M
    if first_pair < num_tokens * GROUP:
        pair = first_pair + tl.arange(0, M)
        exists = pair < num_tokens * GROUP
        t = (begin + pair // GROUP).to(tl.int64)
        heads = kv_head * GROUP + pair % GROUP
        i = tl.arange(0, BLOCK)
        live = exists[:, None] & (i < width)[None, :]
        at = heads[:, None] * width + i[None, :]
        queries = tl.load(q + t[:, None] * q_stride + at, mask=live, other=0.0)
        places = tl.load(positions + t, mask=exists, other=-1).to(tl.int32)
        last = tl.max(places, 0)
        table = page_table + row * table_stride
        top = tl.full((M,), float("-inf"), tl.float32)
        mass = tl.zeros((M,), tl.float32)
        total = tl.zeros((M, BLOCK), tl.float32)
        for first in tl.range(0, last + 1, N, num_stages=STAGES):
            page = tl.load(table + page_of(first))
            top, mass, total = attend_block(
                queries, places, first, last, page, kv_head, key_codes, key_scales, value_codes,
                value_scales, key_page, key_scale_page, value_page, value_scale_page, num_kv_heads,
                width, scale, top, mass, total, CODEC, EVEN, N, BLOCK)
        result = (total / tl.where(exists, mass, 1.0)[:, None]).to(out.dtype.element_ty)
        tl.store(out + t[:, None] * out_stride + at, result, mask=live)
