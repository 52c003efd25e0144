"""Paged attention of few tokens a sequence, their context cut evenly into parts.

A program takes one part of the context, the query heads of one key head, and the tokens of a row
that lie in one page, so that what it reads of the cache serves all of them. Tokens of the context
are the rows of its products, pairs of a token and a head their columns, eight a product: one
instruction whatever the number of pairs. With a cut that depends on a token's own page alone, its
bits do not depend on its company.
"""

import triton
import triton.language as tl

from ninfer_triton_kernels.kernels.cache import PAGE, read_page, split_pairs, widen
from ninfer_triton_kernels.kernels.overlap import release, wait
from ninfer_triton_kernels.kernels.products import COLUMNS, INTERPRETED, dot

FEW_PARTS, MANY_PARTS = tl.constexpr(32), tl.constexpr(64)
"""Of a context up to ``NEAR`` tokens, and of a longer one."""
NEAR = tl.constexpr(16384)

SHIFT = tl.constexpr(14)
"""Weights are up to 2 to this, for what is far below the largest of them in fp16."""

LEAST_LOG = tl.constexpr(-90.0)
"""Binary logarithm of the smallest scale of values; smaller ones count as this."""

LINE_BYTES = tl.constexpr(128)
"""Of the second-level cache."""


@triton.jit
def begin_of(part, num_blocks, N: tl.constexpr):
    """Block that a part of a context of so many blocks of ``N`` tokens begins with: the context is
    cut evenly, or has a part for each block. What is divided by is constant."""
    near = tl.where(num_blocks < FEW_PARTS, part, part * num_blocks // FEW_PARTS)
    return tl.where(num_blocks * N <= NEAR, near, part * num_blocks // MANY_PARTS)


@triton.jit
def part_of(part, position, N: tl.constexpr):
    """Where a part of the context of a token at ``position`` begins and ends, in blocks of ``N``
    tokens; behind the last part it begins behind the token."""
    num_blocks = (position // PAGE + 1) * (PAGE // N)
    return begin_of(part, num_blocks, N), begin_of(part + 1, num_blocks, N)


@triton.jit
def is_seen(part, position, N: tl.constexpr):
    """Whether a part of `part_of` begins at ``position`` or before."""
    num_blocks = (position // PAGE + 1) * (PAGE // N)
    few = tl.minimum(num_blocks, FEW_PARTS)
    parts = tl.where(num_blocks * N <= NEAR, few, MANY_PARTS)
    return part * num_blocks < (position // N + 1) * parts


@triton.jit
def block_at(table, block, N: tl.constexpr):
    """Page of a block of ``N`` tokens, and its first token there."""
    return read_page(table + block // (PAGE // N)), block % (PAGE // N) * N


@triton.jit
def prefetch(rows, row_stride, N: tl.constexpr, BLOCK: tl.constexpr):
    """Ask the second-level cache for ``N`` rows of ``BLOCK`` elements."""
    if not INTERPRETED:
        LINE: tl.constexpr = LINE_BYTES * 8 // rows.dtype.element_ty.primitive_bitwidth
        LINES: tl.constexpr = (BLOCK + LINE - 1) // LINE
        at = tl.arange(0, N)[:, None] * row_stride + tl.arange(0, LINES)[None, :] * LINE
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [rows + at], dtype=tl.int32,
            is_pure=False, pack=1)


@triton.jit
def load_queries(
    q, q_stride, token, heads, exists, width, CODEC: tl.constexpr, EVEN: tl.constexpr,
    HALVES: tl.constexpr, BLOCK: tl.constexpr,
):
    """``[BLOCK / HALVES, 8]`` of each half of the components to multiply keys by, and ``[8]`` that
    products are to be multiplied by: codes are held by fp16, and so are queries up to 1."""
    HALF: tl.constexpr = BLOCK // HALVES
    at = token * q_stride + heads * width
    loaded: tl.tuple = ()
    longest = tl.full((COLUMNS,), 1.0 if CODEC == "bf16" else 1.1754943508222875e-38, tl.float32)
    for half in tl.static_range(HALVES):
        i = half * HALF + tl.arange(0, HALF)
        here = exists[None, :] if EVEN else exists[None, :] & (i < width)[:, None]
        part = tl.load(q + at[None, :] + i[:, None], mask=here, other=0.0)
        loaded += (part,)
        if CODEC != "bf16":
            longest = tl.maximum(longest, tl.max(tl.abs(part.to(tl.float32)), 0))
    queries: tl.tuple = ()
    for half in tl.static_range(HALVES):
        part = loaded[half]
        if CODEC != "bf16":
            part = (part.to(tl.float32) / longest[None, :]).to(tl.float16)
        queries += (part,)
    return queries, longest


@triton.jit
def weigh(scores, logs, top, mass, CODEC: tl.constexpr):
    """What multiplies values as stored, for scores ``[N, 8]`` that are powers of two; the new
    maximum and mass, and what all sums so far fade by (Milakov and Gimelshein, 2018). The scale of
    a token's values is in its weight, as a logarithm, so that products add up as they are."""
    shifted = scores + logs[:, None] if CODEC == "fp8" else scores
    higher = tl.maximum(top, tl.max(shifted, 0))
    base = tl.where(higher == float("-inf"), 0.0, higher) - SHIFT
    faded = tl.exp2(top - SHIFT - base)
    weights = tl.exp2(scores - base[None, :])
    mass = mass * faded[None, :] + weights
    shares = tl.exp2(shifted - base[None, :]) if CODEC == "fp8" else weights
    return shares.to(tl.bfloat16 if CODEC == "bf16" else tl.float16), higher, mass, faded


@triton.jit
def load_known(at, known, EVEN: tl.constexpr):
    """What is there, or zeros where it is not ``known``, unless all of it is."""
    if EVEN:
        return tl.load(at)
    else:
        return tl.load(at, mask=known, other=0.0)


@triton.jit
def scale_groups(tile, scales, rows, first_group, width, EVEN: tl.constexpr):
    """Components ``[N, C]`` of rows of the cache times the scales of their groups."""
    N: tl.constexpr = tile.shape[0]
    GROUPS: tl.constexpr = (tile.shape[1] + 63) // 64
    g = first_group + tl.arange(0, GROUPS)
    at = rows[:, None] * ((width + 63) // 64) + g[None, :]
    factors = load_known(scales + at, (g * 64 < width)[None, :], EVEN)
    spread = tl.broadcast_to(factors[:, :, None], (N, GROUPS, tile.shape[1] // GROUPS))
    return tile * tl.reshape(spread, tile.shape)


@triton.jit
def load_keys(
    keys, page, first, head, rows, width, KV_HEADS: tl.constexpr, CODEC: tl.constexpr,
    EVEN: tl.constexpr, HALVES: tl.constexpr, BLOCK: tl.constexpr,
):
    """``[N, BLOCK / HALVES]`` of each half of the components to multiply, and ``[N]`` that products
    are to be multiplied by (``fp8``), of ``rows`` behind the ``first`` of a page. Scales of groups
    are in what is multiplied: rounding to fp16 is below the codec's own."""
    codes, scales, page_stride, scale_stride = keys
    HALF: tl.constexpr = BLOCK // HALVES
    start, base = first * KV_HEADS + head, scales + page * scale_stride
    at = page * page_stride + start * width
    factors = rows
    if CODEC == "fp8":
        factors = tl.load(base + start + rows * KV_HEADS)
    halves: tl.tuple = ()
    for half in tl.static_range(HALVES):
        i = half * HALF + tl.arange(0, HALF)
        here = (rows * (KV_HEADS * width))[:, None] + i[None, :]
        tile = load_known(codes + at + here, (i < width)[None, :], EVEN)
        if CODEC != "bf16":
            tile = widen(tile, CODEC)
        if CODEC == "int8":
            tile = scale_groups(
                tile, base, start + rows * KV_HEADS, half * HALF // 64, width, EVEN)
        halves += (tile,)
    return halves, factors


@triton.jit
def load_values(
    values, page, first, head, rows, width, KV_HEADS: tl.constexpr, CODEC: tl.constexpr,
    EVEN: tl.constexpr, BLOCK: tl.constexpr,
):
    """Values as stored ``[BLOCK, N]``, codes by pairs of neighbours ``[BLOCK / 2, N]``, and their
    scales, ``[N]`` or of groups ``[BLOCK / 64, N]``. They are loaded as columns: what is transposed
    in registers is not loaded ahead."""
    codes, scales, page_stride, scale_stride = values
    HELD: tl.constexpr = BLOCK if CODEC == "bf16" else BLOCK // 2
    held = width * HELD // BLOCK
    start, base = first * KV_HEADS + head, scales + page * scale_stride
    i = tl.arange(0, HELD)
    at = page * (page_stride * HELD // BLOCK) + start * held
    here = (rows * (KV_HEADS * held))[None, :] + i[:, None]
    tile = load_known(codes + at + here, (i < held)[:, None], EVEN)
    factors = rows
    if CODEC == "fp8":
        factors = tl.load(base + start + rows * KV_HEADS)
    elif CODEC == "int8":
        GROUPS: tl.constexpr = (BLOCK + 63) // 64
        g = tl.arange(0, GROUPS)
        at_scales = (start + rows * KV_HEADS)[None, :] * ((width + 63) // 64) + g[:, None]
        factors = load_known(base + at_scales, (g * 64 < width)[:, None], EVEN)
    return tile, factors


@triton.jit
def decode_values(tile, factors, CODEC: tl.constexpr):
    """What was loaded as what is multiplied: in one piece, or as even and odd components."""
    if CODEC == "bf16":
        return (tile,)
    elif CODEC == "fp8":
        return split_pairs(tile, CODEC)
    else:
        HELD: tl.constexpr = tile.shape[0]
        N: tl.constexpr = tile.shape[1]
        GROUPS: tl.constexpr = factors.shape[0]
        spread = tl.broadcast_to(factors[:, None, :], (GROUPS, HELD // GROUPS, N))
        spread = tl.reshape(spread, (HELD, N))
        evens, odds = split_pairs(tile, CODEC)
        return evens * spread, odds * spread


@triton.jit
def gather_queries(
    q, q_stride, t, count, position, kv_head, first_pair, width, scale, CODEC: tl.constexpr,
    EVEN: tl.constexpr, GROUP: tl.constexpr, PRODUCTS: tl.constexpr, HALVES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """What `load_queries` gives, and where the token is, for each eight of pairs of one of
    ``count`` tokens and one of the group's heads."""
    queries: tl.tuple = ()
    factors: tl.tuple = ()
    places: tl.tuple = ()
    for g in tl.static_range(PRODUCTS):
        which, heads = pairs_of(first_pair, g, kv_head, GROUP)
        operand, longest = load_queries(
            q, q_stride, t + which, heads, which < count, width, CODEC, EVEN, HALVES,
            BLOCK)
        queries += (operand,)
        factors += (longest * scale,)
        places += (position + which,)
    return queries, factors, places


@triton.jit
def pairs_of(first_pair, g, kv_head, GROUP: tl.constexpr):
    """Tokens, counted in the program's, and heads of an eight of pairs."""
    pair = first_pair + g * COLUMNS + tl.arange(0, COLUMNS)
    return pair // GROUP, kv_head * GROUP + pair % GROUP


@triton.jit
def nothing_seen(
    PRODUCTS: tl.constexpr, PIECES: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr
):
    """Maximum ``[8]``, mass by place in a block ``[N, 8]``, and sums of values of each product."""
    tops: tl.tuple = ()
    masses: tl.tuple = ()
    totals: tl.tuple = ()
    for _ in tl.static_range(PRODUCTS):
        tops += (tl.full((COLUMNS,), float("-inf"), tl.float32),)
        masses += (tl.zeros((N, COLUMNS), tl.float32),)
    for _ in tl.static_range(PRODUCTS * PIECES):
        totals += (tl.zeros((BLOCK // PIECES, COLUMNS), tl.float32),)
    return tops, masses, totals


@triton.jit
def attend_block(
    keys, key_factors, values, value_factors, place, asked, tops, masses, totals,
    CODEC: tl.constexpr, PRODUCTS: tl.constexpr, PIECES: tl.constexpr, N: tl.constexpr,
):
    """`nothing_seen` with one block more; ``asked`` is of `gather_queries`. Values are decoded when
    their weights are known: until then registers hold other things."""
    queries, factors, places = asked
    scores: tl.tuple = ()
    for g in tl.static_range(PRODUCTS):
        product = tl.zeros((N, COLUMNS), tl.float32)
        for half in tl.static_range(len(keys)):  # sums of their own: each is a chain of products
            share = dot(keys[half], queries[g][half], tl.zeros((N, COLUMNS), tl.float32))
            product += share * factors[g][None, :]
        if CODEC == "fp8":
            product *= key_factors[:, None]
        scores += (tl.where(place[:, None] <= places[g][None, :], product, float("-inf")),)
    logs = tl.maximum(tl.log2(value_factors), LEAST_LOG) if CODEC == "fp8" else value_factors
    shares: tl.tuple = ()
    fades: tl.tuple = ()
    new_tops: tl.tuple = ()
    new_masses: tl.tuple = ()
    for g in tl.static_range(PRODUCTS):
        share, top, mass, faded = weigh(scores[g], logs, tops[g], masses[g], CODEC)
        shares += (share,)
        fades += (faded[None, :],)
        new_tops += (top,)
        new_masses += (mass,)
    pieces = decode_values(values, value_factors, CODEC)
    new_totals: tl.tuple = ()
    for g in tl.static_range(PRODUCTS):
        for piece in tl.static_range(PIECES):
            total = dot(pieces[piece], shares[g], totals[g * PIECES + piece] * fades[g])
            new_totals += (total,)
    return new_tops, new_masses, new_totals


@triton.jit
def attend_tokens(
    q, q_stride, sums, tops_out, keys, values, table, t, count, position, width, scale,
    CODEC: tl.constexpr, EVEN: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr,
    TOKENS: tl.constexpr, PRODUCTS: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    """``count`` tokens from ``t`` on, which lie in the page of ``position``, where the first is."""
    GROUP: tl.constexpr = HEADS // KV_HEADS
    PIECES: tl.constexpr = 1 if CODEC == "bf16" else 2
    HALVES: tl.constexpr = 2 if BLOCK >= 128 else 1
    SHARES: tl.constexpr = (TOKENS * GROUP + COLUMNS * PRODUCTS - 1) // (COLUMNS * PRODUCTS)
    kv_head = tl.program_id(1) // SHARES
    first_pair = tl.program_id(1) % SHARES * (COLUMNS * PRODUCTS)
    begin, end = part_of(tl.program_id(2), position, N)
    last = position + count - 1
    end = tl.minimum(end, last // N + 1)
    if (begin < end) & (first_pair < count * GROUP):
        page, first = block_at(table, begin, N)
        if EVEN:  # what the launch before writes to is read all the same, behind `wait`
            HELD: tl.constexpr = BLOCK // PIECES
            at = first * KV_HEADS + kv_head
            prefetch(keys[0] + page * keys[2] + at * BLOCK, KV_HEADS * BLOCK, N, BLOCK)
            at_values = page * (values[2] // PIECES) + at * HELD
            prefetch(values[0] + at_values, KV_HEADS * HELD, N, HELD)
        wait()
        release()
        asked = gather_queries(
            q, q_stride, t, count, position, kv_head, first_pair, width, scale, CODEC, EVEN, GROUP,
            PRODUCTS, HALVES, BLOCK)
        tops, masses, totals = nothing_seen(PRODUCTS, PIECES, N, BLOCK)
        for block in tl.range(begin, end, num_stages=STAGES):
            place = block * N + tl.arange(0, N)
            # the last token stands for what is behind it, whose weights are 0
            rows = tl.minimum(tl.arange(0, N), last - block * N)
            tile, key_factors = load_keys(
                keys, page, first, kv_head, rows, width, KV_HEADS, CODEC, EVEN, HALVES, BLOCK)
            codes, value_factors = load_values(
                values, page, first, kv_head, rows, width, KV_HEADS, CODEC, EVEN, BLOCK)
            tops, masses, totals = attend_block(
                tile, key_factors, codes, value_factors, place, asked, tops, masses, totals,
                CODEC, PRODUCTS, PIECES, N)
            page, first = block_at(table, tl.minimum(block + 1, end - 1), N)
        for g in tl.static_range(PRODUCTS):
            which, heads = pairs_of(first_pair, g, kv_head, GROUP)
            at = ((t + which) * HEADS + heads) * tl.num_programs(2) + tl.program_id(2)
            write_part(
                sums, tops_out, at, which < count, width, tops[g], masses[g],
                totals[g * PIECES : (g + 1) * PIECES], EVEN)


@triton.jit
def write_part(sums, tops, at, exists, width, top, mass, totals, EVEN: tl.constexpr):
    """Sums of eight pairs, to their places ``at`` ``[8]``."""
    total = totals[0]
    if len(totals) == 2:  # even and odd components
        both = tl.permute(tl.join(totals[0], totals[1]), (0, 2, 1))
        total = tl.reshape(both, (2 * total.shape[0], COLUMNS))
    i = tl.arange(0, total.shape[0])
    here = exists[None, :] if EVEN else exists[None, :] & (i < width)[:, None]
    tl.store(sums + at[None, :] * width + i[:, None], total, mask=here)
    tl.store(tops + 2 * at, top, mask=exists)
    tl.store(tops + 2 * at + 1, tl.sum(mass, 0), mask=exists)


@triton.jit
def attend_part(
    q, q_stride, sums, tops, key_codes, key_scales, value_codes, value_scales, key_page,
    key_scale_page, value_page, value_scale_page, positions, token_row, row_start, page_table,
    table_stride, width, scale, programs, CODEC: tl.constexpr, EVEN: tl.constexpr,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, TOKENS: tl.constexpr, PRODUCTS: tl.constexpr,
    N: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):
    """One token, or with ``TOKENS`` above 1 up to so many at a time of a row, which has
    ``programs`` of them; a share of the group of one key head; one part of the context.

    ``sums`` fp32 ``[T, Hq, parts, width]`` and ``tops`` fp32 ``[T, Hq, parts, 2]`` (maximum and
    mass) are written for the parts that a token sees.
    """
    keys = (key_codes, key_scales, key_page, key_scale_page)
    values = (value_codes, value_scales, value_page, value_scale_page)
    if EVEN:
        width = BLOCK
    if TOKENS == 1:
        t = tl.program_id(0).to(tl.int64)
        position = tl.load(positions + t).to(tl.int32)
        # volatile: it waits for no branch
        table = page_table + tl.load(token_row + t, volatile=True) * table_stride
        attend_tokens(
            q, q_stride, sums, tops, keys, values, table, t, 1, position, width, scale, CODEC,
            EVEN, HEADS, KV_HEADS, TOKENS, PRODUCTS, N, BLOCK, STAGES)
    else:
        row = tl.program_id(0) // programs
        begin = tl.load(row_start + row)
        num_tokens = tl.load(row_start + row + 1) - begin
        position = tl.load(positions + begin).to(tl.int32)
        table = page_table + row * table_stride
        here = tl.minimum(num_tokens, (position // PAGE + 1) * PAGE - position)
        pieces_here = tl.cdiv(here, TOKENS)
        num_pieces = pieces_here + tl.cdiv(num_tokens - here, TOKENS)
        # what does not change is computed anew: registers for it would be missing within
        for piece in tl.range(
                tl.program_id(0) % programs, num_pieces, programs, disable_licm=True):
            is_here = piece < pieces_here
            first = tl.where(is_here, 0, here) + (
                piece - tl.where(is_here, 0, pieces_here)) * TOKENS
            count = tl.minimum(tl.where(is_here, here, num_tokens) - first, TOKENS)
            attend_tokens(
                q, q_stride, sums, tops, keys, values, table, (begin + first).to(tl.int64), count,
                position + first, width, scale, CODEC, EVEN, HEADS, KV_HEADS, TOKENS, PRODUCTS, N,
                BLOCK, STAGES)


@triton.jit
def merge_parts(
    sums, tops, positions, out, out_stride, num_heads, max_parts, WIDTH: tl.constexpr,
    N: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):
    """``BLOCK`` components of a head of one token. Rows of ``sums`` lie at constant distances, so
    that all are asked for before the first is there."""
    t, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i, part = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, PARTS)
    seen = is_seen(part, tl.load(positions + t).to(tl.int32), N)
    here, base = seen[:, None], (t * num_heads + head) * max_parts
    if WIDTH % BLOCK != 0:
        here = here & (i < WIDTH)[None, :]
    at, at_top = sums + base * WIDTH, tops + 2 * base + 2 * part
    wait()
    release()
    top = tl.load(at_top, mask=seen, other=float("-inf"))
    mass = tl.load(at_top + 1, mask=seen, other=0.0)
    total = tl.load(at + part[:, None] * WIDTH + i[None, :], mask=here, other=0.0)
    scale = tl.exp2(top - tl.max(top, 0))
    row = tl.sum(total * scale[:, None], 0) / tl.sum(mass * scale, 0)
    at_out = out + t * out_stride + head * WIDTH + i
    tl.store(at_out, row.to(out.dtype.element_ty), mask=i < WIDTH)
