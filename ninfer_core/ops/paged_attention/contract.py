"""``paged_attention``: causal grouped-query attention over a paged cache.

Constants: ``planes``: the `PagedPlanes` of one layer (``key``, ``value``). Sizes: ``num_heads``
(Hq), ``num_kv_heads`` (Hkv, divides Hq), ``head_dim`` (D), ``scale``.

Call: ``(q, batch, out) -> out``; ``q`` ``[T, Hq D]`` (a view is fine: rows contiguous, row stride
free), ``out`` ``[T, Hq D]``. The token t at position p attends to positions 0..p of its sequence,
whose keys and values (its own and those of the same step included) are already in the pages:
``out[t, h] = sum_j softmax_j(scale q[t,h] . K[j, h // (Hq/Hkv)]) V[j, h // (Hq/Hkv)]``. Rows of a
page beyond p hold anything, NaN included.

Numerics: softmax in FP32, KV decoded to FP32. A batch-invariant kernel visits KV blocks at absolute
multiples of the page size, so that neither chunking nor company changes a row's bits.
"""

from ninfer_core.api import LazyRef, OpContract

CONTRACT = OpContract(
    name="paged_attention",
    constants=("planes",),
    weights=(),
    sizes=("num_heads", "num_kv_heads", "head_dim", "scale"),
    reference=LazyRef("ninfer_core.ops.paged_attention.reference:bind"),
)
