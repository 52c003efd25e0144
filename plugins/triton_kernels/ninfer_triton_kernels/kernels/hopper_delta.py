"""`delta_blocks` for compute capability 90, whose products read shared memory: one of 64 rows is
one instruction for a group of four warps.

What is fp32 enters products as two bf16 that lie side by side in shared memory, as columns of one
product: its two halves are added when it is done. The walk over the blocks of a head is a chain of
products, each of which waits for what the one before it gave; what a block gives out is computed
beside the chain. One warp asks for the blocks ahead.

No register is an operand, and while a product is under way nothing touches what it adds to: chains
of products whose operands are registers are known to become wrong code with the assembler of Triton
3.6 and 3.7 (triton issue 11366, flash-linear-attention pull requests 988 and 1262).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from ninfer_triton_kernels.kernels import delta_blocks, delta_rule
from ninfer_triton_kernels.kernels.warp_groups import (
    ASKING_REGISTERS,
    GROUP_REGISTERS,
    WARPS,
    meet,
)

BLOCK = gl.constexpr(delta_rule.BLOCK.value)
SOLVED, PARTS = gl.constexpr(16), gl.constexpr(4)
"""Rows of the parts of a system that are solved row by row, and how many there are."""

FACTORS = gl.constexpr(delta_blocks.FACTORS.value)

SLOTS = gl.constexpr(2)
"""Blocks that shared memory has room for."""

softplus = gluon.jit(delta_rule.softplus.fn)
blocks_of = gluon.jit(delta_rule.blocks_of.fn)
find_block = gluon.jit(delta_blocks.find_block.fn)
blocks_before = gluon.jit(delta_blocks.blocks_before.fn)


@gluon.jit
def publish():
    """What all warps have stored in shared memory, to products and copies that follow."""
    fence_async_shared()
    meet()


@gluon.jit
def halves(x):
    """fp32 as the sum of two bf16, to 2^-17 of it."""
    high = gl.inline_asm_elementwise(
        "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [x], gl.bfloat16, is_pure=True, pack=2)
    return high, (x - high.to(gl.float32)).to(gl.bfloat16)


@gluon.jit
def make_pair(ROWS: gl.constexpr, COLUMNS: gl.constexpr):
    """Room for two matrices of bf16."""
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, COLUMNS], gl.bfloat16)
    high = gl.allocate_shared_memory(gl.bfloat16, [ROWS, COLUMNS], LAYOUT)
    low = gl.allocate_shared_memory(gl.bfloat16, [ROWS, COLUMNS], LAYOUT)
    return high, low


@gluon.jit
def keep_pair(pair, x):
    high, low = halves(x)
    pair[0].store(high)
    pair[1].store(low)


@gluon.jit
def multiply_pairs(a, b, zero):
    """``a b`` of pairs, to 2^-16 of the factors."""
    total = warpgroup_mma(a[1], b[0], zero, use_acc=False, is_async=True)
    total = warpgroup_mma(a[0], b[1], total, is_async=True)
    total = warpgroup_mma(a[0], b[0], total, is_async=True)
    return warpgroup_mma_wait(0, deps=[total])


@gluon.jit
def give_pair(target, row, pair):
    """A pair to the global memory that `delta_blocks.store_halves` writes. Waits until the copies
    have read it: shared memory is given away behind its last use in the text, not behind them."""
    publish()
    for i in gl.static_range(2):
        tma.async_copy_shared_to_global(target, [row + i * BLOCK, 0], pair[i])
    tma.store_wait(0)
    meet()


@gluon.jit
def length_factor(matrix, eps):
    """What normalises rows of bf16."""
    LOADED: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [WARPS, 1], [1, 0])
    x = matrix.load(LOADED).to(gl.float32)
    return gl.rsqrt(gl.sum(x * x, 1) + eps)


@gluon.jit
def inverse_of_parts(system, is_own, rows):
    """As `delta_blocks.inverse_of_parts`; a thread has a column of a part, and reads what it is
    multiplied by from ``rows``, shared memory ``[16, 4, 16]``."""
    SUMS: gl.constexpr = system.type.layout
    COLUMNS: gl.constexpr = gl.BlockedLayout([1, SOLVED, 1], [2, 1, 16], [WARPS, 1, 1], [2, 1, 0])
    WHOLE: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    wide = gl.where(is_own, system, 0.0).reshape([PARTS, SOLVED, PARTS, SOLVED])
    WIDE: gl.constexpr = wide.type.layout
    parts = gl.sum(wide, 2)
    OWN: gl.constexpr = parts.type.layout
    whole = rows._reinterpret(gl.float32, [SOLVED, PARTS, SOLVED], WHOLE)
    whole.store(parts.permute([1, 0, 2]))
    meet()
    i = gl.arange(0, SOLVED, layout=gl.SliceLayout(0, gl.SliceLayout(2, COLUMNS)))[None, :, None]
    j = gl.arange(0, SOLVED, layout=gl.SliceLayout(0, gl.SliceLayout(1, COLUMNS)))[None, None, :]
    one = gl.where(i == j, 1.0, 0.0)
    one += gl.zeros([PARTS, SOLVED, SOLVED], gl.float32, layout=COLUMNS)
    solved = gl.where(i == 0, one, 0.0)
    for row in gl.static_range(1, SOLVED):
        own = rows.index(row).load(gl.SliceLayout(2, COLUMNS))
        met = gl.sum(own[:, :, None] * solved, 1)
        solved = gl.where(i == row, one - met[:, None, :], solved)
    back = gl.expand_dims(gl.convert_layout(solved, OWN), 2)
    back += gl.zeros([PARTS, SOLVED, PARTS, SOLVED], gl.float32, layout=WIDE)
    return gl.where(is_own, gl.convert_layout(back.reshape([BLOCK, BLOCK]), SUMS), 0.0)


@gluon.jit
def join(inverse, system, i, j, ROWS: gl.constexpr):
    """As `delta_blocks.join`."""
    zero = gl.zeros_like(system)
    held, between = make_pair(BLOCK, BLOCK), make_pair(BLOCK, BLOCK)
    step = make_pair(BLOCK, BLOCK)
    is_between = (i // (2 * ROWS) == j // (2 * ROWS)) & (i // ROWS != j // ROWS)
    keep_pair(held, inverse)
    keep_pair(between, gl.where(is_between, system, 0.0))
    publish()
    keep_pair(step, multiply_pairs(between, held, zero))
    publish()
    return inverse - multiply_pairs(held, step, zero)


@gluon.jit
def add(x, y):
    return x + y


@gluon.jit
def prepare_block(
    q, k, a, b, matrices, factors, rates, biases, row_start, context, certain, a_stride,
    b_stride, num_rows, key_heads, value_heads, eps, query_scale, BK: gl.constexpr,
):
    """As `delta_blocks.prepare_block`, with descriptors of blocks of ``q``, ``k`` and
    ``matrices``."""
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, BLOCK, 16])
    ROWS: gl.constexpr = gl.SliceLayout(1, SUMS)
    COLUMNS: gl.constexpr = gl.SliceLayout(0, SUMS)
    LINE: gl.constexpr = gl.BlockedLayout([2], [32], [WARPS], [0])
    STORED: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    STORED_ROWS: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    index, head = gl.program_id(0), gl.program_id(1)
    token = find_block(index, num_rows, row_start, context, certain)
    if token >= 0:
        key_at = head // (value_heads // key_heads) * BK
        queries = gl.allocate_shared_memory(gl.bfloat16, q.block_type.shape, q.layout)
        keys = gl.allocate_shared_memory(gl.bfloat16, k.block_type.shape, k.layout)
        ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
        mbarrier.init(ready, count=1)
        publish()
        mbarrier.expect(ready, q.block_type.nbytes + k.block_type.nbytes)
        tma.async_copy_global_to_shared(k, [token, key_at], ready, keys)
        tma.async_copy_global_to_shared(q, [token, key_at], ready, queries)
        n = gl.arange(0, BLOCK, layout=LINE)
        t = token.to(gl.int64) + n
        gates = gl.load(a + t * a_stride + head).to(gl.float32) + gl.load(biases + head)
        total = gl.associative_scan(gl.load(rates + head) * softplus(gates), 0, add)
        beta = 1 / (1 + gl.exp(-gl.load(b + t * b_stride + head).to(gl.float32)))
        totals = gl.allocate_shared_memory(gl.float32, [BLOCK], STORED)
        betas = gl.allocate_shared_memory(gl.float32, [BLOCK], STORED)
        key_factors = gl.allocate_shared_memory(gl.float32, [BLOCK], STORED)
        query_factors = gl.allocate_shared_memory(gl.float32, [BLOCK], STORED)
        rows = gl.allocate_shared_memory(gl.float32, [SOLVED, PARTS, SOLVED], STORED_ROWS)
        totals.store(total)
        betas.store(beta)
        zero = gl.zeros([BLOCK, BLOCK], gl.float32, layout=SUMS)
        mbarrier.wait(ready, 0)
        system = warpgroup_mma(keys, keys.permute([1, 0]), zero, use_acc=False, is_async=True)
        met = warpgroup_mma(queries, keys.permute([1, 0]), zero, use_acc=False, is_async=True)
        key_factors.store(length_factor(keys, eps))
        query_factors.store(length_factor(queries, eps) * query_scale)
        meet()
        key_factor, query_factor = key_factors.load(LINE), query_factors.load(LINE)
        faded, end = gl.exp(total), gl.sum(gl.where(n == BLOCK - 1, total, 0.0), 0)
        own = index * value_heads + head
        known = factors + own.to(gl.int64) * (FACTORS * BLOCK) + n
        gl.store(known, beta)
        gl.store(known + BLOCK, beta * faded * key_factor)
        gl.store(known + 2 * BLOCK, faded * query_factor)
        gl.store(known + 3 * BLOCK, gl.exp(end - total) * key_factor)
        gl.store(known + 4 * BLOCK, faded)

        decays = totals.load(ROWS)[:, None] - totals.load(COLUMNS)[None, :]
        decays = gl.exp(gl.minimum(decays, 0.0)) * key_factors.load(COLUMNS)[None, :]
        strengths = betas.load(ROWS) * key_factors.load(ROWS)
        read_by = query_factors.load(ROWS)
        i = gl.arange(0, BLOCK, layout=ROWS)[:, None]
        j = gl.arange(0, BLOCK, layout=COLUMNS)[None, :]
        system, met = warpgroup_mma_wait(0, deps=[system, met])
        mbarrier.invalidate(ready)
        meet()  # what follows may lie where other warps' products read, and where the barrier was
        overlap = make_pair(BLOCK, BLOCK)
        keep_pair(overlap, gl.where(i >= j, met * decays * read_by[:, None], 0.0))
        give_pair(matrices, own * (4 * BLOCK) + 2 * BLOCK, overlap)
        system = gl.where(i > j, system * decays * strengths[:, None], 0.0)
        inverse = inverse_of_parts(system, i // SOLVED == j // SOLVED, rows)
        inverse = join(inverse, system, i, j, SOLVED)
        inverse = join(inverse, system, i, j, 2 * SOLVED)
        meet()
        solved = make_pair(BLOCK, BLOCK)
        keep_pair(solved, inverse)
        give_pair(matrices, own * (4 * BLOCK), solved)


@gluon.jit
def make_slots(source, EACH: gl.constexpr):
    """Room for ``EACH`` blocks of ``source`` in each slot."""
    ROWS: gl.constexpr = source.block_type.shape[0]
    COLUMNS: gl.constexpr = source.block_type.shape[1]
    return gl.allocate_shared_memory(gl.bfloat16, [SLOTS * EACH, ROWS, COLUMNS], source.layout)


@gluon.jit
def make_sides(ROWS: gl.constexpr, COLUMNS: gl.constexpr):
    """Room for two matrices of bf16, side by side."""
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, 2 * COLUMNS], gl.bfloat16)
    return gl.allocate_shared_memory(gl.bfloat16, [ROWS, 2 * COLUMNS], LAYOUT)


@gluon.jit
def make_operands(BK: gl.constexpr, BV: gl.constexpr):
    """Room for what a group multiplies by: the state, and what a block lacks, changes and adds."""
    return make_sides(BK, BV), make_sides(BLOCK, BV), make_sides(BLOCK, BV), make_sides(BLOCK, BV)


@gluon.jit
def keep_sides(sides, x):
    """fp32 as two bf16."""
    high, low = halves(x)
    sides.store(gl.join(high, low).permute([0, 2, 1]).reshape(sides.shape))


@gluon.jit
def sum_sides(product, SUMS: gl.constexpr):
    """A product with what `keep_sides` kept."""
    ROWS: gl.constexpr = product.shape[0]
    COLUMNS: gl.constexpr = product.shape[1] // 2
    high, low = gl.split(product.reshape([ROWS, 2, COLUMNS]).permute([0, 2, 1]))
    return gl.convert_layout(high + low, SUMS)


@gluon.jit
def multiply_stored(stored, slot, sides, zero):
    """A pair by what `keep_sides` kept, under way."""
    total = warpgroup_mma(stored.index(2 * slot), sides, zero, use_acc=False, is_async=True)
    return warpgroup_mma(stored.index(2 * slot + 1), sides, total, is_async=True)


@gluon.jit
def fetch_all(
    q, k, v, matrices, first, count, own, value_heads, key_at, value_at, ring, GROUPS: gl.constexpr,
):
    """What the asking warp does: ``count`` blocks from token ``first`` on, each once its slot is
    free."""
    queries, keys, values, solved, met, ready, free = ring
    BYTES: gl.constexpr = (
        q.block_type.nbytes + k.block_type.nbytes + GROUPS * v.block_type.nbytes
        + 4 * matrices.block_type.nbytes)
    for block in range(count):
        slot, turn = block % SLOTS, block // SLOTS
        token, row = first + block * BLOCK, (own + block * value_heads) * (4 * BLOCK)
        here = ready.index(slot)
        mbarrier.wait(free.index(slot), (turn + 1) % 2, pred=turn > 0)
        mbarrier.expect(here, BYTES)
        tma.async_copy_global_to_shared(k, [token, key_at], here, keys.index(slot))
        tma.async_copy_global_to_shared(q, [token, key_at], here, queries.index(slot))
        for part in gl.static_range(GROUPS):
            column = value_at + part * v.block_type.shape[1]
            tma.async_copy_global_to_shared(
                v, [token, column], here, values.index(slot * GROUPS + part))
        for i in gl.static_range(2):
            at, place = row + i * BLOCK, 2 * slot + i
            tma.async_copy_global_to_shared(matrices, [at, 0], here, solved.index(place))
            tma.async_copy_global_to_shared(matrices, [at + 2 * BLOCK, 0], here, met.index(place))


@gluon.jit
def walk(
    out, out_stride, state_at, value_dim, factors, first, count, own, value_heads, ring, operands,
    PART: gl.constexpr, GROUPS: gl.constexpr, BK: gl.constexpr, BV: gl.constexpr,
):
    """What a group does: all blocks in turn, for ``BV`` columns, the ``PART``-th of those that
    ``out`` and ``state_at`` point to. A block is given out when the next is under way."""
    queries, keys, values, solved, met, ready, free = ring
    held, missing, deltas, left = operands
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, BV, 16])
    SIDES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, 2 * BV, 16])
    n = gl.arange(0, BLOCK, layout=gl.SliceLayout(1, SUMS))
    d = gl.arange(0, BK, layout=gl.SliceLayout(1, SUMS))
    j = gl.arange(0, BV, layout=gl.SliceLayout(0, SUMS))
    at = state_at + PART * BV + d[:, None] * value_dim + j[None, :]
    state = gl.load(at)
    keep_sides(held, state)
    publish()
    zero = gl.zeros([BLOCK, 2 * BV], gl.float32, layout=SIDES)
    wide_zero = gl.zeros([BK, 2 * BV], gl.float32, layout=SIDES)
    known = factors + own.to(gl.int64) * (FACTORS * BLOCK)
    target = out + PART * BV + (first + n).to(gl.int64) * out_stride
    result = gl.zeros([BLOCK, BV], out.dtype.element_ty, layout=SUMS)
    for block in range(count):
        slot = block % SLOTS
        beta, asked = gl.load(known + n), gl.load(known + BLOCK + n)
        read_by, kept = gl.load(known + 2 * BLOCK + n), gl.load(known + 3 * BLOCK + n)
        faded = gl.load(known + FACTORS * BLOCK - 1)
        known += value_heads * (FACTORS * BLOCK)
        mbarrier.wait(ready.index(slot), block // SLOTS % 2)
        asks = warpgroup_mma(keys.index(slot), held, zero, use_acc=False, is_async=True)
        reads = warpgroup_mma(queries.index(slot), held, zero, use_acc=False, is_async=True)
        # no branch: the assembler fails with one while products are under way
        gl.store(target[:, None] + j[None, :], result,
                 mask=gl.full([BLOCK, BV], block > 0, gl.int1, layout=SUMS))
        target += gl.where(block > 0, BLOCK, 0) * out_stride
        value = values.index(slot * GROUPS + PART).load(SUMS).to(gl.float32) * beta[:, None]
        expected = sum_sides(warpgroup_mma_wait(1, deps=[asks]), SUMS)
        keep_sides(missing, value - expected * asked[:, None])
        publish()
        changes = multiply_stored(solved, slot, missing, zero)
        changes, reads = warpgroup_mma_wait(0, deps=[changes, reads])
        delta = sum_sides(changes, SUMS)
        keep_sides(left, delta * kept[:, None])
        publish()
        gains = warpgroup_mma(
            keys.index(slot).permute([1, 0]), left, wide_zero, use_acc=False, is_async=True)
        keep_sides(deltas, delta)
        read = sum_sides(reads, SUMS) * read_by[:, None]
        publish()
        reads = multiply_stored(met, slot, deltas, zero)
        gains = warpgroup_mma_wait(2, deps=[gains])
        state = state * faded + sum_sides(gains, SUMS)
        keep_sides(held, state)
        fence_async_shared()
        reads = warpgroup_mma_wait(0, deps=[reads])
        result = (read + sum_sides(reads, SUMS)).to(out.dtype.element_ty)
        meet()
        mbarrier.arrive(free.index(slot), count=1)
    gl.store(target[:, None] + j[None, :], result)
    gl.store(at, state)


@gluon.jit
def advance_blocks(
    q, k, v, out, committed, matrices, factors, row_start, context, slots, certain,
    out_stride, slot_stride, key_heads, value_heads, BK: gl.constexpr, BV: gl.constexpr,
    GROUPS: gl.constexpr,
):
    """As `delta_blocks.advance_blocks`, with descriptors of blocks of ``q``, ``k``, ``v`` and
    ``matrices``; each of ``GROUPS`` groups of warps, 1 or 2, has ``BV`` columns,
    and goes at its own pace. The state is not transposed."""
    row, head, part = gl.program_id(0), gl.program_id(1), gl.program_id(2)
    first, count = blocks_of(row, row_start, context, certain)
    if count > 0:
        index = blocks_before(row, row_start, context, certain)
        own, value_dim = index * value_heads + head, gl.num_programs(2) * GROUPS * BV
        key_at = head // (value_heads // key_heads) * BK
        value_at = head * value_dim + part * GROUPS * BV
        state_at = committed + gl.load(slots + row).to(gl.int64) * slot_stride
        state_at += head * BK * value_dim + part * GROUPS * BV
        queries, keys, values = make_slots(q, 1), make_slots(k, 1), make_slots(v, GROUPS)
        solved, met = make_slots(matrices, 2), make_slots(matrices, 2)
        ready = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
        free = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
        for slot in gl.static_range(SLOTS):
            mbarrier.init(ready.index(slot), count=1)
            mbarrier.init(free.index(slot), count=GROUPS)
        ring = queries, keys, values, solved, met, ready, free
        operands = make_operands(BK, BV)
        publish()
        if GROUPS == 1:
            gl.warp_specialize([
                (walk, (
                    out + value_at, out_stride, state_at, value_dim, factors, first, count, own,
                    value_heads, ring, operands, 0, GROUPS, BK, BV)),
                (fetch_all, (
                    q, k, v, matrices, first, count, own, value_heads, key_at, value_at,
                    ring, GROUPS)),
            ], [1], [ASKING_REGISTERS])
        else:
            others = make_operands(BK, BV)
            gl.warp_specialize([
                (walk, (
                    out + value_at, out_stride, state_at, value_dim, factors, first, count, own,
                    value_heads, ring, operands, 0, GROUPS, BK, BV)),
                (walk, (
                    out + value_at, out_stride, state_at, value_dim, factors, first, count, own,
                    value_heads, ring, others, 1, GROUPS, BK, BV)),
                (fetch_all, (
                    q, k, v, matrices, first, count, own, value_heads, key_at, value_at,
                    ring, GROUPS)),
            ], [WARPS, 1], [GROUP_REGISTERS, ASKING_REGISTERS])
