"""``index_select``: the blocks of earlier tokens that a token attends to (the indexers of
DeepSeek-V3.2, Qwen3.8-Flash-Next and GLM-5.3-Flash).

Constants: ``planes``: the `PagedPlanes` of one layer; plane ``index_key`` ``[D]`` has one entry for
``block`` tokens. Sizes: ``num_heads`` (Hi), ``head_dim`` (D), ``block``, ``budget`` (blocks),
``scale``.

Call: ``(q, weights, batch, blocks) -> blocks``; ``q`` ``[T, Hi D]``, ``weights`` FP32 ``[T, Hi]``
or None for ones, rows contiguous, row stride free; ``blocks`` int32 ``[T, budget]``. The token t at
position p can choose the blocks b that are complete there, ``(b + 1) block <= p + 1``. With
``score_b = sum_h weights[t, h] relu(scale q[t, h] . K_b)``, the ``budget`` best are written in
ascending order, -1 behind them; of equal scores the lower block is the better one. Entries of other
blocks hold anything, NaN included.

Numerics: scores in FP32 or better. Blocks whose scores differ by no more than the rounding of their
terms may change places; a batch-invariant kernel chooses by the token's own context alone.
"""

from ninfer_core.api import LazyRef, OpContract

CONTRACT = OpContract(
    name="index_select",
    constants=("planes",),
    weights=(),
    sizes=("num_heads", "head_dim", "block", "budget", "scale"),
    reference=LazyRef("ninfer_ops.index_select.reference:bind"),
)
