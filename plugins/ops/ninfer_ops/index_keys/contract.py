"""``mean_index_append`` and ``softmax_index_append``: one index key for each block of consecutive
tokens, by which sparse attention chooses blocks (the indexers of Qwen3.8-Flash-Next and
GLM-5.3-Flash).

Both. Constants: ``planes``: the `PagedPlanes` of one layer; plane ``index_key`` ``[D]`` has one
entry for ``block`` tokens. ``tail``: `SlotPlanes`, FP32: committed ``[slots, R, W]``, columns of
the last tokens: that of position p in row ``p % R``. R is a multiple of ``block`` and at least
``block - 1`` more than an uncertain step has tokens, so that rejected ones never overwrite the open
block; the record is empty, ``[slots, rows, 0]``. Sizes: ``head_dim`` (D), ``block`` (a power of 2,
at most 64).

Each token's column is written to the tail of its sequence. A token at position p with
``(p + 1) % block == 0`` completes block ``p // block``: its entry is made of the columns of the
block, and written to page ``page_table[row, p // 64]``, row ``p % 64 // block``. Like all paged
state, columns and entries of rejected tokens are written again when their positions are really
reached; ``replay`` and ``certain`` are not looked at. Entries hold anything until then.

``mean_index_append``. Further constants: ``cos``, ``sin``, ``axes`` as of ``rope_kv_append``;
``query_norm`` and ``key_norm``: dense ``[D]``. Further sizes: ``num_heads`` (Hi), ``rotary_dim``,
``eps``, ``unit_offset``. Call: ``(q, k, batch) -> None``; ``q`` ``[T, Hi D]``, ``k`` ``[T, D]``,
rows contiguous, row stride free. Queries are normalised and rotated in place as by
``rope_kv_append``. A column (W = D + 3) is the raw k, and the token's three rope positions. An
entry is the mean of the block's k, normalised with ``key_norm`` and then rotated at the rope
position of the block's first token.

``softmax_index_append``. Further constants: ``norm`` and ``norm_bias``: dense ``[D]``;
``position_bias``: dense ``[block, D]``. Further size: ``eps``. Call: ``(k, s, batch) -> None``;
both ``[T, D]``, rows contiguous, row stride free. With ``k' = (k - mean k) / sqrt(var k + eps) norm
+ norm_bias`` (LayerNorm), a column (W = 2 D) is k' and s; an entry is
``sum_j softmax_j(s_j + position_bias[j]) k'_j`` over the block's tokens j, for each component by
itself.

Numerics: FP32 or better until an entry is encoded.
"""

from ninfer_core.api import LazyRef, OpContract

MEAN_INDEX_APPEND = OpContract(
    name="mean_index_append",
    constants=("planes", "tail", "cos", "sin", "axes", "query_norm", "key_norm"),
    weights=(),
    sizes=("num_heads", "head_dim", "block", "rotary_dim", "eps", "unit_offset"),
    reference=LazyRef("ninfer_ops.index_keys.reference:bind_mean"),
)

SOFTMAX_INDEX_APPEND = OpContract(
    name="softmax_index_append",
    constants=("planes", "tail", "norm", "norm_bias", "position_bias"),
    weights=(),
    sizes=("head_dim", "block", "eps"),
    reference=LazyRef("ninfer_ops.index_keys.reference:bind_softmax"),
)
