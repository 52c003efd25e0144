"""Tokens from logits: penalties, masks, filters, draws.

A row of logits is seen in *tiles* of ids. `survey` writes the best keys of each tile, from which
`choose` makes those of the row. Where any token may be drawn, or top-p is of all of them (*whole*
rows), `weigh` sums the masses of tiles; where any may, the one in which it lies is searched. Sums
are FP64, in an order that depends on the size of the vocabulary alone.

What is known of a row is in a table of 64-bit words, of which some are FP64 numbers and some are
addresses, 0 for none.
"""

import triton
import triton.language as tl

from ninfer_triton_kernels.kernels.moe_route import swap_order
from ninfer_triton_kernels.kernels.overlap import release, wait

TEMPERATURE, TOP_P, MIN_P, NUMBER = (tl.constexpr(i) for i in range(4))
REPETITION, PRESENCE, FREQUENCY = (tl.constexpr(i) for i in range(4, 7))
COUNT, IS_WHOLE, IS_TOUCHED, IS_BARRED = (tl.constexpr(i) for i in range(7, 11))
COUNTS, SEEN, MASK, PENDING, NUM_PENDING = (tl.constexpr(i) for i in range(11, 16))
COLUMNS = tl.constexpr(16)
"""Of the table: the parameters and the number that was drawn; how many of the best tokens there is
a choice of; whether the mass of all tokens counts, whether logits change, whether nothing may be
drawn; what changes them, and where in the table the drafts before the row are, and how many."""

UNRANKED = tl.constexpr(-2)
"""In place of a token: those that top-p keeps are more than there is a choice of."""

LOWEST = tl.constexpr(-0x7FFFFFFFFFFFFFFF - 1)
LAST_ID = tl.constexpr(0x7FFFFFFF)
INFINITE, NOTHING = tl.constexpr(0x7F800000), tl.constexpr(-0x7F800001)
"""Orders of the infinities."""


@triton.jit
def number_at(place):
    """The FP64 number of a word."""
    return tl.load(place).to(tl.float64, bitcast=True)


@triton.jit
def keys_of(x, ids):
    """Different integers in the order of fp32 logits, of equal ones the lower id first; NaN is
    above all."""
    x = tl.where(x == 0, 0.0, x)
    order = swap_order(x.to(tl.int32, bitcast=True), 0x7FFFFFFF)
    order = tl.where(x == x, order, 0x7FFFFFFF)
    return (order.to(tl.int64) << 32) | (ids ^ LAST_ID).to(tl.int64)


@triton.jit
def id_of(key):
    return (key & LAST_ID).to(tl.int32) ^ LAST_ID


@triton.jit
def logit_of(key):
    return swap_order((key >> 32).to(tl.int32), 0x7FFFFFFF).to(tl.float32, bitcast=True)


@triton.jit
def is_finite(key):
    order = (key >> 32).to(tl.int32)
    return (order < INFINITE) & (order > NOTHING)


@triton.jit
def adjusted_logits(x, ids, live, row, table):
    """Repetition, then presence and frequency, then the mask."""
    if tl.load(row + COUNTS) != 0:
        counts = tl.load(row + COUNTS).to(tl.pointer_type(tl.float32))
        seen = tl.load(row + SEEN).to(tl.pointer_type(tl.int8))
        count = tl.load(counts + ids, mask=live, other=0.0)
        is_seen = tl.load(seen + ids, mask=live, other=0).to(tl.int32)
        pending = table + tl.load(row + PENDING)
        for i in range(tl.load(row + NUM_PENDING).to(tl.int32)):
            here = (tl.load(pending + i) == ids).to(tl.int32)
            count += here.to(tl.float32)
            is_seen |= here
        factor = number_at(row + REPETITION).to(tl.float32)
        repeated = tl.where(x > 0, tl.div_rn(x, factor), x * factor)
        x = tl.where(is_seen != 0, repeated, x)
        presence = number_at(row + PRESENCE).to(tl.float32)
        x -= tl.where(count > 0, presence, 0.0) + count * number_at(row + FREQUENCY).to(tl.float32)
    if tl.load(row + MASK) != 0:
        allowed = tl.load(row + MASK).to(tl.pointer_type(tl.int8))
        x = tl.where(tl.load(allowed + ids, mask=live, other=0) != 0, x, float("-inf"))
    if tl.load(row + IS_BARRED) != 0:
        x = tl.full(x.shape, float("-inf"), tl.float32)
    return x


