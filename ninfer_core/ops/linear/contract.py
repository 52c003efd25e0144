"""``linear``: ``out = x W^T (+ bias) (+ residual)``.

Constants: ``weight``: a `Weight` ``[N, K]`` in any format, possibly several parameters stacked by
rows; ``bias``: dense ``[N]`` or None.

Call: ``(x, out, residual=None) -> out``; ``x`` ``[T, K]`` and ``out`` ``[T, N]`` of the compute
dtype (``out`` may be fp32, for logits and routers), rows contiguous, row stride free; ``residual``
``[T, N]``, added last, may be ``out`` itself; ``x`` may not overlap ``out``. 0 < T <= max_tokens.

Numerics: the sum over K is taken in FP32 or better. A batch-invariant kernel gives a row the same
bits for every T.
"""

from ninfer_core.api import LazyRef, OpContract

CONTRACT = OpContract(
    name="linear",
    constants=("weight", "bias"),
    weights=("weight",),
    sizes=(),
    reference=LazyRef("ninfer_core.ops.linear.reference:bind"),
)
