"""The gated MLPs of experts for prompts: pairs of a token and an expert, sorted by expert, as
products of many rows of activations.

Weights are decoded in registers, where they are the first operand of the instruction; activations
come through shared memory. Groups are the pairs of one expert, ``N`` at most; they are given by a
table ``[3, groups]``: expert, and where in the order they begin and end.
"""

import triton
import triton.language as tl

from ninfer_triton_kernels.kernels.decoders import (
    affine_planes,
    byte_planes,
    e2m1_planes,
    joined,
    upper,
)
from ninfer_triton_kernels.kernels.fragments import pairs_of_words
from ninfer_triton_kernels.kernels.overlap import release, wait
from ninfer_triton_kernels.kernels.products import INTERPRETED, UNLIMITED, dot
from ninfer_triton_kernels.kernels.tiled import (
    E4M3_INPUT,
    E4M3_RESULT,
    fetch_step,
    row_factors,
)

SPREAD = tl.constexpr(8)
"""Counts lie so far apart, that programs which add to several at once do not wait so long."""


@triton.jit(do_not_specialize=["count"])
def count_pairs(ids, counts, ranks, count, BLOCK: tl.constexpr):
    """Adds the pairs of each expert to ``counts``, and finds how many were there before each: in
    any order, because no bit of a result depends on where among its expert's a pair is."""
    wait()
    release()
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = i < count
    own = tl.load(ids + i, mask=live, other=0)
    rank = tl.atomic_add(counts + own * SPREAD, 1, mask=live, sem="relaxed")
    tl.store(ranks + i, rank, mask=live)


@triton.jit
def store_order(ids, ranks, order, begins, block, count, BLOCK: tl.constexpr):
    """Pairs of a block to their places, of each expert from ``begins`` on."""
    i = block * BLOCK + tl.arange(0, BLOCK)
    live = i < count
    own = tl.load(ids + i, mask=live, other=0)
    rank = tl.load(ranks + i, mask=live, other=0)
    tl.store(order + tl.gather(begins, own, 0) + rank, i, mask=live)


@triton.jit
def store_groups(
    table, begins, ends, index, groups, N: tl.constexpr, EVENLY: tl.constexpr,
    EXPERTS: tl.constexpr, GROUPS: tl.constexpr,
):
    """``GROUPS`` groups of at most ``N`` pairs of an expert, in the order of experts; those behind
    the last have none. ``EVENLY`` they have as many sixteens as the others of their expert, else
    all but the last have ``N``."""
    group, e = index * GROUPS + tl.arange(0, GROUPS), tl.arange(0, EXPERTS)
    own = tl.cdiv(ends - begins, N)
    each = tl.cdiv(tl.cdiv(ends - begins, tl.maximum(own, 1)), 16) * 16 if EVENLY else own * 0 + N
    last = tl.cumsum(own, 0)
    rank = group[:, None] - (last - own)[None, :]
    is_own = ((rank >= 0) & (rank < own[None, :])).to(tl.int32)
    begin = begins[None, :] + rank * each[None, :]
    end = tl.minimum(begin + each[None, :], ends[None, :])
    live = group < groups
    tl.store(table + group, tl.sum(is_own * e[None, :], 1), mask=live)
    tl.store(table + groups + group, tl.sum(is_own * begin, 1), mask=live)
    tl.store(table + 2 * groups + group, tl.sum(is_own * end, 1), mask=live)


@triton.jit(do_not_specialize=["count", "blocks", "groups"])
def place_pairs(
    ids, counts, ranks, order, table, arrivals, count, blocks, groups, N: tl.constexpr,
    EVENLY: tl.constexpr, EXPERTS: tl.constexpr, BLOCK: tl.constexpr, GROUPS: tl.constexpr,
):
    """Pairs by expert to ``order``, and their groups to ``table``: programs of blocks of pairs, and
    behind them those of groups. ``counts`` and ``arrivals`` are zeros before `count_pairs` and
    after."""
    wait()
    release()
    block, e = tl.program_id(0), tl.arange(0, EXPERTS)
    sizes = tl.load(counts + e * SPREAD, cache_modifier=".cg")
    ends = tl.cumsum(sizes, 0)
    if block < blocks:
        store_order(ids, ranks, order, ends - sizes, block, count, BLOCK)
    else:
        store_groups(
            table, ends - sizes, ends, block - blocks, groups, N, EVENLY, EXPERTS, GROUPS)
    tl.debug_barrier()  # all threads have read the counts before one of them says so
    if tl.atomic_add(arrivals, 1, sem="acq_rel") == tl.num_programs(0) - 1:
        tl.store(arrivals, 0)
        tl.store(counts + e * SPREAD, 0)


