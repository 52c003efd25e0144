"""`tiled.tiled_linear` for compute capability 90 and 9 to 32 rows of activations a program, to the
same bits: its matrix instruction takes weights as they were decoded, in registers, and activations
from shared memory, where `arranged.arrange_tokens` and the card's copies have put them.

A program has 64 rows of the weight, a tile of 16 for each warp. It goes over the columns in steps
of `CHAINS` blocks, each added to sums of its own: what the warps of the other kernel sum by
themselves. All that a step needs is copied to shared memory some steps ahead.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from ninfer_triton_kernels.kernels.decoders import (
    affine_planes,
    byte_planes,
    five_bit_planes,
    scaled_e2m1_planes,
    six_bit_planes,
)
from ninfer_triton_kernels.kernels.fragments import pairs_of_words, row_halves
from ninfer_triton_kernels.kernels.overlap import release, wait
from ninfer_triton_kernels.kernels.products import gated
from ninfer_triton_kernels.kernels.tiled import E4M3_RESULT, longer
from ninfer_triton_kernels.kernels.warp_groups import WARPS, meet

TILES = gl.constexpr(4)
ROWS = gl.constexpr(64)
"""Of a program: each of its warps has a tile of 16 rows."""

CHAINS = gl.constexpr(4)
"""Blocks of columns of a step, and sums: as many as `tiled_linear` must have warps."""

FLAT = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0]))

ELEMENTS = gl.constexpr(gl.BlockedLayout([1, 1, 4], [1, 1, 32], [1, 4, 1], [2, 1, 0]))
"""Four words for each lane of a tile's warp."""

PAIRS = gl.constexpr(gl.BlockedLayout([1, 1, 2], [1, 1, 32], [1, 4, 1], [2, 1, 0]))
"""Two words."""

LANES = gl.constexpr(gl.BlockedLayout([1, 1, 1], [1, 1, 32], [1, 4, 1], [2, 1, 0]))
"""One word."""

OF_TWO = gl.constexpr(
    gl.BlockedLayout([1, 1, 1, 1], [1, 1, 16, 2], [1, 4, 1, 1], [3, 2, 1, 0]))
"""A word for two lanes, by tile, word and lane."""

OF_FOUR = gl.constexpr(
    gl.BlockedLayout([1, 1, 1, 1], [1, 1, 8, 4], [1, 4, 1, 1], [3, 2, 1, 0]))
"""A word for four."""

ROW_PAIRS = gl.constexpr(gl.DistributedLinearLayout(
    [], [[0], [0], [1], [2], [4]], [[8], [16]], [], [32]))
"""A word for the two rows that a lane has of the result."""


