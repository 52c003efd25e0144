"""The products of `expert_groups` for compute capability 90: one group of warps asks for weights
and activations, and two have half of a program's rows each. A group decodes half a block of weights
into registers while the other half is multiplied.

A program takes one *unit* after another: 256 rows of an expert's matrix, and a group of pairs.
Weights are ``(codes, high, scales, divisor)`` of fragments of kind ``(bits, offset, group)``. A
*ring* is slots for blocks: of each slot activations, elements, words beyond these, scales, and what
says that its block is there, and that both groups have done with it.
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

from ninfer_triton_kernels.kernels.hopper_halves import (
    ELEMENTS,
    HALF,
    HIGH_PAIRS,
    ROWS,
    TILES,
    decoded_half,
    read_block,
)
from ninfer_triton_kernels.kernels.overlap import release, wait
from ninfer_triton_kernels.kernels.products import UNLIMITED
from ninfer_triton_kernels.kernels.tiled import longer
from ninfer_triton_kernels.kernels.warp_groups import WARPS, meet

PAIRS = gl.constexpr(128)
"""Most of a unit."""

LOOSE = gl.constexpr(3)
"""Slots whose blocks need not be on their way: two that are multiplied, and one more, that a group
may be ahead of the other."""

GROUP_REGISTERS, ASKING_REGISTERS = gl.constexpr(208), gl.constexpr(88)
"""Of a thread."""

ASKED = gl.constexpr(gl.BlockedLayout([1, 8], [8, 4], [WARPS, 1], [1, 0]))
"""Of half a block of activations."""

FLAT = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
"""Of weights in shared memory: as they are stored."""


@gluon.constexpr_function
def slots_of(bits, gated):
    """As many as shared memory has room for, beside the sums of down."""
    return 8 if gated else 5 if bits == 6 else 6


@gluon.constexpr_function
def words_by(each):
    """Words of a tile, ``each`` for a block, one for a thread."""
    return gl.BlockedLayout([1, 1], [32 // each, each], [WARPS, 1], [1, 0])


@gluon.constexpr_function
def sums_of(count):
    """fp32 sums of a group and so many pairs."""
    return gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, count, 16])


@gluon.constexpr_function
def operand_of(count):
    """Weights that are multiplied with activations of so many pairs."""
    return gl.DotOperandLayout(0, sums_of(count), 2)


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
def words_of_unit(
    base, unit, row_blocks, expert, width, num_blocks, EACH: gl.constexpr, SWAPPED: gl.constexpr,
    GATED: gl.constexpr, LAYOUT: gl.constexpr,
):
    """Addresses ``[2 * TILES, EACH]`` of the words of a unit's first block; neighbours swapped, if
    they lie so."""
    i = gl.arange(0, 2 * TILES, layout=gl.SliceLayout(1, LAYOUT))
    k = gl.arange(0, EACH, layout=gl.SliceLayout(0, LAYOUT))
    if SWAPPED:
        k = k ^ 1
    tile = tiles_of(i % TILES, unit % row_blocks * 2 + i // TILES, expert, width, GATED)
    words = base.to(gl.pointer_type(gl.int32), bitcast=True)
    return words + (tile * num_blocks * EACH)[:, None] + k[None, :]


@gluon.jit
def weights_of_unit(
    weights, table, unit, row_blocks, width, num_blocks, KIND: gl.constexpr, GATED: gl.constexpr,
):
    """Where a unit's first block is: elements, words beyond these, and scales."""
    BITS: gl.constexpr = KIND[0]
    SCALES: gl.constexpr = 16 if KIND[2] == 16 else 8
    codes, high, scales, _ = weights
    expert = gl.load(table + unit // row_blocks).to(gl.int64)
    elements = words_of_unit(
        codes, unit, row_blocks, expert, width, num_blocks, 128, False, GATED, ELEMENTS)
    more = elements
    if BITS == 5:
        more = words_of_unit(
            high, unit, row_blocks, expert, width, num_blocks, 32, True, GATED, words_by(32))
    if BITS == 6:
        more = words_of_unit(
            high, unit, row_blocks, expert, width, num_blocks, 64, False, GATED, HIGH_PAIRS)
    scale = words_of_unit(
        scales, unit, row_blocks, expert, width, num_blocks, SCALES, False, GATED,
        words_by(SCALES))
    return elements, more, scale


@gluon.jit
def make_ring(KIND: gl.constexpr, GATED: gl.constexpr):
    SLOTS: gl.constexpr = slots_of(KIND[0], GATED)
    HELD: gl.constexpr = gl.NVMMASharedLayout.get_default_for([PAIRS, HALF], gl.bfloat16)
    values = gl.allocate_shared_memory(gl.bfloat16, [2 * SLOTS, PAIRS, HALF], HELD)
    elements = gl.allocate_shared_memory(gl.int32, [SLOTS, 2 * TILES, 128], FLAT)
    more = elements
    if KIND[0] > 4:
        more = gl.allocate_shared_memory(
            gl.int32, [SLOTS, 2 * TILES, 32 * (KIND[0] - 4)], FLAT)
    scales = gl.allocate_shared_memory(
        gl.int32, [SLOTS, 2 * TILES, 16 if KIND[2] == 16 else 8], FLAT)
    ready = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(SLOTS):
        mbarrier.init(ready.index(slot), count=1)
        mbarrier.init(free.index(slot), count=2)
    fence_async_shared()
    return values, elements, more, scales, ready, free


@gluon.jit
def wait_for_room(free, index):
    """For block ``index`` of a program."""
    SLOTS: gl.constexpr = free.shape[0]
    mbarrier.wait(free.index(index % SLOTS), (index // SLOTS + 1) % 2, pred=index >= SLOTS)


@gluon.jit
def say_ready(ready, index):
    """Of a block, once all warps have made it visible."""
    SLOTS: gl.constexpr = ready.shape[0]
    meet()
    mbarrier.arrive(ready.index(gl.maximum(index, 0) % SLOTS), count=1, pred=index >= 0)


@gluon.jit
def ask_for_unit(
    x, rows, exists, weights, padded, num_blocks, index, ring, KIND: gl.constexpr,
):
    """All blocks of a unit, each once its slot is free."""
    values, elements, more, scales, ready, free = ring
    SLOTS: gl.constexpr = ready.shape[0]
    k = gl.arange(0, HALF, layout=gl.SliceLayout(0, ASKED))
    at = x + rows.to(gl.int64)[:, None] * padded + k[None, :]
    live = exists[:, None]
    for block in range(num_blocks):
        slot = index % SLOTS
        wait_for_room(free, index)
        async_copy.async_copy_global_to_shared(elements.index(slot), weights[0] + block * 128)
        if KIND[0] > 4:
            async_copy.async_copy_global_to_shared(
                more.index(slot), weights[1] + block * (32 * (KIND[0] - 4)))
        async_copy.async_copy_global_to_shared(
            scales.index(slot), weights[2] + block * (16 if KIND[2] == 16 else 8))
        async_copy.async_copy_global_to_shared(values.index(2 * slot), at, live)
        async_copy.async_copy_global_to_shared(values.index(2 * slot + 1), at + HALF, live)
        async_copy.commit_group()
        async_copy.wait_group(SLOTS - LOOSE)
        fence_async_shared()
        say_ready(ready, index - (SLOTS - LOOSE))
        at += 2 * HALF
        index += 1
    return index


@gluon.jit
def activations_of_unit(order, begin, end, TOP_K: gl.constexpr):
    """Which rows of activations a unit has, and whether they exist."""
    place = begin + gl.arange(0, PAIRS, layout=gl.SliceLayout(1, ASKED))
    rows, exists = place, place < end
    if TOP_K > 0:
        rows = gl.load(order + place, mask=exists, other=0) // TOP_K
    return rows, exists


@gluon.jit
def ask(
    x, order, table, weights, units, row_blocks, groups, num_blocks, width, padded, ring,
    KIND: gl.constexpr, GATED: gl.constexpr, TOP_K: gl.constexpr,
):
    """What the asking group does; ``TOP_K`` is 0 if activations are by place, not by token. A block
    more than there are is said to be there, for those who look ahead."""
    ready, free = ring[4], ring[5]
    FLIGHT: gl.constexpr = ready.shape[0] - LOOSE
    index, unit = 0, gl.program_id(0)
    begin, end = pairs_of(table, unit, row_blocks, groups)
    rows, exists = activations_of_unit(order, begin, end, TOP_K)
    for unit in range(gl.program_id(0), units, gl.num_programs(0)):
        next_unit = gl.minimum(unit + gl.num_programs(0), units - 1)
        next_begin, next_end = pairs_of(table, next_unit, row_blocks, groups)
        next_rows, next_exists = activations_of_unit(order, next_begin, next_end, TOP_K)
        if begin < end:
            stored = weights_of_unit(
                weights, table, unit, row_blocks, width, num_blocks, KIND, GATED)
            index = ask_for_unit(x, rows, exists, stored, padded, num_blocks, index, ring, KIND)
        begin, end, rows, exists = next_begin, next_end, next_rows, next_exists
    async_copy.wait_group(0)
    fence_async_shared()
    for i in gl.static_range(FLIGHT):
        say_ready(ready, index - FLIGHT + i)
    wait_for_room(free, index)
    say_ready(ready, index)


@gluon.jit
def read_ahead(index, ring, OWN: gl.constexpr, KIND: gl.constexpr):
    """A group's weights of a block, once they are there."""
    SLOTS: gl.constexpr = ring[4].shape[0]
    slot = index % SLOTS
    mbarrier.wait(ring[4].index(slot), index // SLOTS % 2)
    return read_block(
        ring[1].index(slot), ring[2].index(slot), ring[3].index(slot), OWN, KIND)


@gluon.jit
def multiply_half(weights, values, totals, SIZES: gl.constexpr):
    """``totals`` and the products of half a block, under way."""
    after = ()
    for i in gl.static_range(len(SIZES)):
        own = values.slice(SIZES[0] * i, SIZES[i], dim=0).permute([1, 0])
        operand = gl.convert_layout(weights, operand_of(SIZES[i]), assert_trivial=True)
        after = longer(after, warpgroup_mma(operand, own, totals[i], is_async=True))
    return after


@gluon.jit
def ended(totals, HALVES: gl.constexpr, SIZES: gl.constexpr):
    """Sums when all but the products of so many halves of a block are through."""
    if len(SIZES) == 1:
        after = (warpgroup_mma_wait(HALVES, deps=[totals[0]]),)
    else:
        after = warpgroup_mma_wait(2 * HALVES, deps=[totals[0], totals[1]])
    return after


@gluon.jit
def multiply_unit(
    stored, half, num_blocks, index, ring, OWN: gl.constexpr, KIND: gl.constexpr,
    SIZES: gl.constexpr,
):
    """fp32 sums of ``ROWS`` rows of weights by ``SIZES`` pairs, two at most, the first the larger.
    What is stored of the first block is given, and its first half decoded; as much of the block
    behind the last is returned. Products must end before the loop does, or the assembler lets each
    wait for the one before."""
    values, free = ring[0], ring[5]
    SLOTS: gl.constexpr = free.shape[0]
    OPERAND: gl.constexpr = half.type.layout
    totals = ()
    for i in gl.static_range(len(SIZES)):
        totals = longer(totals, gl.zeros([ROWS, SIZES[i]], gl.float32, layout=sums_of(SIZES[i])))
    for _ in range(num_blocks):
        slot = index % SLOTS
        ahead = read_ahead(index + 1, ring, OWN, KIND)
        totals = multiply_half(half, values.index(2 * slot), totals, SIZES)
        other = decoded_half(stored, True, KIND, OPERAND)
        totals = multiply_half(other, values.index(2 * slot + 1), totals, SIZES)
        stored = ahead
        totals = ended(totals, 1, SIZES)
        half = decoded_half(stored, False, KIND, OPERAND)
        totals = ended(totals, 0, SIZES)
        mbarrier.arrive(free.index(slot), count=1)
        index += 1
    return totals, stored, half, index


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
    order, out, divisor, stored, half, begin, end, block, expert, width, num_blocks, index, ring,
    OWN: gl.constexpr, KIND: gl.constexpr, GATED: gl.constexpr, LIMIT: gl.constexpr,
    SIZES: gl.constexpr,
):
    """A unit of at most so many pairs as ``SIZES`` come to; takes and returns what
    `multiply_unit` does of blocks."""
    totals, stored, half, index = multiply_unit(
        stored, half, num_blocks, index, ring, OWN, KIND, SIZES)
    for i in gl.static_range(len(SIZES)):
        total, first = totals[i], begin + SIZES[0] * i
        if KIND[2] == 16:
            own = gl.arange(0, ROWS, layout=gl.SliceLayout(1, total.type.layout)) // 16
            tile = tiles_of(own, block, expert, width, GATED)
            total *= (128.0 / gl.load(divisor + tile))[:, None]
        if GATED:
            store_gated(total, out, first, end, block, width, LIMIT)
        else:
            store_sums(total, order, out, first, end, block, width)
    return stored, half, index


@gluon.jit
def multiply(
    order, table, out, divisor, units, row_blocks, groups, num_blocks, width, ring,
    OWN: gl.constexpr, KIND: gl.constexpr, GATED: gl.constexpr, LIMIT: gl.constexpr,
):
    """What a group does that multiplies, the first or second half of the rows of units."""
    index, unit = 0, gl.program_id(0)
    begin, end = pairs_of(table, unit, row_blocks, groups)
    block, expert = rows_of(table, unit, row_blocks, OWN)
    stored = read_ahead(0, ring, OWN, KIND)
    half = decoded_half(stored, False, KIND, operand_of(PAIRS))
    for unit in range(gl.program_id(0), units, gl.num_programs(0)):
        next_unit = gl.minimum(unit + gl.num_programs(0), units - 1)
        next_begin, next_end = pairs_of(table, next_unit, row_blocks, groups)
        next_block, next_expert = rows_of(table, next_unit, row_blocks, OWN)
        count = end - begin
        if count > 96:
            stored, half, index = finish_unit(
                order, out, divisor, stored, half, begin, end, block, expert, width, num_blocks,
                index, ring, OWN, KIND, GATED, LIMIT, (128,))
        elif count > 64:
            stored, half, index = finish_unit(
                order, out, divisor, stored, half, begin, end, block, expert, width, num_blocks,
                index, ring, OWN, KIND, GATED, LIMIT, (64, 32))
        elif count > 32:
            stored, half, index = finish_unit(
                order, out, divisor, stored, half, begin, end, block, expert, width, num_blocks,
                index, ring, OWN, KIND, GATED, LIMIT, (64,))
        elif count > 0:
            stored, half, index = finish_unit(
                order, out, divisor, stored, half, begin, end, block, expert, width, num_blocks,
                index, ring, OWN, KIND, GATED, LIMIT, (32,))
        block, expert, begin, end = next_block, next_expert, next_begin, next_end


@gluon.jit(do_not_specialize=["units", "groups"])
def multiply_groups(
    x, order, table, out, codes, high, scales, divisor, units, row_blocks, groups, num_blocks,
    width, padded, BITS: gl.constexpr, OFFSET: gl.constexpr, GROUP: gl.constexpr,
    GATED: gl.constexpr, LIMIT: gl.constexpr, TOP_K: gl.constexpr,
):
    """As `expert_groups.gate_up_of_group` with ``GATED``, else as `expert_groups.down_of_group`.
    Rows of ``x`` have ``padded`` columns, those of ``out`` ``width``, whole tiles."""
    KIND: gl.constexpr = (BITS, OFFSET, GROUP)
    weights, ring = (codes, high, scales, divisor), make_ring(KIND, GATED)
    wait()
    release()
    gl.warp_specialize([
        (multiply, (order, table, out, divisor, units, row_blocks, groups, num_blocks, width, ring,
                    0, KIND, GATED, LIMIT)),
        (multiply, (order, table, out, divisor, units, row_blocks, groups, num_blocks, width, ring,
                    1, KIND, GATED, LIMIT)),
        (ask, (x, order, table, weights, units, row_blocks, groups, num_blocks, width, padded, ring,
               KIND, GATED, TOP_K)),
    ], [WARPS, WARPS], [GROUP_REGISTERS, ASKING_REGISTERS])
