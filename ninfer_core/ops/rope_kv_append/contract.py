"""``rope_kv_append``: rotate queries and keys, append keys and values to the paged cache.

Constants: ``planes``: the `PagedPlanes` of one layer with planes ``key`` and ``value``
``[Hkv, D]`` per token; ``cos`` and ``sin``: fp32 ``[max_context, R/2]``, or None when R = 0.
Sizes: ``num_heads`` (Hq), ``num_kv_heads`` (Hkv), ``head_dim`` (D), ``rotary_dim`` (R, even,
0 <= R <= D).

Call: ``(qkv, batch) -> None``; ``qkv`` ``[T, (Hq + 2 Hkv) D]``, rows contiguous: queries, keys,
values, head by head. For each token t with position p:

- the first R components of every query and key head are rotated in place in the half-split form
  (RoFormer, section 3.4, as in Llama): with i < R/2,
  ``(a_i, a_{i+R/2}) -> (a_i cos - a_{i+R/2} sin, a_{i+R/2} cos + a_i sin)`` at row p of the tables;
- the key and value heads are encoded by the cache's codec and written to page
  ``page_table[token_row[t], p // 64]``, row ``p % 64``.

Effects: writes ``qkv`` and, in the pages, exactly the rows of the batch's tokens.
"""

from ninfer_core.api import LazyRef
from ninfer_core.ops.contract import OpContract

CONTRACT = OpContract(
    name="rope_kv_append",
    constants=("planes", "cos", "sin"),
    weights=(),
    sizes=("num_heads", "num_kv_heads", "head_dim", "rotary_dim"),
    reference=LazyRef("ninfer_core.ops.rope_kv_append.reference:bind"),
)
