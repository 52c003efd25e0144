"""``head_projection``: a product for each head, ``out_h = W_h x_h`` (the absorbed projections of
multi-head latent attention: DeepSeek-V2, section 2.1).

Constants: ``weight``: dense ``[H, N, K]``, in the compute dtype.

Call: ``(x, out) -> out``; ``x`` ``[T, H K]``, ``out`` ``[T, H N]`` of the compute dtype, rows
contiguous, row stride free, no overlap. The sum over K is taken in FP32 or better.
"""

from ninfer_core.api import LazyRef
from ninfer_core.ops.contract import OpContract

CONTRACT = OpContract(
    name="head_projection",
    constants=("weight",),
    weights=(),
    sizes=(),
    reference=LazyRef("ninfer_core.ops.head_projection.reference:bind"),
)
