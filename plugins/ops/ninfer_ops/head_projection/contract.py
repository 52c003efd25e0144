"""``head_projection``: a product for each head, ``out_h = W_h x_h`` (the absorbed projections of
multi-head latent attention: DeepSeek-V2, section 2.1).

Constants: ``weight`` ``[H N, K]``, the matrices of all heads one below the other. Sizes:
``num_heads`` (H).

Call: ``(x, out) -> out``; ``x`` ``[T, H K]``, ``out`` ``[T, H N]`` of the compute dtype, rows
contiguous, row stride free, no overlap. The sum over K is taken in FP32 or better.
"""

from ninfer_core.api import LazyRef, OpContract

CONTRACT = OpContract(
    name="head_projection",
    constants=("weight",),
    weights=("weight",),
    sizes=("num_heads",),
    reference=LazyRef("ninfer_ops.head_projection.reference:bind"),
)
