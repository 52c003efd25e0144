"""``rope_kv_append``: normalise and rotate queries and keys, append keys and values to the paged
cache.

Constants: ``planes``: the `PagedPlanes` of one layer with planes ``key`` and ``value``
``[Hkv, D]`` per token; ``cos`` and ``sin``: FP32 ``[max_context, R/2]``, or None when R = 0;
``axes``: int64 ``[R/2]``, the axis (0, 1, 2) of the position that turns each pair, or None: all 0;
``query_norm`` and ``key_norm``: dense ``[D]``, or None for none. Sizes: ``num_heads`` (Hq),
``num_kv_heads`` (Hkv), ``head_dim`` (D), ``rotary_dim`` (R, even, 0 <= R <= D), ``eps`` and
``unit_offset`` of the norms.

Call: ``(q, k, v, batch) -> None``; ``q`` ``[T, Hq D]``, ``k`` and ``v`` ``[T, Hkv D]``, head by
head, rows contiguous, row stride free. For each token t with position p:

- with norms, every query and key head is normalised as by ``rmsnorm``, in FP32;
- the first R components of every query and key head are rotated in the half-split form (RoFormer,
  section 3.4, as in Llama): with i < R/2,
  ``(a_i, a_{i+R/2}) -> (a_i cos - a_{i+R/2} sin, a_{i+R/2} cos + a_i sin)``, cosine and sine from
  column i of the tables, row ``rope_positions[axes[i], t]``;
- queries are written back in place; the key heads (rounded to the type of ``k``) and the value
  heads are encoded by the cache's codec and written to page ``page_table[token_row[t], p // 64]``,
  row ``p % 64``.

Effects: writes ``q`` and, in the pages, exactly the rows of the batch's tokens; may write ``k``.
"""

from ninfer_core.api import LazyRef, OpContract

CONTRACT = OpContract(
    name="rope_kv_append",
    constants=("planes", "cos", "sin", "axes", "query_norm", "key_norm"),
    weights=(),
    sizes=("num_heads", "num_kv_heads", "head_dim", "rotary_dim", "eps", "unit_offset"),
    reference=LazyRef("ninfer_core.ops.rope_kv_append.reference:bind"),
)
