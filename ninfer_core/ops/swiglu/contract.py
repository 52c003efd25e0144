"""``swiglu``: the gated half of an MLP (Shazeer, GLU Variants Improve Transformer, 2020).

Constants: ``weight``: a `Weight` ``[2F, K]``, the gate's rows above the up projection's rows.

Call: ``(x, out) -> out``; ``x`` ``[T, K]``, ``out`` ``[T, F]``:
``out = silu(x G^T) * (x U^T)``. Rows contiguous, row stride free; no overlap.

Numerics: as ``linear``; silu and product in FP32.
"""

from ninfer_core.api import LazyRef
from ninfer_core.ops.contract import OpContract

CONTRACT = OpContract(
    name="swiglu",
    constants=("weight",),
    weights=("weight",),
    sizes=(),
    reference=LazyRef("ninfer_core.ops.swiglu.reference:bind"),
)
