"""``moe_route``: the experts of each token and their shares.

Constants: ``bias``: FP32 ``[E]``, added to scores for the choice alone (Wang et al., 2024,
auxiliary-loss-free balancing); or None, always so with softmax. Sizes: ``num_experts`` (E),
``top_k`` (k); ``scoring``, ``softmax`` (also if left out) or ``sigmoid``; ``scale``, 1.0 if left
out.

Call: ``(logits, ids, weights) -> None``; ``logits`` ``[T, E]`` of the compute dtype or FP32, rows
contiguous, row stride free; ``ids`` int32 ``[T, k]``, ``weights`` FP32 ``[T, k]``. Scores are the
softmax over all experts, or the sigmoid of each, in FP32; chosen are the k experts with the largest
logits, or with the largest score + bias, falling, ties to the lower id; ``weights`` are their
scores divided by the sum of these + 1e-20, times ``scale``. Whatever the logits, NaN included, the
ids of a token are k different experts.
"""

from ninfer_core.api import LazyRef, OpContract

CONTRACT = OpContract(
    name="moe_route",
    constants=("bias",),
    weights=(),
    sizes=("num_experts", "top_k", "scoring", "scale"),
    reference=LazyRef("ninfer_core.ops.moe_route.reference:bind"),
)
