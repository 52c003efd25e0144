"""``swiglu``: the gated half of an MLP (Shazeer, GLU Variants Improve Transformer, 2020).

Constants: ``weight``: a `Weight` ``[2F, K]``, the gate's rows above the up projection's rows. Size
``limit``: of the halves, below; 0.0, or left out: none.

Call: ``(x, out) -> out``; ``x`` ``[T, K]``, ``out`` ``[T, F]``:
``out = silu(x G^T) * (x U^T)``; with a limit, the gate's product is first clamped from above, and
the up projection's to ``-limit .. limit``. Rows contiguous, row stride free; no overlap.

Numerics: as ``linear``; silu and product in FP32.
"""

from ninfer_core.api import LazyRef, OpContract

CONTRACT = OpContract(
    name="swiglu",
    constants=("weight",),
    weights=("weight",),
    sizes=("limit",),
    reference=LazyRef("ninfer_core.ops.swiglu.reference:bind"),
)
