"""The matrix instruction, and what every product does with its result.

All products of few rows multiply a tile of the weight ``[BN, K]`` by rows of activations
``[K, N]``, N a multiple of 8. A batch of ``S`` products is the warps' of a program: each has
columns of its own, and what they add up to is summed at the end, in one order: operands are
``[S, BN, K]`` and ``[S, K, N]``. For batches there is one instruction, of 8 rows of activations, on
every card and for every N, so that the bits of a row do not depend on its company.
"""

import triton
import triton.language as tl
from triton import knobs

INTERPRETED = tl.constexpr(bool(knobs.runtime.interpret))
"""Whether Triton interprets its functions on a CPU: its matrix product is wrong for bf16 there."""

COLUMNS = tl.constexpr(8)
"""Rows of activations that one instruction takes."""


@triton.jit
def dot(a, b, total):
    """``total + a b`` in fp32."""
    if INTERPRETED:
        total += tl.dot(a.to(tl.float32), b.to(tl.float32))
    elif a.dtype == tl.float32:
        total = tl.dot(a, b.to(tl.float32), total, input_precision="ieee")
    else:
        total = tl.dot(a, b, total)
    return total


@triton.jit
def multiply(a, b, total):
    """``total + a b`` in fp32. A batch of one is a matrix: Triton would give each warp all of it,
    as it gives each matrix of a batch to one warp."""
    if len(a.shape) == 3 and a.shape[0] == 1:
        rows: tl.constexpr = a.shape[1]
        depth: tl.constexpr = a.shape[2]
        columns: tl.constexpr = b.shape[2]
        flat = dot(tl.reshape(a, (rows, depth)), tl.reshape(b, (depth, columns)),
                   tl.reshape(total, (rows, columns)))
        return tl.reshape(flat, (1, rows, columns))
    else:
        return dot(a, b, total)


@triton.jit
def halves_added(parts):
    """``[BN, N, S]`` to ``[BN, N, S / 2]``."""
    BN: tl.constexpr = parts.shape[0]
    N: tl.constexpr = parts.shape[1]
    HALF: tl.constexpr = parts.shape[2] // 2
    one, two = tl.split(tl.permute(tl.reshape(parts, (BN, N, 2, HALF)), (0, 1, 3, 2)))
    return one + two


@triton.jit
def sum_batch(total):
    """Sum ``[BN, N]`` of a batch of products ``[S, BN, N]``, S a power of two up to 8: one half is
    added to the other until there is one. Each thread gets at once all that it adds, whereas
    ``tl.sum`` would have warps meet twice, and what comes behind twice again."""
    S: tl.constexpr = total.shape[0]
    tl.static_assert(S <= 8)
    parts = tl.permute(total, (1, 2, 0))
    if S > 4:
        parts = halves_added(parts)
    if S > 2:
        parts = halves_added(parts)
    if S > 1:
        parts = halves_added(parts)
    return tl.reshape(parts, (total.shape[1], total.shape[2]))


UNLIMITED = tl.constexpr(float("inf"))


@triton.jit
def stored_rows(block, width, BN: tl.constexpr, GATED: tl.constexpr):
    """Rows of the weight that a tile has, and whether they exist.

    With ``GATED``, 16 rows of the gate alternate with 16 of the up projection, which begin at row
    ``width``.
    """
    n = block * BN + tl.arange(0, BN)
    if GATED > 0:
        half = n // 32 * 16 + n % 16
        return half + n % 32 // 16 * width, half < width
    return n, n < width


@triton.jit
def share_of(num_steps, SPLITS: tl.constexpr):
    """Steps over the columns that a program takes, as begin and end: those of the third axis of the
    grid share them."""
    each = tl.cdiv(num_steps, SPLITS)
    begin = tl.program_id(2) * each
    return begin, tl.minimum(begin + each, num_steps)


@triton.jit
def sum_splits(total, parts, arrivals, SPLITS: tl.constexpr, BN: tl.constexpr):
    """Sum of what all programs of a tile have, in the order of their columns, for the last of them
    to be done, and whether this is the last. ``arrivals`` are zeros before and after."""
    is_last = tl.program_id(2) < SPLITS
    if SPLITS > 1:
        N: tl.constexpr = total.shape[1]
        tile = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        at = tl.arange(0, BN)[:, None] * N + tl.arange(0, N)[None, :]
        base = parts + tile.to(tl.int64) * (SPLITS * BN * N)
        tl.store(base + tl.program_id(2) * (BN * N) + at, total)
        tl.debug_barrier()  # all threads' sums are written before one of them says so
        is_last = tl.atomic_add(arrivals + tile, 1, sem="acq_rel") == SPLITS - 1
        if is_last:
            tl.store(arrivals + tile, 0)
            total = tl.load(base + at, cache_modifier=".cg")
            for split in tl.static_range(1, SPLITS):
                total += tl.load(base + split * (BN * N) + at, cache_modifier=".cg")
    return total, is_last


@triton.jit
def gated(gates, ups, LIMIT: tl.constexpr):
    """``silu(gates) * ups``. A limit that is not infinite clamps gates from above, and the others
    on both sides."""
    if LIMIT != UNLIMITED:
        gates, ups = tl.minimum(gates, LIMIT), tl.clamp(ups, -LIMIT, LIMIT)
    return gates / (1 + tl.exp(-gates)) * ups


@triton.jit
def gate(total, BN: tl.constexpr, LIMIT: tl.constexpr):
    """`gated` of a tile whose rows lie as in `stored_rows`: ``[BN / 2, N]``."""
    halves = tl.reshape(total, (BN // 32, 2, 16, total.shape[1]))
    gates, ups = tl.split(tl.permute(halves, (0, 2, 3, 1)))
    return tl.reshape(gated(gates, ups, LIMIT), (BN // 2, total.shape[1]))


@triton.jit
def write_product(
    total, block, t, is_token, width, bias, residual, residual_stride, out, out_stride,
    BN: tl.constexpr, GATED: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
):
    """Bias, gate or residual, and the one rounding to the type of ``out``. ``GATED`` is the limit
    of a gate, or 0 without one."""
    if GATED > 0:
        total = gate(total, BN, GATED)
    n = block * total.shape[0] + tl.arange(0, total.shape[0])
    if HAS_BIAS:
        total += tl.load(bias + n, mask=n < width, other=0.0).to(tl.float32)[:, None]
    live = (n < width)[:, None] & is_token[None, :]
    at = t.to(tl.int64)[None, :]
    if HAS_RESIDUAL:
        rest = tl.load(residual + at * residual_stride + n[:, None], mask=live, other=0.0)
        total += rest.to(tl.float32)
    tl.store(out + at * out_stride + n[:, None], total.to(out.dtype.element_ty), mask=live)


@triton.jit
def load_columns(x, t, is_token, k, x_stride, depth, EVEN_K: tl.constexpr):
    """Rows ``t`` of the activations as columns: ``[S, K, N]`` for ``k`` ``[S, K]``; zeros where
    there are none."""
    live = is_token[None, None, :]
    if not EVEN_K:
        live = live & (k < depth)[:, :, None]
    at = t.to(tl.int64)[None, None, :] * x_stride + k[:, :, None]
    return tl.load(x + at, mask=live, other=0.0)
