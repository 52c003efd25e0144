"""``embedding``: rows of a table.

Constants: ``weight``: a `Weight` ``[V, H]`` in any format.

Call: ``(ids, out) -> out``; ``ids`` int64 ``[T]`` in ``[0, V)``, ``out`` ``[T, H]`` of the compute
dtype. ``out[t] = dequantize(weight)[ids[t]]``, exact before the cast to the compute dtype. Only the
gathered rows are read.
"""

from ninfer_core.api import LazyRef, OpContract

CONTRACT = OpContract(
    name="embedding",
    constants=("weight",),
    weights=("weight",),
    sizes=(),
    reference=LazyRef("ninfer_core.ops.embedding.reference:bind"),
)
