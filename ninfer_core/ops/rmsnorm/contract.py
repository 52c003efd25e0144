"""``rmsnorm``: ``out = x / sqrt(mean(x^2) + eps) * w`` (Zhang and Sennrich, 2019).

Constants: ``weight``: dense ``[H]``. Sizes: ``eps``; ``unit_offset`` (bool): multiply by ``1 + w``.

Call: ``(x, out) -> out``; both ``[T, H]`` of the compute dtype, rows contiguous, row stride free;
``out`` may be ``x``. Mean and scaling in FP32.
"""

from ninfer_core.api import LazyRef, OpContract

CONTRACT = OpContract(
    name="rmsnorm",
    constants=("weight",),
    weights=(),
    sizes=("eps", "unit_offset"),
    reference=LazyRef("ninfer_core.ops.rmsnorm.reference:bind"),
)
