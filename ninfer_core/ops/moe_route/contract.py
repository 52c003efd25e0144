"""``moe_route``: the experts of each token and their shares.

Sizes: ``num_experts`` (E), ``top_k`` (k).

Call: ``(logits, ids, weights) -> None``; ``logits`` ``[T, E]`` of the compute dtype, rows
contiguous, row stride free; ``ids`` int32 ``[T, k]``, ``weights`` FP32 ``[T, k]``. Softmax over all
experts in FP32; the k most likely, by falling logit, ties to the lower id; their shares divided by
their sum. Whatever the logits, NaN included, the ids of a token are k different experts.
"""

from ninfer_core.api import LazyRef
from ninfer_core.ops.contract import OpContract

CONTRACT = OpContract(
    name="moe_route",
    constants=(),
    weights=(),
    sizes=("num_experts", "top_k"),
    reference=LazyRef("ninfer_core.ops.moe_route.reference:bind"),
)
