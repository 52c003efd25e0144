"""``key_append``: append keys to a paged cache as they are.

Constants: ``planes``: the `PagedPlanes` of one layer with plane ``key`` ``[Hkv, D]``. Sizes:
``num_kv_heads`` (Hkv), ``head_dim`` (D).

Call: ``(key, batch) -> None``; ``key`` ``[T, Hkv D]``, rows contiguous, row stride free. Each
token's key is encoded by the cache's codec and written to page
``page_table[token_row[t], p // 64]``, row ``p % 64``, where p is its position; nothing else is.
"""

from ninfer_core.api import LazyRef, OpContract

CONTRACT = OpContract(
    name="key_append",
    constants=("planes",),
    weights=(),
    sizes=("num_kv_heads", "head_dim"),
    reference=LazyRef("ninfer_ops.key_append.reference:bind"),
)