@triton.jit
def in_fragment_order(values, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Columns ``[ROWS, WIDTH]`` as the instruction takes them: of each 32, by (plane, column half,
    lane, pair) instead of (lane, plane, column half, pair)."""
    parts = tl.reshape(values, (ROWS, WIDTH // 32, 4, 2, 2, 2))
    return tl.reshape(tl.permute(parts, (0, 1, 3, 4, 2, 5)), (ROWS, WIDTH))


@triton.jit
def arrange_columns(x, out, width, padded, x_stride, FRAGMENTS: tl.constexpr, BLOCK: tl.constexpr):
    """A row of activations as `in_fragment_order`, if weights are ``FRAGMENTS``, and zeros behind
    it."""
    wait()
    release()
    t = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + t * x_stride + i, mask=i < width, other=0.0)
    if FRAGMENTS:
        values = tl.reshape(in_fragment_order(tl.reshape(values, (1, BLOCK)), 1, BLOCK), (BLOCK,))
    tl.store(out + t * padded + i, values, mask=i < padded)


@triton.jit
def factors_of(words):
    """What `load_factors` gives as fp32 by lane and row half, as words of planes have them."""
    if words.dtype == tl.int32:
        low = words.to(tl.int16).to(tl.float16, bitcast=True)
        words = tl.join(low, (words >> 16).to(tl.int16).to(tl.float16, bitcast=True))
    return tl.permute(words.to(tl.float32), (1, 2, 0, 3))[:, :, :, None, :]


@triton.jit
def rounded(values):
    """fp32 of the bits that a bf16 has; conversions of the interpreter cut the others off."""
    bits = values.to(tl.int32, bitcast=True)
    bits += 0x7FFF + (bits >> 16 & 1)
    return (bits & -0x10000).to(tl.float32, bitcast=True)


@triton.jit
def to_bf16(values):
    """fp32 rounded to bf16."""
    if INTERPRETED:
        values = rounded(values)
    return values.to(tl.bfloat16)


@triton.jit
def rounded_pairs(low, high):
    """Words of two fp32, each rounded to bf16."""
    if INTERPRETED:
        words = joined(rounded(low), rounded(high))
    else:
        words = tl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [low, high], dtype=tl.int32, is_pure=True,
            pack=1)
    return words


@triton.jit
def scaled_plane(words, factor, minimum, LESS: tl.constexpr, HAS_MINIMUM: tl.constexpr):
    """A plane less ``LESS``, times a factor, and a minimum added; rounded once."""
    rest = factor * -LESS
    if HAS_MINIMUM:
        rest += minimum
    return rounded_pairs(upper(words << 16) * factor + rest, upper(words) * factor + rest)


@triton.jit
def scaled_planes(one, two, scale, minimum, LESS: tl.constexpr, HAS_MINIMUM: tl.constexpr):
    """Two planes of one group, from what `load_factors` gives."""
    factor = factors_of(scale)
    least = factors_of(minimum) if HAS_MINIMUM else factor
    return (scaled_plane(one, factor, least, LESS, HAS_MINIMUM),
            scaled_plane(two, factor, least, LESS, HAS_MINIMUM))


@triton.jit
def scaled_bytes(
    words, scale, OFFSET: tl.constexpr, GROUP: tl.constexpr, BN: tl.constexpr,
):
    """Two planes of codes of 8 bits."""
    p0, p1 = byte_planes(words, OFFSET == 0, 1, BN)
    if OFFSET == 0:
        factor = tl.full((1, BN // 16, 32, 1, 2), E4M3_INPUT * E4M3_RESULT, tl.float32)
        if GROUP == 128:
            factor *= factors_of(scale)
    else:
        factor = factors_of(scale)
    return (scaled_plane(p0, factor, factor, 0.0, False),
            scaled_plane(p1, factor, factor, 0.0, False))


@triton.jit
def decoded_step(
    step, BITS: tl.constexpr, OFFSET: tl.constexpr, GROUP: tl.constexpr,
    HAS_MINIMUM: tl.constexpr, BN: tl.constexpr,
):
    """What `fetch_step` gave for one block as bf16 ``[BN, 64]``, or 32 of 8 bits, in the order of
    `in_fragment_order`: as `unpack_fragments` has them, but for what `final_factors` are."""
    words, more, scale, minimum = step
    WIDTH: tl.constexpr = 32 if BITS == 8 else 64
    if BITS == 8:
        p0, p1 = scaled_bytes(words, scale[0], OFFSET, GROUP, BN)
        planes = tl.join(p0, p1)
    else:
        if GROUP == 16:
            p0, p1, p2, p3 = e2m1_planes(words, scale[0], 1, BN)
        else:
            LAST: tl.constexpr = 1 if GROUP == 32 else 0
            p0, p1, p2, p3 = affine_planes(words, more, BITS, 1, BN)
            p0, p1 = scaled_planes(p0, p1, scale[0], minimum[0], 128.0 + OFFSET, HAS_MINIMUM)
            p2, p3 = scaled_planes(p2, p3, scale[LAST], minimum[LAST], 128.0 + OFFSET, HAS_MINIMUM)
        planes = tl.join(tl.join(p0, p2), tl.join(p1, p3))
    planes = tl.reshape(planes, (BN // 16, 8, 4, 2, 2, WIDTH // 32, 2))
    values = pairs_of_words(planes)  # tile, g, lane, column half, row half, plane, pair
    ordered = tl.permute(values, (0, 4, 1, 5, 6, 3, 2, 7))
    return tl.reshape(ordered, (BN, WIDTH))


@triton.jit
def final_factors(
    scales, divisor, tile, BITS: tl.constexpr, OFFSET: tl.constexpr, GROUP: tl.constexpr,
    BN: tl.constexpr,
):
    """What rows are multiplied with in the end, ``[BN, 1]``."""
    factors = tl.reshape(row_factors(scales, divisor, tile, BITS, OFFSET, GROUP), (BN, 1))
    if BITS == 8 and OFFSET == 0:
        factors /= E4M3_RESULT
    return factors


@triton.jit
def tiles_of_halves(block, width, BN: tl.constexpr, GATED: tl.constexpr):
    """Tiles of 16 rows that a program has, below the last; with ``GATED``, the first half are the
    gate's, the second the up projection's, which begin at row ``width``."""
    tiles = tl.cdiv(width, 16)
    i = tl.arange(0, BN // 16)
    if GATED:
        tile = tl.minimum(block * (BN // 32) + i % (BN // 32), tiles - 1) + i // (BN // 32) * tiles
    else:
        tile = tl.minimum(block * (BN // 16) + i, tiles - 1)
    return tile


@triton.jit
def settled(total):
    """Sums, waited for: else Triton lets the instruction run on into the next step, which decodes
    into the registers that it reads."""
    if not INTERPRETED:
        total = tl.inline_asm_elementwise(
            "mov.f32 $0, $1;", "=f,f", [total], dtype=tl.float32, is_pure=True, pack=1)
    return total


@triton.jit
def dense_product(
    at, exists, codes, tile, num_blocks, depth, STEP: tl.constexpr, STAGES: tl.constexpr,
):
    """Tiles of bf16 rows by columns of activations from pointers ``[STEP, N]``."""
    BN: tl.constexpr = tile.shape[0] * 16
    n = tl.reshape(tile[:, None] * 16 + tl.arange(0, 16)[None, :], (BN, 1)) * depth
    total = tl.zeros((BN, at.shape[1]), tl.float32)
    for block in tl.range(0, num_blocks, num_stages=STAGES):
        k = (block * STEP + tl.arange(0, STEP))[None, :]
        weights = tl.load(codes + n + k, mask=k < depth, other=0.0)
        values = tl.load(at + block * STEP, mask=exists[None, :], other=0.0)
        total = dot(weights, values, total)
    return total


@triton.jit
def decoded_product(
    at, exists, codes, high, scales, minimums, tile, num_blocks, BITS: tl.constexpr,
    OFFSET: tl.constexpr, GROUP: tl.constexpr, HAS_MINIMUM: tl.constexpr, STEP: tl.constexpr,
    STAGES: tl.constexpr,
):
    """As `dense_product` of fragments, two steps at once, without what `final_factors` are. While a
    program decodes, the other on its processor multiplies."""
    BN: tl.constexpr = tile.shape[0] * 16
    tile, one = tile[None, :], tl.arange(0, 1)
    total = tl.zeros((BN, at.shape[1]), tl.float32)
    for first in tl.range(0, num_blocks, 2, num_stages=STAGES):
        for i in tl.static_range(2):
            block = first + i
            live = exists & (block < num_blocks)
            values = tl.load(at + block * STEP, mask=live[None, :], other=0.0)
            step = fetch_step(codes, high, scales, minimums, tile, block + one, num_blocks, BITS,
                              GROUP, HAS_MINIMUM)
            weights = decoded_step(step, BITS, OFFSET, GROUP, HAS_MINIMUM, BN)
            total = dot(weights, values, total)
        total = settled(total)
    return total


@triton.jit
def group_product(
    x, rows, exists, codes, high, scales, minimums, divisor, expert, width, depth, padded,
    BITS: tl.constexpr, OFFSET: tl.constexpr, GROUP: tl.constexpr, HAS_MINIMUM: tl.constexpr,
    GATED: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr,
):
    """``BN`` rows of an expert's matrix, of ``width`` rows or with ``GATED`` twice as many, by
    rows ``[N]`` of activations, of ``padded`` columns: fp32 ``[BN, N]``."""
    STEP: tl.constexpr = 32 if BITS == 8 else 64
    tile = tiles_of_halves(tl.program_id(0), width, BN, GATED)
    tile = tile + expert * (tl.cdiv(width, 16) * (2 if GATED else 1))
    num_blocks = tl.cdiv(depth, STEP)
    at = x + rows.to(tl.int64)[None, :] * padded + tl.arange(0, STEP)[:, None]
    if BITS == 16:
        total = dense_product(at, exists, codes, tile, num_blocks, depth, STEP, STAGES)
    else:
        total = decoded_product(
            at, exists, codes, high, scales, minimums, tile, num_blocks, BITS, OFFSET, GROUP,
            HAS_MINIMUM, STEP, STAGES)
        if GROUP == 0 or GROUP == 16:
            total *= final_factors(scales, divisor, tile[None, :], BITS, OFFSET, GROUP, BN)
    return total


@triton.jit
def gated_halves(total, BN: tl.constexpr, LIMIT: tl.constexpr):
    """``silu(gate) * up`` of rows as in `tiles_of_halves`: ``[BN / 2, N]``; ``LIMIT`` as of
    `gate`."""
    halves = tl.reshape(total, (2, BN // 2, total.shape[1]))
    gates, ups = tl.split(tl.permute(halves, (1, 2, 0)))
    if LIMIT != UNLIMITED:
        gates, ups = tl.minimum(gates, LIMIT), tl.clamp(ups, -LIMIT, LIMIT)
    return gates / (1 + tl.exp(-gates)) * ups


@triton.jit
def gate_up_of_places(
    x, order, begin, end, hidden, codes, high, scales, minimums, divisor, expert, width, depth,
    x_padded, padded, BITS: tl.constexpr, OFFSET: tl.constexpr, GROUP: tl.constexpr,
    HAS_MINIMUM: tl.constexpr, LIMIT: tl.constexpr, TOP_K: tl.constexpr, FRAGMENTS: tl.constexpr,
    N: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr,
):
    """A program of `gate_up_of_group`, ``N`` places at most."""
    place = begin + tl.arange(0, N)
    exists = place < end
    token = tl.load(order + place, mask=exists, other=0) // TOP_K
    total = group_product(
        x, token, exists, codes, high, scales, minimums, divisor, expert, width, depth, x_padded,
        BITS, OFFSET, GROUP, HAS_MINIMUM, True, BN, STAGES)
    n = tl.program_id(0) * (BN // 2) + tl.arange(0, BN // 2)
    gated = gated_halves(total, BN, LIMIT)
    gated = tl.trans(to_bf16(tl.where((n < width)[:, None], gated, 0.0)))
    if FRAGMENTS:
        gated = in_fragment_order(gated, N, BN // 2)
    at = hidden + place.to(tl.int64)[:, None] * padded + n[None, :]
    tl.store(at, gated, mask=exists[:, None] & (n < padded)[None, :])


@triton.jit
def gate_up_of_group(
    x, order, table, hidden, codes, high, scales, minimums, divisor, width, depth, x_padded,
    padded, BITS: tl.constexpr, OFFSET: tl.constexpr, GROUP: tl.constexpr,
    HAS_MINIMUM: tl.constexpr, LIMIT: tl.constexpr, TOP_K: tl.constexpr, FRAGMENTS: tl.constexpr,
    N: tl.constexpr, FEW: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr,
):
    """``hidden[place] = silu(gate x) * up x`` for the places of a group in the order; columns as
    `arrange_columns` has them, for the next matrix. Groups of ``FEW`` have a product of as many."""
    wait()
    release()
    group, groups = tl.program_id(1), tl.num_programs(1)
    begin, end = tl.load(table + groups + group), tl.load(table + 2 * groups + group)
    if begin < end:
        expert = tl.load(table + group).to(tl.int64)
        if end - begin > FEW:
            gate_up_of_places(
                x, order, begin, end, hidden, codes, high, scales, minimums, divisor, expert,
                width, depth, x_padded, padded, BITS, OFFSET, GROUP, HAS_MINIMUM, LIMIT, TOP_K,
                FRAGMENTS, N, BN, STAGES)
        else:
            gate_up_of_places(
                x, order, begin, end, hidden, codes, high, scales, minimums, divisor, expert,
                width, depth, x_padded, padded, BITS, OFFSET, GROUP, HAS_MINIMUM, LIMIT, TOP_K,
                FRAGMENTS, FEW, BN, STAGES)


@triton.jit
def down_of_places(
    hidden, order, begin, end, parts, codes, high, scales, minimums, divisor, expert, width, depth,
    padded, BITS: tl.constexpr, OFFSET: tl.constexpr, GROUP: tl.constexpr,
    HAS_MINIMUM: tl.constexpr, N: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr,
):
    """A program of `down_of_group`, ``N`` places at most."""
    place = begin + tl.arange(0, N)
    exists = place < end
    pair = tl.load(order + place, mask=exists, other=0).to(tl.int64)
    total = group_product(
        hidden, place, exists, codes, high, scales, minimums, divisor, expert, width, depth,
        padded, BITS, OFFSET, GROUP, HAS_MINIMUM, False, BN, STAGES)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    at = parts + pair[:, None] * width + n[None, :]
    tl.store(at, tl.trans(to_bf16(total)), mask=exists[:, None] & (n < width)[None, :])


@triton.jit
def down_of_group(
    hidden, order, table, parts, codes, high, scales, minimums, divisor, width, depth, padded,
    BITS: tl.constexpr, OFFSET: tl.constexpr, GROUP: tl.constexpr, HAS_MINIMUM: tl.constexpr,
    N: tl.constexpr, FEW: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr,
):
    """``parts[pair] = down hidden[place]``; groups as in `gate_up_of_group`."""
    wait()
    release()
    group, groups = tl.program_id(1), tl.num_programs(1)
    begin, end = tl.load(table + groups + group), tl.load(table + 2 * groups + group)
    if begin < end:
        expert = tl.load(table + group).to(tl.int64)
        if end - begin > FEW:
            down_of_places(
                hidden, order, begin, end, parts, codes, high, scales, minimums, divisor, expert,
                width, depth, padded, BITS, OFFSET, GROUP, HAS_MINIMUM, N, BN, STAGES)
        else:
            down_of_places(
                hidden, order, begin, end, parts, codes, high, scales, minimums, divisor, expert,
                width, depth, padded, BITS, OFFSET, GROUP, HAS_MINIMUM, FEW, BN, STAGES)
