"""The likeliest token of each row."""

import triton
import triton.language as tl

from ninfer_triton_kernels.kernels.overlap import release, wait
from ninfer_triton_kernels.kernels.sampling import LOWEST, best_of, id_of, is_finite, keys_of


@triton.jit
def likeliest(
    logits, stride, names, candidates, arrivals, tokens, size, num_tiles, LEAST: tl.constexpr,
    NAMED: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr,
):
    """The best key of one tile of a row into ``candidates`` ``[R, tiles]``; the last program of a
    row makes them its token, LEAST if its logits are not finite. ``arrivals`` ``[R]`` are zeros
    before and after.

    :param names: int64 ``[size]``, tokens that the logits are of, negative for none; unless NAMED,
        all in order.
    """
    wait()
    release()
    tile = tl.program_id(0)
    r = tl.program_id(1).to(tl.int64)
    ids = tile * TILE + tl.arange(0, TILE)
    live = ids < size
    x = tl.load(logits + r * stride + ids, mask=live, other=0.0)
    if NAMED:
        ids = tl.load(names + ids, mask=live, other=-1).to(tl.int32)
        live = ids >= 0
    best = tl.max(tl.where(live, keys_of(x, ids), LOWEST), 0)
    tl.store(candidates + r * num_tiles + tile, best)
    tl.debug_barrier()  # the key is written before its thread, or any other, says so
    if tl.atomic_add(arrivals + r, 1, sem="acq_rel") == num_tiles - 1:
        tl.store(arrivals + r, 0)
        best = best_of(candidates, r, num_tiles, 1, TILES)
        token = tl.where(is_finite(best), id_of(best), LEAST)
        tl.store(tokens + r, token.to(tl.int64))
