"""``selected_attention``: causal grouped-query attention over chosen blocks of a paged cache.

Constants: ``planes``: the `PagedPlanes` of one layer: ``key`` and ``value``, or ``key`` alone,
which then are the values too (latents of multi-head latent attention with absorbed projections:
DeepSeek-V2, section 2.1). Sizes: ``num_heads`` (Hq), ``num_kv_heads`` (Hkv, divides Hq),
``head_dim`` (D), ``scale``, ``block``.

Call: ``(q, blocks, batch, out) -> out``; ``q`` and ``out`` ``[T, Hq D]``, rows contiguous, row
stride free; ``blocks`` int32 ``[T, N]``, in ascending order, -1 behind them. The token t at
position p attends to the tokens of its blocks, all complete there, and to those of the open block
at p (positions from ``(p + 1) // block block`` to p), as ``paged_attention`` does to all. Rows of a
page that are not attended to hold anything, NaN included.

Numerics: softmax in FP32, KV decoded to FP32. A batch-invariant kernel visits tokens in ascending
order, so that nothing but a token's own blocks changes its bits; the reference gives those of
``paged_attention`` where all blocks are chosen.
"""

from ninfer_core.api import LazyRef, OpContract

CONTRACT = OpContract(
    name="selected_attention",
    constants=("planes",),
    weights=(),
    sizes=("num_heads", "num_kv_heads", "head_dim", "scale", "block"),
    reference=LazyRef("ninfer_ops.selected_attention.reference:bind"),
)
