"""`prompt_attention.attend_segment` for compute capability 90: one warp asks for blocks, and two
groups of four have half of the queries each, so that while one makes weights of its scores, the
matrix units are the other's (Shah et al., 2024)."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from ninfer_triton_kernels.kernels.warp_groups import (
    ASKING_REGISTERS,
    GROUP_REGISTERS,
    WARPS,
    meet,
)

LOWEST = gl.constexpr(-1e30)
"""Below every score; minus infinity less itself is not a number."""

SLOTS = gl.constexpr(2)
"""Blocks of keys, and of values, that shared memory has room for."""


@gluon.jit
def make_ring(source):
    """Slots for blocks of ``source``, and what says of each that its block is there, and that both
    groups have done with it."""
    N: gl.constexpr = source.block_type.shape[0]
    BLOCK: gl.constexpr = source.block_type.shape[1]
    slots = gl.allocate_shared_memory(gl.bfloat16, [SLOTS, N, BLOCK], source.layout)
    ready = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(SLOTS):
        mbarrier.init(ready.index(slot), count=1)
        mbarrier.init(free.index(slot), count=2)
    return slots, ready, free


@gluon.jit
def fetch(source, row, slots, ready, free, index):
    """Block ``index`` of ``[N, BLOCK]``, which begins at a row, once its slot is free."""
    slot, turn = index % SLOTS, index // SLOTS
    mbarrier.wait(free.index(slot), (turn + 1) % 2, pred=turn > 0)
    mbarrier.expect(ready.index(slot), source.block_type.nbytes)
    tma.async_copy_global_to_shared(source, [row, 0], ready.index(slot), slots.index(slot))


@gluon.jit
def fetch_all(keys, values, base, num_blocks, key_slots, keys_ready, keys_free, value_slots,
              values_ready, values_free):
    """What the asking warp does: all blocks from row ``base`` on, in the order of their use."""
    for j in range(num_blocks):
        row = base + j * keys.block_type.shape[0]
        fetch(keys, row, key_slots, keys_ready, keys_free, j)
        fetch(values, row, value_slots, values_ready, values_free, j)


@gluon.jit
def arrived(slots, ready, index):
    """Block ``index``, once it is there."""
    mbarrier.wait(ready.index(index % SLOTS), index // SLOTS % 2)
    return slots.index(index % SLOTS)


@gluon.jit
def all_weights(scores, scale, top, mass, SHARES: gl.constexpr):
    """Weights of scores, as an operand; by how much what was before fades; the running maximum and
    the sum of weights (Milakov and Gimelshein, 2018)."""
    higher = gl.maximum(top, gl.max(scores, 1) * scale)
    weights = gl.exp2(scores * scale - higher[:, None])
    faded = gl.exp2(top - higher)
    mass = mass * faded + gl.sum(weights, 1)
    return gl.convert_layout(weights.to(gl.bfloat16), SHARES), faded, higher, mass


@gluon.jit
def weights_of(scores, first, places, seen_by_all, scale, top, mass, SHARES: gl.constexpr):
    """`all_weights` of a block at ``first``, which queries at ``places`` see up to their own. All
    of it twice: what is in a branch, the assembler does not move behind the wait that follows."""
    N: gl.constexpr = scores.shape[1]
    if first + N > seen_by_all:
        n = first + gl.arange(0, N, layout=gl.SliceLayout(0, scores.type.layout))
        seen = gl.where(n[None, :] <= places[:, None], scores, float("-inf"))
        shares, faded, top, mass = all_weights(seen, scale, top, mass, SHARES)
    else:
        shares, faded, top, mass = all_weights(scores, scale, top, mass, SHARES)
    return shares, faded, top, mass


@gluon.jit
def attend_blocks(
    held, places, first, num_blocks, seen_by_all, scale, top, mass, total, key_slots, keys_ready,
    keys_free, value_slots, values_ready, values_free, SCORES: gl.constexpr, N: gl.constexpr,
):
    """``num_blocks`` blocks, at least one, of which the first begins with token ``first`` of the
    segment, for queries in shared memory. A product under way bars others from changing what it
    adds to, so that sums fade when none is."""
    M: gl.constexpr = held.shape[0]
    TOTAL: gl.constexpr = total.type.layout
    SHARES: gl.constexpr = gl.DotOperandLayout(0, TOTAL, 2)
    FADES: gl.constexpr = gl.SliceLayout(1, TOTAL)
    nothing = gl.zeros([M, N], gl.float32, layout=SCORES)
    block = arrived(key_slots, keys_ready, 0)
    scores = warpgroup_mma(held, block.permute([1, 0]), nothing, use_acc=False)
    mbarrier.arrive(keys_free.index(0), count=1)
    shares, faded, top, mass = weights_of(
        scores, first, places, seen_by_all, scale, top, mass, SHARES)
    total = total * gl.convert_layout(faded, FADES)[:, None]
    for j in range(num_blocks - 1):
        block = arrived(key_slots, keys_ready, j + 1)
        scores_to_be = warpgroup_mma(
            held, block.permute([1, 0]), nothing, use_acc=False, is_async=True)
        block = arrived(value_slots, values_ready, j)
        total_to_be = warpgroup_mma(shares, block, total, is_async=True)
        scores = warpgroup_mma_wait(1, deps=[scores_to_be])
        mbarrier.arrive(keys_free.index((j + 1) % SLOTS), count=1)
        shares, faded, top, mass = weights_of(
            scores, first + (j + 1) * N, places, seen_by_all, scale, top, mass, SHARES)
        total = warpgroup_mma_wait(0, deps=[total_to_be])
        mbarrier.arrive(values_free.index(j % SLOTS), count=1)
        total = total * gl.convert_layout(faded, FADES)[:, None]
    total = warpgroup_mma(shares, arrived(value_slots, values_ready, num_blocks - 1), total)
    return top, mass, total


@gluon.jit
def hold_queries(
    q, q_stride, held, start, first_pair, num_pairs, kv_head, width, GROUP: gl.constexpr,
):
    """Queries of pairs of a token and a head in shared memory, zeros where there are none."""
    LOADED: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [WARPS, 1], [1, 0])
    pair = first_pair + gl.arange(0, held.shape[0], layout=gl.SliceLayout(1, LOADED))
    i = gl.arange(0, held.shape[1], layout=gl.SliceLayout(0, LOADED))
    at = (start + pair // GROUP).to(gl.int64) * q_stride + (kv_head * GROUP + pair % GROUP) * width
    live = (pair < num_pairs)[:, None] & (i < width)[None, :]
    held.store(gl.load(q + at[:, None] + i[None, :], mask=live, other=0.0))
    fence_async_shared()
    meet()


@gluon.jit
def attend_pairs(
    q, q_stride, out, out_stride, sums, tops, positions, start, first_pair, num_pairs, kv_head,
    num_kv_heads, width, own_states, begin, is_last, seen_by_all, first, num_blocks, scale, held,
    key_slots, keys_ready, keys_free, value_slots, values_ready, values_free, GROUP: gl.constexpr,
    N: gl.constexpr,
):
    """What a group does: blocks for its pairs, from what was kept of the segments before on; to
    ``out`` if these are the last."""
    M: gl.constexpr = held.shape[0]
    BLOCK: gl.constexpr = held.shape[1]
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, N, 16])
    TOTAL: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, BLOCK, 16])
    ROWS: gl.constexpr = gl.SliceLayout(1, SCORES)
    hold_queries(q, q_stride, held, start, first_pair, num_pairs, kv_head, width, GROUP)
    pair = first_pair + gl.arange(0, M, layout=ROWS)
    exists = pair < num_pairs
    token = start + pair // GROUP
    places = gl.load(positions + token, mask=exists, other=-1).to(gl.int32) - begin
    state = own_states + token.to(gl.int64) * num_kv_heads * GROUP + kv_head * GROUP + pair % GROUP
    wide_pair = first_pair + gl.arange(0, M, layout=gl.SliceLayout(1, TOTAL))
    t, head = (start + wide_pair // GROUP).to(gl.int64), kv_head * GROUP + wide_pair % GROUP
    i = gl.arange(0, BLOCK, layout=gl.SliceLayout(0, TOTAL))
    live = (wide_pair < num_pairs)[:, None] & (i < width)[None, :]
    kept = ((own_states + t * num_kv_heads * GROUP + head) * width)[:, None] + i[None, :]
    top = gl.full([M], LOWEST, gl.float32, layout=ROWS)
    mass = gl.zeros([M], gl.float32, layout=ROWS)
    total = gl.zeros([M, BLOCK], gl.float32, layout=TOTAL)
    if begin > 0:
        top = gl.load(tops + 2 * state, mask=exists, other=0.0)
        mass = gl.load(tops + 2 * state + 1, mask=exists, other=1.0)
        total = gl.load(sums + kept, mask=live, other=0.0)
    if num_blocks > 0:
        top, mass, total = attend_blocks(
            held, places, first, num_blocks, seen_by_all, scale, top, mass, total, key_slots,
            keys_ready, keys_free, value_slots, values_ready, values_free, SCORES, N)
    if is_last:
        masses = gl.convert_layout(gl.where(exists, mass, 1.0), gl.SliceLayout(1, TOTAL))
        result = (total / masses[:, None]).to(out.dtype.element_ty)
        gl.store(out + (t * out_stride + head * width)[:, None] + i[None, :], result, mask=live)
    else:
        gl.store(tops + 2 * state, top, mask=exists)
        gl.store(tops + 2 * state + 1, mass, mask=exists)
        gl.store(sums + kept, total, mask=live)


@gluon.jit
def attend_segment(
    q, q_stride, out, out_stride, keys, values, sums, tops, positions, row_start, begin, segment,
    parts, num_kv_heads, width, scale, GROUP: gl.constexpr, M: gl.constexpr, N: gl.constexpr,
    BLOCK: gl.constexpr,
):
    """As `prompt_attention.attend_segment`."""
    PAIRS: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    HALF: gl.constexpr = M // 2
    HELD: gl.constexpr = gl.NVMMASharedLayout.get_default_for([HALF, BLOCK], gl.bfloat16)
    row, kv_head = gl.program_id(0), gl.program_id(1)
    start = gl.load(row_start + row)
    num_pairs = (gl.load(row_start + row + 1) - start) * GROUP
    index = gl.num_programs(2) - 1 - gl.program_id(2)
    first_pair = index // parts * M
    pair = first_pair + gl.arange(0, M, layout=PAIRS)
    exists = pair < num_pairs
    places = gl.load(positions + start + pair // GROUP, mask=exists, other=-1).to(gl.int32) - begin
    last = gl.max(places, 0)
    if (first_pair < num_pairs) & (last >= 0):
        num_states = gl.load(row_start + gl.num_programs(0)).to(gl.int64) * num_kv_heads * GROUP
        own_states = index % parts * num_states
        is_last = (parts == 1) & (last < segment)
        seen_by_all = gl.min(gl.where(exists, places, segment), 0) + 1
        all_blocks = gl.cdiv(gl.minimum(segment, last + 1), N)
        block = index % parts * all_blocks // parts
        num_blocks = (index % parts + 1) * all_blocks // parts - block
        base = (row * num_kv_heads + kv_head) * segment + block * N
        key_slots, keys_ready, keys_free = make_ring(keys)
        value_slots, values_ready, values_free = make_ring(values)
        upper = gl.allocate_shared_memory(gl.bfloat16, [HALF, BLOCK], HELD)
        lower = gl.allocate_shared_memory(gl.bfloat16, [HALF, BLOCK], HELD)
        fence_async_shared()
        meet()
        gl.warp_specialize([
            (attend_pairs, (
                q, q_stride, out, out_stride, sums, tops, positions, start, first_pair, num_pairs,
                kv_head, num_kv_heads, width, own_states, begin, is_last, seen_by_all, block * N,
                num_blocks, scale, upper, key_slots, keys_ready, keys_free, value_slots,
                values_ready, values_free, GROUP, N)),
            (attend_pairs, (
                q, q_stride, out, out_stride, sums, tops, positions, start, first_pair + HALF,
                num_pairs, kv_head, num_kv_heads, width, own_states, begin, is_last, seen_by_all,
                block * N, num_blocks, scale, lower, key_slots, keys_ready, keys_free, value_slots,
                values_ready, values_free, GROUP, N)),
            (fetch_all, (
                keys, values, base, num_blocks, key_slots, keys_ready, keys_free, value_slots,
                values_ready, values_free)),
        ], [WARPS, 1], [GROUP_REGISTERS, ASKING_REGISTERS])
