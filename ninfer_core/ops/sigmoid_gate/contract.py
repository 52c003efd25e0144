"""``sigmoid_gate``: ``out = x * sigmoid(gate)``.

Call: ``(x, gate, out) -> out``; ``x``, ``out`` ``[T, W]``, ``gate`` ``[T, W]`` or ``[T, 1]`` (one
for the row), of the compute dtype, rows contiguous, row stride free; ``out`` may be ``x``. In FP32.
"""

from ninfer_core.api import LazyRef, OpContract

CONTRACT = OpContract(
    name="sigmoid_gate",
    constants=(),
    weights=(),
    sizes=(),
    reference=LazyRef("ninfer_core.ops.sigmoid_gate.reference:bind"),
)