@gluon.jit
def tile_of(i, block, width, GATED: gl.constexpr):
    """Tile ``i`` of a program, as `fragments.tiles_of`; behind the last is the last."""
    tile, last = block * TILES + i, gl.cdiv(width, 16) - 1
    if GATED > 0:
        tile = gl.minimum(tile // 2, last) + tile % 2 * (last + 1)
    else:
        tile = gl.minimum(tile, last)
    return tile


@gluon.jit
def words_of_tiles(
    base, block, width, own: gl.constexpr, blocks: gl.constexpr, each: gl.constexpr,
    GATED: gl.constexpr, SWAPPED: gl.constexpr, LAYOUT: gl.constexpr,
):
    """Addresses ``[each, TILES, own]`` of words of the first ``each`` times ``own`` of ``blocks``
    times as many, which each tile has; neighbours swapped, if they lie so."""
    i = gl.arange(0, TILES, layout=gl.SliceLayout(0, gl.SliceLayout(2, LAYOUT)))
    j = gl.arange(0, each, layout=gl.SliceLayout(1, gl.SliceLayout(2, LAYOUT)))
    k = gl.arange(0, own, layout=gl.SliceLayout(0, gl.SliceLayout(1, LAYOUT)))
    if SWAPPED:
        k = k ^ 1
    tile = tile_of(i, block, width, GATED).to(gl.int64)[None, :, None]
    words = base.to(gl.pointer_type(gl.int32), bitcast=True)
    return words + tile * (blocks * own) + j[:, None, None] * own + k[None, None, :]


@gluon.jit
def stored_at(
    codes, high, scales, block, width, BLOCKS: gl.constexpr, BITS: gl.constexpr,
    GROUP: gl.constexpr, GATED: gl.constexpr,
):
    """Where a program's elements of the first step are, what is beyond them, and scales, as
    `fragments.load_elements`, `load_high` and `load_factors` find them."""
    elements = words_of_tiles(codes, block, width, 128, BLOCKS, CHAINS, GATED, False, ELEMENTS)
    more, factors = elements, elements
    if BITS == 5 or BITS == 6:
        SIZE: gl.constexpr = 32 * (BITS - 4)
        more = words_of_tiles(high, block, width, SIZE, BLOCKS, CHAINS, GATED, BITS == 5,
                              LANES if BITS == 5 else PAIRS)
    if GROUP > 0:
        EACH: gl.constexpr = CHAINS * (16 if GROUP == 16 else 8)
        factors = words_of_tiles(scales, block, width, EACH, BLOCKS // CHAINS, 1, GATED, False,
                                 PAIRS if GROUP == 16 else LANES)
    return elements, more, factors


@gluon.jit
def allocate_values(x, STEPS: gl.constexpr):
    """Room for activations of so many steps, and barriers, for when they are there."""
    values = gl.allocate_shared_memory(gl.bfloat16, [STEPS] + x.block_type.shape, x.layout)  # noqa: RUF005
    arrivals = gl.allocate_shared_memory(gl.int64, [STEPS, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STEPS):
        mbarrier.init(arrivals.index(i), count=1)
    fence_async_shared()
    meet()
    return values, arrivals


@gluon.jit
def allocate_stored(STEPS: gl.constexpr, N: gl.constexpr, BITS: gl.constexpr, GROUP: gl.constexpr):
    """Room for what is taken away of the products of so many steps, elements, what is beyond them,
    and scales."""
    elements = gl.allocate_shared_memory(gl.int32, [STEPS, CHAINS, TILES, 128], FLAT)
    sums, more, factors = elements, elements, elements
    if GROUP == 64:
        sums = gl.allocate_shared_memory(
            gl.float32, [STEPS, CHAINS * N], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    if BITS == 5 or BITS == 6:
        more = gl.allocate_shared_memory(gl.int32, [STEPS, CHAINS, TILES, 32 * (BITS - 4)], FLAT)
    if GROUP > 0:
        factors = gl.allocate_shared_memory(
            gl.int32, [STEPS, 1, TILES, CHAINS * (16 if GROUP == 16 else 8)], FLAT)
    return sums, elements, more, factors


@gluon.jit
def ask_weights(stored, slots, step, slot, BITS: gl.constexpr, GROUP: gl.constexpr):
    """Copies what is stored of a step to its slot."""
    elements, more, factors = stored
    step = step.to(gl.int64)
    async_copy.async_copy_global_to_shared(
        slots[1].index(slot), elements + step * (CHAINS * 128), eviction_policy="evict_first")
    if BITS == 5 or BITS == 6:
        async_copy.async_copy_global_to_shared(
            slots[2].index(slot), more + step * (CHAINS * 32 * (BITS - 4)))
    if GROUP > 0:
        async_copy.async_copy_global_to_shared(
            slots[3].index(slot), factors + step * (CHAINS * (16 if GROUP == 16 else 8)))


@gluon.jit
def ask_sums(sums, slots, step, slot, COUNT: gl.constexpr, GROUP: gl.constexpr):
    """Copies what is taken away of the products of a step."""
    if GROUP == 64:
        i = gl.arange(0, COUNT, layout=gl.BlockedLayout([1], [32], [WARPS], [0]))
        async_copy.async_copy_global_to_shared(slots[0].index(slot), sums + step * COUNT + i)


@gluon.jit
def ask_values(x, values, arrivals, row, step, exists, slot):
    """Copies activations of a step, if there is one; those of step 0 begin at ``row``."""
    arrival = arrivals.index(slot)
    mbarrier.expect(arrival, x.block_type.nbytes, pred=exists)
    at = row + step * x.block_type.shape[0]
    tma.async_copy_global_to_shared(x, [at, 0], arrival, values.index(slot), exists)


@gluon.jit
def scale_words(factors, i: gl.constexpr, GROUP: gl.constexpr):
    """Scales of block ``i`` of a slot, as stored: for each lane, ``[1, TILES, 32]``, or for each
    two rows, ``[ROWS / 2]``."""
    if GROUP == 16:
        words = factors.slice(i * 16, 16, 2).load(gl.SliceLayout(3, OF_TWO))
        words = gl.reshape(words[:, :, :, None].broadcast_to(1, TILES, 16, 2), (1, TILES, 32))
    else:
        words = factors.slice(i * 8, 8, 2).load(gl.SliceLayout(3, OF_FOUR))
        words = gl.convert_layout(gl.reshape(words, (ROWS // 2,)), ROW_PAIRS, assert_trivial=True)
    return words


@gluon.jit
def decoded_block(
    elements, more, factors, i: gl.constexpr, BITS: gl.constexpr, OFFSET: gl.constexpr,
    GROUP: gl.constexpr, SUMS: gl.constexpr,
):
    """Block ``i`` of a slot as an operand, bf16 ``[ROWS, 64]``, or 32 of 8 bits; nothing moves
    between lanes."""
    WIDE: gl.constexpr = 32 if BITS == 8 else 64
    words = elements.slice(i, 1).load(ELEMENTS)
    a, _ = row_halves(words, 1, ROWS)
    if BITS == 8:
        p0, p1 = byte_planes(words, OFFSET == 0, 1, ROWS)
        planes = gl.join(p0, p1)
    else:
        if GROUP == 16:
            scale = scale_words(factors, i, GROUP)
            scale = gl.convert_layout(scale, gl.SliceLayout(3, a.type.layout), assert_trivial=True)
            p0, p1, p2, p3 = scaled_e2m1_planes(words, scale[:, :, :, None], 1, ROWS)
        elif BITS == 6:
            high = gl.reshape(more.slice(i, 1).load(PAIRS), (1, TILES, 32, 2))
            high = gl.convert_layout(high, a.type.layout, assert_trivial=True)
            p0, p1, p2, p3 = six_bit_planes(words, high, 1, ROWS)
        elif BITS == 5:
            a0, _ = gl.split(a)
            high = more.slice(i, 1).load(LANES)
            high = gl.convert_layout(high, a0.type.layout, assert_trivial=True)
            p0, p1, p2, p3 = five_bit_planes(words, high, 1, ROWS)
        else:
            p0, p1, p2, p3 = affine_planes(words, words, BITS, 1, ROWS)
        planes = gl.join(gl.join(p0, p2), gl.join(p1, p3))
    planes = gl.reshape(planes, (TILES, 8, 4, 2, 2, WIDE // 32, 2))
    values = pairs_of_words(planes)  # tile, g, lane, column half, row half, plane, pair
    values = gl.reshape(gl.permute(values, (0, 4, 1, 5, 6, 3, 2, 7)), (ROWS, WIDE))
    return gl.convert_layout(values, gl.DotOperandLayout(0, SUMS, 2), assert_trivial=True)


@gluon.jit
def begun(total, sums, i: gl.constexpr, GROUP: gl.constexpr):
    """What the product of block ``i`` is added to: if it has scales, not what was before."""
    N: gl.constexpr = total.shape[1]
    if GROUP == 64:
        first = sums.slice(i * N, N).load(gl.SliceLayout(0, total.type.layout))
        total, _ = gl.broadcast(first[None, :], total)
    elif GROUP == 32:
        total = gl.zeros_like(total)
    return total


@gluon.jit
def added(total, part, factors, i: gl.constexpr, GROUP: gl.constexpr):
    """``total`` and the product of block ``i``, times its scales."""
    if GROUP == 64 or GROUP == 32:
        words = scale_words(factors, i, GROUP)
        low = words.to(gl.int16).to(gl.float16, bitcast=True).to(gl.float32)
        upper = (words >> 16).to(gl.int16).to(gl.float16, bitcast=True).to(gl.float32)
        factor = gl.permute(gl.reshape(gl.join(low, upper), (TILES, 8, 2)), (0, 2, 1))
        BY_ROW: gl.constexpr = gl.SliceLayout(1, total.type.layout)
        factor = gl.convert_layout(gl.reshape(factor, (ROWS,)), BY_ROW, assert_trivial=True)
        part = total + part * factor[:, None]
    return part


@gluon.jit
def ended(under_way, FLIGHT: gl.constexpr):
    """Products that were under way."""
    if FLIGHT == 1:
        parts = (warpgroup_mma_wait(0, deps=[under_way[0]]),)
    elif FLIGHT == 2:
        parts = warpgroup_mma_wait(0, deps=[under_way[0], under_way[1]])
    else:
        parts = warpgroup_mma_wait(
            0, deps=[under_way[0], under_way[1], under_way[2], under_way[3]])
    return parts


@gluon.jit
def add_step(
    totals, values, sums, elements, more, factors, BITS: gl.constexpr, OFFSET: gl.constexpr,
    GROUP: gl.constexpr, SUMS: gl.constexpr, FLIGHT: gl.constexpr,
):
    """Sums and products of a step, of ``FLIGHT`` blocks at once. While they are multiplied, other
    programs decode: registers for that here would be those of one of them."""
    N: gl.constexpr = totals[0].shape[1]
    after = ()
    for first in gl.static_range(0, CHAINS, FLIGHT):
        weights, starts, under_way = (), (), ()
        for i in gl.static_range(first, first + FLIGHT):
            block = decoded_block(elements, more, factors, i, BITS, OFFSET, GROUP, SUMS)
            weights = longer(weights, block)
            starts = longer(starts, begun(totals[i], sums, i, GROUP))
        for i in gl.static_range(FLIGHT):
            own = values.slice((first + i) * N, N).permute([1, 0])
            part = warpgroup_mma(weights[i], own, starts[i], is_async=True)
            under_way = longer(under_way, part)
        parts = ended(under_way, FLIGHT)
        for i in gl.static_range(FLIGHT):
            after = longer(after, added(totals[first + i], parts[i], factors, first + i, GROUP))
    return after


@gluon.jit
def chains_of(
    x, sums, stored, row, begin, end, last, N: gl.constexpr, BITS: gl.constexpr,
    OFFSET: gl.constexpr, GROUP: gl.constexpr, SUMS: gl.constexpr, NEAR: gl.constexpr,
    FAR: gl.constexpr, FLIGHT: gl.constexpr,
):
    """Sums of `CHAINS` over steps ``begin`` to ``end``. Waits for the kernels before once weights
    of the first steps are asked for."""
    COUNT: gl.constexpr = x.block_type.shape[0]
    values, arrivals = allocate_values(x, NEAR)
    slots = allocate_stored(FAR, N, BITS, GROUP)
    totals = ()
    for _ in gl.static_range(CHAINS):
        totals = longer(totals, gl.zeros([ROWS, N], gl.float32, layout=SUMS))
    for i in gl.static_range(FAR - 1):
        ask_weights(stored, slots, gl.minimum(begin + i, last), i, BITS, GROUP)
    wait()
    for i in gl.static_range(NEAR - 1):
        ask_values(x, values, arrivals, row, begin + i, begin + i < end, i)
    for i in gl.static_range(FAR - 1):
        ask_sums(sums + row, slots, gl.minimum(begin + i, last), i, COUNT, GROUP)
        async_copy.commit_group()
    for step in range(begin, end):
        turn = step - begin
        mbarrier.wait(arrivals.index(turn % NEAR), turn // NEAR % 2)
        async_copy.wait_group(FAR - 2)
        meet()  # and all are through with the step before, whose slots are the next to be filled
        near, far = turn + NEAR - 1, turn + FAR - 1
        ask_values(x, values, arrivals, row, begin + near, begin + near < end, near % NEAR)
        ahead = gl.minimum(begin + far, last)
        ask_weights(stored, slots, ahead, far % FAR, BITS, GROUP)
        ask_sums(sums + row, slots, ahead, far % FAR, COUNT, GROUP)
        async_copy.commit_group()
        slot = turn % FAR
        totals = add_step(
            totals, values.index(turn % NEAR), slots[0].index(slot), slots[1].index(slot),
            slots[2].index(slot), slots[3].index(slot), BITS, OFFSET, GROUP, SUMS, FLIGHT)
    async_copy.wait_group(0)
    for i in gl.static_range(NEAR):
        mbarrier.invalidate(arrivals.index(i))
    return totals


@gluon.jit
def row_factors(
    scales, divisor, block, width, BITS: gl.constexpr, OFFSET: gl.constexpr, GROUP: gl.constexpr,
    GATED: gl.constexpr, SUMS: gl.constexpr,
):
    """As of `tiled.row_factors`, ``[ROWS]``."""
    r = gl.arange(0, ROWS, layout=gl.SliceLayout(1, SUMS))
    tile = tile_of(r // 16, block, width, GATED)
    factor = gl.full([ROWS], 1.0, gl.float32, layout=r.type.layout)
    if GROUP == 0:
        factor = gl.load(scales + tile * 16 + r % 16).to(gl.float32)
    if GROUP == 16:
        factor *= 128.0 / gl.load(divisor + tile)
    if BITS == 8 and OFFSET == 0:
        factor *= E4M3_RESULT
    return factor


@gluon.jit
def sum_splits(total, parts, arrivals, SPLITS: gl.constexpr):
    """As `products.sum_splits`."""
    is_last = gl.program_id(2) < SPLITS
    if SPLITS > 1:
        N: gl.constexpr = total.shape[1]
        LAYOUT: gl.constexpr = total.type.layout
        tile = gl.program_id(0) * gl.num_programs(1) + gl.program_id(1)
        n = gl.arange(0, N, layout=gl.SliceLayout(0, LAYOUT))
        at = gl.arange(0, ROWS, layout=gl.SliceLayout(1, LAYOUT))[:, None] * N + n[None, :]
        base = parts + tile.to(gl.int64) * (SPLITS * ROWS * N)
        gl.store(base + gl.program_id(2) * (ROWS * N) + at, total)
        meet()
        is_last = gl.atomic_add(arrivals + tile, 1, sem="acq_rel") == SPLITS - 1
        if is_last:
            gl.store(arrivals + tile, 0)
            total = gl.load(base + at, cache_modifier=".cg")
            for split in gl.static_range(1, SPLITS):
                total += gl.load(base + split * (ROWS * N) + at, cache_modifier=".cg")
    return total, is_last


@gluon.jit
def write_product(
    total, block, first, num_tokens, width, bias, residual, residual_stride, out, out_stride,
    GATED: gl.constexpr, HAS_BIAS: gl.constexpr, HAS_RESIDUAL: gl.constexpr,
):
    """As `products.write_product`, of rows of activations from ``first`` on."""
    N: gl.constexpr = total.shape[1]
    HIGH: gl.constexpr = ROWS // 2 if GATED > 0 else ROWS
    WRITTEN: gl.constexpr = gl.BlockedLayout([8, 1], [HIGH // 8, 256 // HIGH], [1, WARPS], [0, 1])
    if GATED > 0:
        HALVES: gl.constexpr = gl.BlockedLayout(
            [1, 8, 1, 2], [1, 2, 16, 1], [2, 1, 2, 1], [3, 1, 2, 0])
        halves = gl.permute(gl.reshape(total, (ROWS // 32, 2, 16, N)), (0, 2, 3, 1))
        gates, ups = gl.split(gl.convert_layout(halves, HALVES))
        total = gl.reshape(gated(gates, ups, GATED), (HIGH, N))
    total = gl.convert_layout(total, WRITTEN)
    n = block * HIGH + gl.arange(0, HIGH, layout=gl.SliceLayout(1, WRITTEN))
    t = first + gl.arange(0, N, layout=gl.SliceLayout(0, WRITTEN))
    if HAS_BIAS:
        total += gl.load(bias + n, mask=n < width, other=0.0).to(gl.float32)[:, None]
    live = (n < width)[:, None] & (t < num_tokens)[None, :]
    at = t.to(gl.int64)[None, :]
    if HAS_RESIDUAL:
        rest = gl.load(residual + at * residual_stride + n[:, None], mask=live, other=0.0)
        total += rest.to(gl.float32)
    gl.store(out + at * out_stride + n[:, None], total.to(out.dtype.element_ty), mask=live)


@gluon.jit(do_not_specialize=["num_tokens"])
def hopper_linear(
    x, sums, codes, high, scales, divisor, bias, residual, out, parts, arrivals, num_tokens, width,
    residual_stride, out_stride, depth: gl.constexpr, BITS: gl.constexpr, OFFSET: gl.constexpr,
    GROUP: gl.constexpr, GATED: gl.constexpr, HAS_BIAS: gl.constexpr, HAS_RESIDUAL: gl.constexpr,
    N: gl.constexpr, SPLITS: gl.constexpr, NEAR: gl.constexpr, FAR: gl.constexpr,
    FLIGHT: gl.constexpr,
):
    """``ROWS`` rows of the weight by ``N`` rows of activations, blocks of ``x`` and ``sums`` as
    `arranged.arrange_tokens` has them; ``depth`` is whole steps. Programs of the same rows of the
    weight follow one another. The rest as `tiled_linear`."""
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, N, 16])
    BLOCKS: gl.constexpr = depth // (32 if BITS == 8 else 64)
    STEPS: gl.constexpr = BLOCKS // CHAINS
    SHARE: gl.constexpr = (STEPS + SPLITS - 1) // SPLITS
    block, first = gl.program_id(1), gl.program_id(0) * N
    begin = gl.program_id(2) * SHARE
    end = gl.minimum(begin + SHARE, STEPS)
    stored = stored_at(codes, high, scales, block, width, BLOCKS, BITS, GROUP, GATED)
    factors = row_factors(scales, divisor, block, width, BITS, OFFSET, GROUP, GATED, SUMS)
    totals = chains_of(
        x, sums, stored, first * BLOCKS, begin, end, STEPS - 1, N, BITS, OFFSET, GROUP, SUMS,
        NEAR, FAR, FLIGHT)
    release()
    total = (totals[0] + totals[2]) + (totals[1] + totals[3])  # as `products.sum_batch`
    total, is_last = sum_splits(total * factors[:, None], parts, arrivals, SPLITS)
    if is_last:
        write_product(total, block, first, num_tokens, width, bias, residual, residual_stride, out,
                      out_stride, GATED, HAS_BIAS, HAS_RESIDUAL)