@triton.jit
def survey(
    logits, stride, table, adjusted, candidates, vocab_size, num_tiles, MOST: tl.constexpr,
    TILE: tl.constexpr,
):
    """One tile of a row: as many of its best keys as the row can choose from, the best first, into
    ``candidates`` ``[R, tiles, MOST]``; logits that change into ``adjusted`` ``[R, V]``."""
    wait()
    release()
    tile = tl.program_id(0)
    r = tl.program_id(1).to(tl.int64)
    ids = tile * TILE + tl.arange(0, TILE)
    live = ids < vocab_size
    x = tl.load(logits + r * stride + ids, mask=live, other=0.0)
    to = candidates + (r * num_tiles + tile) * MOST
    row = table + r * COLUMNS
    if tl.load(row + IS_TOUCHED) != 0:
        x = adjusted_logits(x, ids, live, row, table)
        tl.store(adjusted + r * vocab_size + ids, x, mask=live)
    left = tl.where(live, keys_of(x, ids), LOWEST)
    for rank in range(tl.load(row + COUNT).to(tl.int32)):
        best = tl.max(left, 0)
        tl.store(to + rank, best)
        left = tl.where(left == best, LOWEST, left)


@triton.jit
def best_of(candidates, r, num_tiles, MOST: tl.constexpr, TILES: tl.constexpr):
    """The best key of a row."""
    tile = tl.arange(0, TILES)
    heads = candidates + (r * num_tiles + tile) * MOST
    keys = tl.load(heads, mask=tile < num_tiles, other=LOWEST, cache_modifier=".cg")
    return tl.max(keys, 0)


@triton.jit
def weights_of(x, top, row):
    """fp32, of the largest 1: temperature, then min-p."""
    weights = tl.exp(tl.div_rn(x - top, number_at(row + TEMPERATURE).to(tl.float32)))
    return tl.where(weights < number_at(row + MIN_P).to(tl.float32), 0.0, weights)


@triton.jit
def tile_weights(logits, stride, adjusted, row, r, ids, top, vocab_size):
    """Weights of a whole row's ids."""
    live = ids < vocab_size
    if tl.load(row + IS_TOUCHED) != 0:
        x = tl.load(adjusted + r * vocab_size + ids, mask=live, other=float("-inf"))
    else:
        x = tl.load(logits + r * stride + ids, mask=live, other=float("-inf"))
    return weights_of(x, top, row).to(tl.float64)


@triton.jit
def weigh(
    logits, stride, table, adjusted, candidates, masses, vocab_size, num_tiles, MOST: tl.constexpr,
    TILES: tl.constexpr, TILE: tl.constexpr,
):
    """The mass of one tile of a whole row, into ``masses`` ``[R, tiles]``."""
    wait()
    release()
    tile = tl.program_id(0)
    r = tl.program_id(1).to(tl.int64)
    row = table + r * COLUMNS
    if tl.load(row + IS_WHOLE) != 0:
        best = best_of(candidates, r, num_tiles, MOST, TILES)
        if is_finite(best):
            ids = tile * TILE + tl.arange(0, TILE)
            weights = tile_weights(
                logits, stride, adjusted, row, r, ids, logit_of(best), vocab_size)
            tl.store(masses + r * num_tiles + tile, tl.sum(weights, 0))


@triton.jit
def total_of(masses, num_tiles, TILES: tl.constexpr):
    """Of all tiles."""
    tile = tl.arange(0, TILES)
    return tl.sum(tl.load(masses + tile, mask=tile < num_tiles, other=0.0), 0)


@triton.jit
def find_tile(masses, number, num_tiles, TILES: tl.constexpr):
    """Where a number in [0, 1) falls: the tile, the mass before it, and the number as a mass."""
    tile = tl.arange(0, TILES)
    summed = tl.cumsum(tl.load(masses + tile, mask=tile < num_tiles, other=0.0), 0)
    target = number * tl.max(summed, 0)
    found = tl.sum((summed <= target).to(tl.int32), 0)
    found = tl.minimum(found, num_tiles - 1)
    return found, tl.max(tl.where(tile < found, summed, 0.0), 0), target


@triton.jit
def find_id(weights, ids, before, target):
    """The first id beyond a mass; the last with any weight, where rounding left none."""
    passed = before + tl.cumsum(weights, 0) <= target
    found = tl.min(tl.where(passed | (weights == 0), LAST_ID, ids), 0)
    last = tl.max(tl.where(weights > 0, ids, 0), 0)
    return tl.minimum(found, last)


@triton.jit
def draw_by_id(weights, ids, number, MOST: tl.constexpr):
    """One of several ids in any order, as if they were sorted."""
    upto = tl.expand_dims(ids, 0) <= tl.expand_dims(ids, 1)
    each = tl.broadcast_to(tl.expand_dims(weights, 0), (MOST, MOST))
    summed = tl.sum(tl.where(upto, each, 0.0), 1)
    passed = summed <= number * tl.max(summed, 0)
    found = tl.min(tl.where(passed | (weights == 0), LAST_ID, ids), 0)
    return tl.minimum(found, tl.max(tl.where(weights > 0, ids, 0), 0))


