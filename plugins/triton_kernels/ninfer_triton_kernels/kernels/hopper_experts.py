"""The products of `expert_groups` for compute capability 90: one group of warps asks for
activations, and two have half of a program's rows each. A group decodes half a block of weights
into registers while the other half is multiplied.

A program takes one *unit* after another: 256 rows of an expert's matrix, and a group of pairs.
Weights are ``(codes, high, scales, divisor)`` of fragments of kind ``(bits, offset, group)``, and a
*ring* is slots for blocks of activations, and of each slot what says that its block is there, and
that both groups have done with it.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from ninfer_triton_kernels.kernels.decoders import codes_at, moved
from ninfer_triton_kernels.kernels.expert_groups import scaled_plane
from ninfer_triton_kernels.kernels.overlap import release, wait
from ninfer_triton_kernels.kernels.products import UNLIMITED
from ninfer_triton_kernels.kernels.warp_groups import WARPS, meet

ROWS = gl.constexpr(128)
"""Of a group that multiplies."""

PAIRS = gl.constexpr(128)
"""Most of a unit."""

HALF = gl.constexpr(32)
"""Columns of half a block."""

SLOTS = gl.constexpr(8)
"""Blocks of activations that shared memory has room for."""

BEHIND = gl.constexpr(4)
"""Blocks that are asked for before the first of them is said to be there."""

GROUP_REGISTERS, ASKING_REGISTERS = gl.constexpr(224), gl.constexpr(56)
"""Of a thread."""

WORDS = gl.constexpr(gl.DistributedLinearLayout(
    reg_bases=[[0, 0, 1], [0, 0, 2], [4, 0, 0]],
    lane_bases=[[0, 1, 0], [0, 2, 0], [0, 4, 0], [0, 8, 0], [0, 16, 0]],
    warp_bases=[[1, 0, 0], [2, 0, 0]], block_bases=[], shape=[8, 32, 4]))
"""Words of a block, by tile, lane, and (column half, row half)."""

LANES = gl.constexpr(gl.SliceLayout(2, WORDS))
TILES = gl.constexpr(gl.SliceLayout(1, LANES))
INDEX = gl.constexpr(gl.SliceLayout(0, gl.SliceLayout(1, WORDS)))
"""Of words: each dimension alone."""

ASKED = gl.constexpr(gl.BlockedLayout([1, 8], [8, 4], [WARPS, 1], [1, 0]))
"""Of half a block of activations."""


@gluon.jit
def pairs_of(table, unit, row_blocks, groups):
    """Where the pairs of a unit begin and end."""
    group = unit // row_blocks
    return gl.load(table + groups + group), gl.load(table + 2 * groups + group)


@gluon.jit
def rows_of(table, unit, row_blocks, OWN: gl.constexpr):
    """Which rows of its matrix a group has of a unit, in `ROWS`, and the expert."""
    return unit % row_blocks * 2 + OWN, gl.load(table + unit // row_blocks).to(gl.int64)


@gluon.jit
def tiles_of(i, block, expert, width, GATED: gl.constexpr):
    """Tiles ``i`` of 8, among those of all experts, as `expert_groups.tiles_of_halves` has them."""
    tiles = (width + 15) // 16
    if GATED:
        tile = gl.minimum(block * 4 + i % 4, tiles - 1) + i // 4 * tiles + expert * (2 * tiles)
    else:
        tile = gl.minimum(block * 8 + i, tiles - 1) + expert * tiles
    return tile


@gluon.jit
def as_words(base):
    return base.to(gl.pointer_type(gl.int32), bitcast=True)


@gluon.jit
def fetch(weights, tile, block, num_blocks, KIND: gl.constexpr):
    """What a block of 8 tiles is made of, as stored: elements, words beyond these, and scales; a
    block behind the last is the last."""
    BITS: gl.constexpr = KIND[0]
    codes, high, scales, _ = weights
    lane = gl.arange(0, 32, layout=gl.SliceLayout(0, LANES))[None, :]
    w = gl.arange(0, 4, layout=INDEX)[None, None, :]
    at = (tile * num_blocks + gl.minimum(block, num_blocks - 1))[:, None]
    words = gl.load(as_words(codes) + (at * 128 + lane * 4)[:, :, None] + w)
    more = words
    if BITS == 5:
        more = gl.load(as_words(high) + at * 32 + (lane ^ 1))
    if BITS == 6:
        more = gl.load(as_words(high) + (at * 64 + lane * 2)[:, :, None] + w // 2)
    if KIND[2] == 16:
        scale = gl.load(as_words(scales) + at * 16 + lane // 2)
    else:
        scale = gl.load(as_words(scales) + at * 8 + lane // 4)
    return words, more, scale


@gluon.jit
def multiplied(words, factors):
    """bf16 pairs by others; exact products only."""
    return gl.inline_asm_elementwise("mul.rn.bf16x2 $0, $1, $2;", "=r,r,r", [words, factors],
                                     dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def by_word(low, high):
    """What rows g and g + 8 are multiplied with, by lane, for each word."""
    w = gl.arange(0, 4, layout=INDEX)[None, None, :]
    return gl.where(w % 2 == 0, low[:, :, None], high[:, :, None])


@gluon.jit
def last_of_five(words, more):
    """The fourth plane of codes of 5 bits: three are in the high word, and of the last one bit in
    each word."""
    w = gl.arange(0, 4, layout=INDEX)[None, None, :]
    last = gl.sum((words >> (15 - w)) & (0x10001 << w), 2) | moved(more, -11, 16, 0x4300)
    some = by_word(codes_at(more, 0, 5), codes_at(more, 5, 5))
    return gl.where(w == 3, last[:, :, None],
                    gl.where(w == 2, codes_at(more, 10, 5)[:, :, None], some))


@gluon.jit
def affine_half(words, more, BITS: gl.constexpr, SECOND: gl.constexpr):
    """Two planes of those of `decoders.affine_planes`."""
    if not SECOND:
        one, two = codes_at(words, 0, BITS), codes_at(words, BITS, BITS)
    elif BITS == 4:
        one, two = codes_at(words, 8, 4), codes_at(words, 12, 4)
    elif BITS == 5:
        one, two = codes_at(words, 10, 5), last_of_five(words, more)
    else:
        w = gl.arange(0, 4, layout=INDEX)[None, None, :]
        one = codes_at(more >> w % 2 * 6, 0, 6)
        two = codes_at(words, 12, 4) | moved(more >> w % 2 * 2, -8, 0x30)
    return one, two


@gluon.jit
def e2m1_half(words, scale, SECOND: gl.constexpr):
    """Two planes of those of `decoders.e2m1_planes`."""
    if SECOND:
        one = moved(words, 6, 0x01C0) | moved(words, 1, 0x8000)
        two = moved(words, -3, 0x01C0) | moved(words, 2, 0x8000)
        scale = moved(scale, -4, 0x0FF0, 0x7000)
    else:
        one, two = moved(words, 0, 0x81C0), moved(words, 3, 0x81C0)
        scale = moved(scale, 4, 0x0FF0, 0x7000)
    low, high = scale & 0xFFFF, scale >> 16 & 0xFFFF
    factors = by_word(low | low << 16, high | high << 16)
    return multiplied(one, factors), multiplied(two, factors)


@gluon.jit
def decoded(step, SECOND: gl.constexpr, KIND: gl.constexpr, LAYOUT: gl.constexpr):
    """The first or second half of a block as bf16 ``[ROWS, HALF]``, columns as
    `expert_groups.in_fragment_order` has them."""
    words, more, scale = step
    if KIND[2] == 16:
        one, two = e2m1_half(words, scale, SECOND)
    else:
        one, two = affine_half(words, more, KIND[0], SECOND)
        low = scale.to(gl.int16).to(gl.float16, bitcast=True).to(gl.float32)
        high = (scale >> 16).to(gl.int16).to(gl.float16, bitcast=True).to(gl.float32)
        factor = by_word(low, high)
        one = scaled_plane(one, factor, factor, 128.0 + KIND[1], False)
        two = scaled_plane(two, factor, factor, 128.0 + KIND[1], False)
    both = gl.join(one, two)
    low = both.to(gl.int16).to(gl.bfloat16, bitcast=True)
    pairs = gl.join(low, (both >> 16).to(gl.int16).to(gl.bfloat16, bitcast=True))
    parts = gl.reshape(pairs, [8, 8, 4, 2, 2, 2, 2])  # tile, g, t, column half, row half, plane
    ordered = gl.reshape(gl.permute(parts, [0, 4, 1, 5, 3, 2, 6]), [ROWS, HALF])
    return gl.convert_layout(ordered, LAYOUT, assert_trivial=True)


@gluon.jit
def make_ring():
    HELD: gl.constexpr = gl.NVMMASharedLayout.get_default_for([PAIRS, HALF], gl.bfloat16)
    slots = gl.allocate_shared_memory(gl.bfloat16, [2 * SLOTS, PAIRS, HALF], HELD)
    ready = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(SLOTS):
        mbarrier.init(ready.index(slot), count=1)
        mbarrier.init(free.index(slot), count=2)
    fence_async_shared()
    return slots, ready, free


@gluon.jit
def say_ready(ready, index):
    """Of a block of activations, once all warps have made it visible."""
    meet()
    mbarrier.arrive(ready.index(gl.maximum(index, 0) % SLOTS), count=1, pred=index >= 0)


@gluon.jit
def ask_for_unit(x, rows, exists, padded, num_blocks, index, ring):
    """All blocks of the activations of a unit, each once its slot is free."""
    slots, ready, free = ring
    k = gl.arange(0, HALF, layout=gl.SliceLayout(0, ASKED))
    at = x + rows.to(gl.int64)[:, None] * padded + k[None, :]
    live = exists[:, None]
    for _ in range(num_blocks):
        slot, turn = index % SLOTS, index // SLOTS
        mbarrier.wait(free.index(slot), (turn + 1) % 2, pred=turn > 0)
        async_copy.async_copy_global_to_shared(slots.index(2 * slot), at, live)
        async_copy.async_copy_global_to_shared(slots.index(2 * slot + 1), at + HALF, live)
        async_copy.commit_group()
        async_copy.wait_group(BEHIND)
        fence_async_shared()
        say_ready(ready, index - BEHIND)
        at += 2 * HALF
        index += 1
    return index


@gluon.jit
def ask(x, order, table, units, row_blocks, groups, num_blocks, padded, ring, TOP_K: gl.constexpr):
    """What the asking group does; ``TOP_K`` is 0 if activations are by place, not by token."""
    index = 0
    for unit in range(gl.program_id(0), units, gl.num_programs(0)):
        begin, end = pairs_of(table, unit, row_blocks, groups)
        if begin < end:
            place = begin + gl.arange(0, PAIRS, layout=gl.SliceLayout(1, ASKED))
            rows, exists = place, place < end
            if TOP_K > 0:
                rows = gl.load(order + place, mask=exists, other=0) // TOP_K
            index = ask_for_unit(x, rows, exists, padded, num_blocks, index, ring)
    async_copy.wait_group(0)
    fence_async_shared()
    for i in gl.static_range(BEHIND):
        say_ready(ring[1], index - BEHIND + i)


@gluon.jit
def multiply_unit(
    weights, tile, one, two, num_blocks, index, ring, KIND: gl.constexpr, N: gl.constexpr,
):
    """``ROWS`` rows of weights, of which the first two blocks are given, by ``N`` rows of
    activations, fp32. Both products of a block are under way while the next is decoded; they must
    end before the loop does, or the assembler lets each wait for the one before."""
    slots, ready, free = ring
    TOTAL: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, N, 16])
    LAYOUT: gl.constexpr = gl.DotOperandLayout(0, TOTAL, 2)
    total = gl.zeros([ROWS, N], gl.float32, layout=TOTAL)
    first = decoded(one, False, KIND, LAYOUT)
    for block in range(num_blocks):
        slot = index % SLOTS
        mbarrier.wait(ready.index(slot), index // SLOTS % 2)
        values = slots.index(2 * slot).slice(0, N, dim=0).permute([1, 0])
        total = warpgroup_mma(first, values, total, is_async=True)
        second = decoded(one, True, KIND, LAYOUT)
        values = slots.index(2 * slot + 1).slice(0, N, dim=0).permute([1, 0])
        total = warpgroup_mma(second, values, total, is_async=True)
        one = two
        two = fetch(weights, tile, block + 2, num_blocks, KIND)
        total = warpgroup_mma_wait(1, deps=[total])
        first = decoded(one, False, KIND, LAYOUT)
        total = warpgroup_mma_wait(0, deps=[total])
        mbarrier.arrive(free.index(slot), count=1)
        index += 1
    return total, index


@gluon.jit
def gated_halves(total, LIMIT: gl.constexpr):
    """As `expert_groups.gated_halves`."""
    halves = gl.reshape(total, [2, ROWS // 2, total.shape[1]])
    gates, ups = gl.split(gl.permute(halves, [1, 2, 0]))
    if LIMIT != UNLIMITED:
        gates, ups = gl.minimum(gates, LIMIT), gl.minimum(gl.maximum(ups, -LIMIT), LIMIT)
    return gates / (1 + gl.exp(-gates)) * ups


@gluon.jit
def store_gated(total, out, begin, end, block, width, LIMIT: gl.constexpr):
    """``silu(gate) * up`` by place, columns as `expert_groups.arrange_columns` has them."""
    N: gl.constexpr = total.shape[1]
    WIDTH: gl.constexpr = ROWS // 2
    STORED: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [WARPS, 1], [1, 0])
    values = gl.permute(gated_halves(total, LIMIT).to(gl.bfloat16), [1, 0])
    parts = gl.reshape(values, [N, WIDTH // 32, 4, 2, 2, 2])
    values = gl.reshape(gl.permute(parts, [0, 1, 3, 4, 2, 5]), [N, WIDTH])
    place = begin + gl.arange(0, N, layout=gl.SliceLayout(1, STORED))
    n = block * WIDTH + gl.arange(0, WIDTH, layout=gl.SliceLayout(0, STORED))
    at = out + place.to(gl.int64)[:, None] * width + n[None, :]
    live = (place < end)[:, None] & (n < width)[None, :]
    gl.store(at, gl.convert_layout(values, STORED), mask=live)


@gluon.jit
def store_sums(total, order, out, begin, end, block, width):
    """Sums by pair, by way of shared memory: a change of layout would take many turns."""
    N: gl.constexpr = total.shape[1]
    HELD: gl.constexpr = gl.NVMMASharedLayout.get_default_for([N, ROWS], gl.bfloat16)
    STORED: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [WARPS, 1], [1, 0])
    values = gl.permute(total.to(gl.bfloat16), [1, 0])
    held = gl.allocate_shared_memory(gl.bfloat16, [N, ROWS], HELD, values)
    place = begin + gl.arange(0, N, layout=gl.SliceLayout(1, STORED))
    pair = gl.load(order + place, mask=place < end, other=0).to(gl.int64)
    n = block * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(0, STORED))
    meet()
    at = out + pair[:, None] * width + n[None, :]
    live = (place < end)[:, None] & (n < width)[None, :]
    gl.store(at, held.load(STORED), mask=live)


@gluon.jit
def finish_unit(
    order, out, weights, tile, ahead, blocks, begin, end, block, expert, width, num_blocks, index,
    ring, KIND: gl.constexpr, GATED: gl.constexpr, LIMIT: gl.constexpr, N: gl.constexpr,
):
    """A unit of at most ``N`` pairs, and the first blocks of the next, of tiles ``ahead``, which
    are asked for before the sums are stored."""
    total, index = multiply_unit(
        weights, tile, blocks[0], blocks[1], num_blocks, index, ring, KIND, N)
    one = fetch(weights, ahead, 0, num_blocks, KIND)
    two = fetch(weights, ahead, 1, num_blocks, KIND)
    if KIND[2] == 16:
        own = gl.arange(0, ROWS, layout=gl.SliceLayout(1, total.type.layout)) // 16
        divisor = gl.load(weights[3] + tiles_of(own, block, expert, width, GATED))
        total *= (128.0 / divisor)[:, None]
    if GATED:
        store_gated(total, out, begin, end, block, width, LIMIT)
    else:
        store_sums(total, order, out, begin, end, block, width)
    return (one, two), index


@gluon.jit
def multiply(
    order, table, out, weights, units, row_blocks, groups, num_blocks, width, ring,
    OWN: gl.constexpr, KIND: gl.constexpr, GATED: gl.constexpr, LIMIT: gl.constexpr,
):
    """What a group does that multiplies, the first or second half of the rows of units."""
    index, unit = 0, gl.program_id(0)
    begin, end = pairs_of(table, unit, row_blocks, groups)
    block, expert = rows_of(table, unit, row_blocks, OWN)
    i = gl.arange(0, 8, layout=TILES)
    tile = tiles_of(i, block, expert, width, GATED)
    blocks = (fetch(weights, tile, 0, num_blocks, KIND), fetch(weights, tile, 1, num_blocks, KIND))
    for unit in range(gl.program_id(0), units, gl.num_programs(0)):
        next_unit = gl.minimum(unit + gl.num_programs(0), units - 1)
        next_begin, next_end = pairs_of(table, next_unit, row_blocks, groups)
        next_block, next_expert = rows_of(table, next_unit, row_blocks, OWN)
        ahead = tiles_of(i, next_block, next_expert, width, GATED)
        count = end - begin
        if count > 64:
            blocks, index = finish_unit(
                order, out, weights, tile, ahead, blocks, begin, end, block, expert, width,
                num_blocks, index, ring, KIND, GATED, LIMIT, 128)
        elif count > 32:
            blocks, index = finish_unit(
                order, out, weights, tile, ahead, blocks, begin, end, block, expert, width,
                num_blocks, index, ring, KIND, GATED, LIMIT, 64)
        elif count > 16:
            blocks, index = finish_unit(
                order, out, weights, tile, ahead, blocks, begin, end, block, expert, width,
                num_blocks, index, ring, KIND, GATED, LIMIT, 32)
        elif count > 0:
            blocks, index = finish_unit(
                order, out, weights, tile, ahead, blocks, begin, end, block, expert, width,
                num_blocks, index, ring, KIND, GATED, LIMIT, 16)
        block, expert, tile, begin, end = next_block, next_expert, ahead, next_begin, next_end


@gluon.jit(do_not_specialize=["units", "groups"])
def multiply_groups(
    x, order, table, out, codes, high, scales, divisor, units, row_blocks, groups, num_blocks,
    width, padded, BITS: gl.constexpr, OFFSET: gl.constexpr, GROUP: gl.constexpr,
    GATED: gl.constexpr, LIMIT: gl.constexpr, TOP_K: gl.constexpr,
):
    """As `expert_groups.gate_up_of_group` with ``GATED``, else as `expert_groups.down_of_group`.
    Rows of ``x`` have ``padded`` columns, those of ``out`` ``width``, whole tiles."""
    KIND: gl.constexpr = (BITS, OFFSET, GROUP)
    weights, ring = (codes, high, scales, divisor), make_ring()
    wait()
    release()
    gl.warp_specialize([
        (multiply, (order, table, out, weights, units, row_blocks, groups, num_blocks, width, ring,
                    0, KIND, GATED, LIMIT)),
        (multiply, (order, table, out, weights, units, row_blocks, groups, num_blocks, width, ring,
                    1, KIND, GATED, LIMIT)),
        (ask, (x, order, table, units, row_blocks, groups, num_blocks, padded, ring, TOP_K)),
    ], [WARPS, WARPS], [GROUP_REGISTERS, ASKING_REGISTERS])
