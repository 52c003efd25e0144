"""``gated_rmsnorm``: ``out = x / sqrt(mean(x^2) + eps) * w * act(gate)`` per head: the norm comes
before the gate, which is not normalised.

Constants: ``weight``: dense ``[D]``, the same for all heads. Sizes: ``eps``; ``num_heads`` (H);
``activation``: ``silu`` or ``sigmoid``.

Call: ``(x, gate, out) -> out``; all ``[T, H D]`` of the compute dtype, rows contiguous, row stride
free; ``out`` may be ``x``. FP32 until the one rounding at the end.
"""

from ninfer_core.api import LazyRef, OpContract

CONTRACT = OpContract(
    name="gated_rmsnorm",
    constants=("weight",),
    weights=(),
    sizes=("eps", "num_heads", "activation"),
    reference=LazyRef("ninfer_core.ops.gated_rmsnorm.reference:bind"),
)
