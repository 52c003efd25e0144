"""Which drafts are kept; of drawn ones also the token behind them (Leviathan, Kalman and Matias,
2023).

A sequence of n drafts is a row of a table of 64-bit words: its first row of ``target``, n, the
address and the stride of its proposals, the number its bonus is drawn with; then, of each draft,
the token and the numbers it is accepted and corrected with.
"""

import triton
import triton.language as tl

from ninfer_triton_kernels.kernels.overlap import release, wait
from ninfer_triton_kernels.kernels.sampling import find_id, find_tile, number_at, total_of

FIRST, NUM_DRAFTS, PROPOSALS, STRIDE, BONUS, DRAFTS = (tl.constexpr(i) for i in range(6))
"""Of the table."""
TOKEN, CHANCE, CORRECTION, DRAFT_COLUMNS = (tl.constexpr(i) for i in range(4))
"""Of a draft in it."""


@triton.jit
def accept_greedy(
    tokens, tokens_stride, drafts, drafts_stride, accepted, num_drafts, MOST: tl.constexpr,
):
    """How many drafts of a sequence come before the first that is not the model's token."""
    wait()
    release()
    s = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, MOST)
    live = i < num_drafts
    token = tl.load(tokens + s * tokens_stride + i, mask=live, other=0)
    draft = tl.load(drafts + s * drafts_stride + i, mask=live, other=0)
    count = tl.min(tl.where(token != draft, i, num_drafts), 0)
    tl.store(accepted + s, count.to(tl.int64))


@triton.jit
def num_accepted(target, sequence, vocab_size):
    """Drafts before the first that is rejected."""
    rows = target + tl.load(sequence + FIRST) * vocab_size
    proposals = tl.load(sequence + PROPOSALS).to(tl.pointer_type(tl.float64))
    stride = tl.load(sequence + STRIDE)
    count = tl.load(sequence + NUM_DRAFTS).to(tl.int32)
    accepted = count * 0
    for i in range(count):
        draft = sequence + DRAFTS + i * DRAFT_COLUMNS
        token = tl.load(draft + TOKEN)
        p = tl.load(rows + i * vocab_size + token)
        q = tl.load(proposals + i * stride + token)
        holds = (accepted == i) & (number_at(draft + CHANCE) * q < p)
        accepted += holds.to(tl.int32)
    return accepted


@triton.jit
def weights_behind(target, sequence, accepted, ids, live, vocab_size):
    """Of the token behind the accepted drafts: max(p - q, 0), of the last row p; and p."""
    row = target + (tl.load(sequence + FIRST) + accepted) * vocab_size
    p = tl.load(row + ids, mask=live, other=0.0)
    residual = p
    if accepted < tl.load(sequence + NUM_DRAFTS).to(tl.int32):
        proposals = tl.load(sequence + PROPOSALS).to(tl.pointer_type(tl.float64))
        proposal = proposals + accepted * tl.load(sequence + STRIDE)
        q = tl.load(proposal + ids, mask=live, other=0.0)
        residual = tl.where(p > q, p - q, 0.0)
    return residual, p


@triton.jit
def weigh_residual(
    target, table, columns, masses, vocab_size, num_tiles, TILE: tl.constexpr,
):
    """The mass of one tile of a sequence, of its residual and of p, into ``masses``
    ``[S, 2, tiles]``."""
    wait()
    release()
    tile = tl.program_id(0)
    s = tl.program_id(1).to(tl.int64)
    sequence = table + s * columns
    accepted = num_accepted(target, sequence, vocab_size)
    ids = tile * TILE + tl.arange(0, TILE)
    residual, p = weights_behind(target, sequence, accepted, ids, ids < vocab_size, vocab_size)
    to = masses + s * 2 * num_tiles + tile
    tl.store(to, tl.sum(residual, 0))
    tl.store(to + num_tiles, tl.sum(p, 0))


@triton.jit
def draw_behind(
    target, table, columns, masses, verdicts, vocab_size, num_tiles, TILES: tl.constexpr,
    TILE: tl.constexpr,
):
    """One sequence: the accepted drafts and the token behind them, -1 if there is none, into
    ``verdicts`` ``[S, 2]``. Without a residual p equals q but for rounding, and p is drawn from."""
    wait()
    release()
    s = tl.program_id(0).to(tl.int64)
    sequence = table + s * columns
    accepted = num_accepted(target, sequence, vocab_size)
    number = number_at(sequence + BONUS)
    if accepted < tl.load(sequence + NUM_DRAFTS).to(tl.int32):
        number = number_at(sequence + DRAFTS + accepted * DRAFT_COLUMNS + CORRECTION)
    own = masses + s * 2 * num_tiles
    tile, before, mass = find_tile(own, number, num_tiles, TILES)
    is_empty = total_of(own, num_tiles, TILES) == 0
    if is_empty:
        own += num_tiles
        tile, before, mass = find_tile(own, number, num_tiles, TILES)
    ids = tile * TILE + tl.arange(0, TILE)
    residual, p = weights_behind(target, sequence, accepted, ids, ids < vocab_size, vocab_size)
    token = find_id(tl.where(is_empty, p, residual), ids, before, mass)
    token = tl.where(total_of(own, num_tiles, TILES) > 0, token, -1)
    tl.store(verdicts + 2 * s, accepted.to(tl.int64))
    tl.store(verdicts + 2 * s + 1, token.to(tl.int64))