@triton.jit
def best_keys(candidates, r, count, num_tiles, MOST: tl.constexpr, TILES: tl.constexpr):
    """The ``count`` best keys of a row, the best first, ``[MOST]``, of the sorted ones of tiles."""
    tile = tl.arange(0, TILES)
    heads = candidates + (r * num_tiles + tile) * MOST
    current = tl.load(heads, mask=tile < num_tiles, other=LOWEST)
    taken = tl.zeros((TILES,), tl.int32)
    slot = tl.arange(0, MOST)
    chosen = tl.full((MOST,), LOWEST, tl.int64)
    for rank in range(count):
        best = tl.max(current, 0)
        chosen = tl.where(slot == rank, best, chosen)
        won = current == best
        taken += won.to(tl.int32)
        left = won & (taken < count)
        following = tl.load(heads + taken, mask=left, other=LOWEST)
        current = tl.where(won, following, current)
    return chosen


@triton.jit
def choose(
    logits, stride, table, adjusted, candidates, masses, tokens, shares, vocab_size, num_tiles,
    SPREAD: tl.constexpr, BY_ID: tl.constexpr, MOST: tl.constexpr, TILES: tl.constexpr,
    TILE: tl.constexpr,
):
    """The token of one row, -1 if its logits are not finite, UNRANKED if it needs more choices.

    :param SPREAD: whether the probabilities of a row with few choices go to ``shares`` ``[R, V]``,
        which hold zeros. :param BY_ID: draw it in the order of ids, not of ranks.
    """
    wait()
    release()
    r = tl.program_id(0).to(tl.int64)
    best = best_of(candidates, r, num_tiles, MOST, TILES)
    token = tl.where(is_finite(best), id_of(best), -1)
    row = table + r * COLUMNS
    count = tl.load(row + COUNT).to(tl.int32)
    number = number_at(row + NUMBER)
    is_whole = tl.load(row + IS_WHOLE) != 0
    if (token >= 0) & is_whole & (count == 1):
        tile, before, target = find_tile(masses + r * num_tiles, number, num_tiles, TILES)
        ids = tile * TILE + tl.arange(0, TILE)
        weights = tile_weights(
            logits, stride, adjusted, row, r, ids, logit_of(best), vocab_size)
        token = find_id(weights, ids, before, target)
    elif (token >= 0) & (count > 1):
        chosen = best_keys(candidates, r, count, num_tiles, MOST, TILES)
        slot = tl.arange(0, MOST)
        weights = weights_of(logit_of(chosen), logit_of(best), row).to(tl.float64)
        weights = tl.where(slot < count, weights, 0.0)
        before = tl.cumsum(weights, 0) - weights
        mass = tl.sum(weights, 0)
        if is_whole:
            mass = total_of(masses + r * num_tiles, num_tiles, TILES)
        reached = before >= number_at(row + TOP_P) * mass
        kept = tl.where(reached & (before > 0), 0.0, weights)
        summed = tl.cumsum(kept, 0)
        total = tl.max(summed, 0)
        if BY_ID:
            token = draw_by_id(kept, id_of(chosen), number, MOST)
        else:
            found = tl.sum(((summed <= number * total) & (slot < count)).to(tl.int32), 0)
            found = tl.minimum(found, count - 1)
            token = tl.sum(tl.where(slot == found, id_of(chosen), 0), 0)
        if SPREAD:
            to = shares + r * vocab_size + id_of(chosen)
            tl.store(to, kept / total, mask=slot < count)
        last = tl.sum(tl.where(slot == count - 1, kept, 0.0), 0)
        if is_whole & (last > 0) & (count < vocab_size):
            token = tl.full((), UNRANKED, tl.int32)
    elif (token >= 0) & SPREAD:
        tl.store(shares + r * vocab_size + token, 1.0)
    tl.store(tokens + r, token.to(tl.int64))


@triton.jit
def spread(
    logits, stride, table, adjusted, candidates, masses, shares, vocab_size, num_tiles,
    MOST: tl.constexpr, TILES: tl.constexpr, TILE: tl.constexpr,
):
    """Probabilities of one tile of a whole row."""
    wait()
    release()
    tile = tl.program_id(0)
    r = tl.program_id(1).to(tl.int64)
    row = table + r * COLUMNS
    if tl.load(row + IS_WHOLE) != 0:
        best = best_of(candidates, r, num_tiles, MOST, TILES)
        if is_finite(best):
            every = tl.arange(0, TILES)
            found = tl.load(
                masses + r * num_tiles + every, mask=every < num_tiles, other=0.0)
            ids = tile * TILE + tl.arange(0, TILE)
            weights = tile_weights(
                logits, stride, adjusted, row, r, ids, logit_of(best), vocab_size)
            tl.store(shares + r * vocab_size + ids, weights / tl.sum(found, 0),
                     mask=ids < vocab_size)
