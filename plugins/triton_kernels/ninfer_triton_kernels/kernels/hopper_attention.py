"""`prompt_attention.attend_segment` for compute capability 90, with every load, product and wait in
its place: the loads of blocks go on beside everything, and while weights are made of one block's
scores, the block before is multiplied (Shah et al., 2024)."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

LOWEST = gl.constexpr(-1e30)
"""Below every score; minus infinity less itself is not a number."""

SLOTS = gl.constexpr(2)
"""Blocks of keys, and of values, that shared memory has room for."""

meet = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier
"""Of all warps; Triton 3.7 has another name for it."""


@gluon.jit
def fetch(source, row, arrivals, slots, index, exists):
    """Block ``index`` of ``[N, BLOCK]``, which begins at a row, to its slot."""
    arrival = arrivals.index(index % SLOTS)
    mbarrier.expect(arrival, source.block_type.nbytes, pred=exists)
    tma.async_copy_global_to_shared(source, [row, 0], arrival, slots.index(index % SLOTS), exists)


@gluon.jit
def arrived(arrivals, slots, index):
    """Block ``index``, which `fetch` has asked for."""
    mbarrier.wait(arrivals.index(index % SLOTS), index // SLOTS % 2)
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
    held, places, keys, values, base, first, num_blocks, seen_by_all, scale, top, mass, total,
    SCORES: gl.constexpr,
):
    """``num_blocks`` blocks, at least one, from row ``base`` on, which is token ``first`` of the
    segment, for queries in shared memory. Products that are under way bar others from changing
    what they add to, so that sums fade when none is."""
    M: gl.constexpr = held.shape[0]
    BLOCK: gl.constexpr = held.shape[1]
    N: gl.constexpr = keys.block_type.shape[0]
    TOTAL: gl.constexpr = total.type.layout
    SHARES: gl.constexpr = gl.DotOperandLayout(0, TOTAL, 2)
    FADES: gl.constexpr = gl.SliceLayout(1, TOTAL)
    key_slots = gl.allocate_shared_memory(gl.bfloat16, [SLOTS, N, BLOCK], keys.layout)
    value_slots = gl.allocate_shared_memory(gl.bfloat16, [SLOTS, N, BLOCK], values.layout)
    key_arrivals = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    value_arrivals = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(SLOTS):
        mbarrier.init(key_arrivals.index(slot), count=1)
        mbarrier.init(value_arrivals.index(slot), count=1)
    fence_async_shared()
    meet()
    for j in gl.static_range(SLOTS):
        fetch(keys, base + j * N, key_arrivals, key_slots, j, j < num_blocks)
        fetch(values, base + j * N, value_arrivals, value_slots, j, j < num_blocks)
    nothing = gl.zeros([M, N], gl.float32, layout=SCORES)
    block = arrived(key_arrivals, key_slots, 0)
    scores = warpgroup_mma(held, block.permute([1, 0]), nothing, use_acc=False)
    meet()
    fetch(keys, base + SLOTS * N, key_arrivals, key_slots, SLOTS, num_blocks > SLOTS)
    shares, faded, top, mass = weights_of(
        scores, first, places, seen_by_all, scale, top, mass, SHARES)
    total = total * gl.convert_layout(faded, FADES)[:, None]
    for j in range(num_blocks - 1):
        block = arrived(key_arrivals, key_slots, j + 1)
        scores_to_be = warpgroup_mma(
            held, block.permute([1, 0]), nothing, use_acc=False, is_async=True)
        block = arrived(value_arrivals, value_slots, j)
        total_to_be = warpgroup_mma(shares, block, total, is_async=True)
        scores = warpgroup_mma_wait(1, deps=[scores_to_be])
        meet()
        ahead = j + 1 + SLOTS
        fetch(keys, base + ahead * N, key_arrivals, key_slots, ahead, ahead < num_blocks)
        shares, faded, top, mass = weights_of(
            scores, first + (j + 1) * N, places, seen_by_all, scale, top, mass, SHARES)
        total = warpgroup_mma_wait(0, deps=[total_to_be])
        meet()
        ahead = j + SLOTS
        fetch(values, base + ahead * N, value_arrivals, value_slots, ahead, ahead < num_blocks)
        total = total * gl.convert_layout(faded, FADES)[:, None]
    total = warpgroup_mma(shares, arrived(value_arrivals, value_slots, num_blocks - 1), total)
    meet()
    for slot in gl.static_range(SLOTS):
        mbarrier.invalidate(key_arrivals.index(slot))
        mbarrier.invalidate(value_arrivals.index(slot))
    return top, mass, total


@gluon.jit
def hold_queries(
    q, q_stride, start, first_pair, num_pairs, kv_head, width, GROUP: gl.constexpr,
    M: gl.constexpr, BLOCK: gl.constexpr,
):
    """Queries of ``M`` pairs of a token and a head in shared memory, zeros where there are none."""
    LOADED: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [gl.num_warps(), 1], [1, 0])
    HELD: gl.constexpr = gl.NVMMASharedLayout.get_default_for([M, BLOCK], gl.bfloat16)
    pair = first_pair + gl.arange(0, M, layout=gl.SliceLayout(1, LOADED))
    i = gl.arange(0, BLOCK, layout=gl.SliceLayout(0, LOADED))
    at = (start + pair // GROUP).to(gl.int64) * q_stride + (kv_head * GROUP + pair % GROUP) * width
    live = (pair < num_pairs)[:, None] & (i < width)[None, :]
    queries = gl.load(q + at[:, None] + i[None, :], mask=live, other=0.0)
    return gl.allocate_shared_memory(gl.bfloat16, [M, BLOCK], HELD, queries)


@gluon.jit
def attend_segment(
    q, q_stride, out, out_stride, keys, values, sums, tops, positions, row_start, begin, segment,
    parts, num_kv_heads, width, scale, GROUP: gl.constexpr, M: gl.constexpr, N: gl.constexpr,
    BLOCK: gl.constexpr,
):
    """As `prompt_attention.attend_segment`."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, N, 16])
    TOTAL: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, BLOCK, 16])
    SUMMED: gl.constexpr = gl.SliceLayout(1, TOTAL)
    row, kv_head = gl.program_id(0), gl.program_id(1)
    start = gl.load(row_start + row)
    num_pairs = (gl.load(row_start + row + 1) - start) * GROUP
    index = gl.num_programs(2) - 1 - gl.program_id(2)
    first_pair = index // parts * M
    pair = first_pair + gl.arange(0, M, layout=gl.SliceLayout(1, SCORES))
    exists = pair < num_pairs
    places = gl.load(positions + start + pair // GROUP, mask=exists, other=-1).to(gl.int32) - begin
    last = gl.max(places, 0)
    if (first_pair < num_pairs) & (last >= 0):
        held = hold_queries(
            q, q_stride, start, first_pair, num_pairs, kv_head, width, GROUP, M, BLOCK)
        num_states = gl.load(row_start + gl.num_programs(0)).to(gl.int64) * num_kv_heads * GROUP
        own_states = index % parts * num_states
        heads = kv_head * GROUP + pair % GROUP
        state = own_states + (start + pair // GROUP).to(gl.int64) * num_kv_heads * GROUP + heads
        wide_pair = first_pair + gl.arange(0, M, layout=SUMMED)
        i = gl.arange(0, BLOCK, layout=gl.SliceLayout(0, TOTAL))
        live = (wide_pair < num_pairs)[:, None] & (i < width)[None, :]
        t, heads = (start + wide_pair // GROUP).to(gl.int64), kv_head * GROUP + wide_pair % GROUP
        summed = ((own_states + t * num_kv_heads * GROUP + heads) * width)[:, None] + i[None, :]
        top = gl.full([M], LOWEST, gl.float32, layout=gl.SliceLayout(1, SCORES))
        mass = gl.zeros([M], gl.float32, layout=gl.SliceLayout(1, SCORES))
        total = gl.zeros([M, BLOCK], gl.float32, layout=TOTAL)
        if begin > 0:
            top = gl.load(tops + 2 * state, mask=exists, other=0.0)
            mass = gl.load(tops + 2 * state + 1, mask=exists, other=1.0)
            total = gl.load(sums + summed, mask=live, other=0.0)
        all_blocks = gl.cdiv(gl.minimum(segment, last + 1), N)
        block = index % parts * all_blocks // parts
        num_blocks = (index % parts + 1) * all_blocks // parts - block
        seen_by_all = gl.min(gl.where(exists, places, segment), 0) + 1
        base = (row * num_kv_heads + kv_head) * segment
        if num_blocks > 0:
            top, mass, total = attend_blocks(
                held, places, keys, values, base + block * N, block * N, num_blocks, seen_by_all,
                scale, top, mass, total, SCORES)
        if (parts == 1) & (last < segment):
            masses = gl.convert_layout(gl.where(exists, mass, 1.0), SUMMED)
            result = (total / masses[:, None]).to(out.dtype.element_ty)
            at = t * out_stride + heads * width
            gl.store(out + at[:, None] + i[None, :], result, mask=live)
        else:
            gl.store(tops + 2 * state, top, mask=exists)
            gl.store(tops + 2 * state + 1, mass, mask=exists)
            gl.store(sums + summed, total, mask=live)
