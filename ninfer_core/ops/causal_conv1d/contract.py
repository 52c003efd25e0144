"""``causal_conv1d``: a short depthwise convolution along each sequence, and SiLU.

Constants: ``weight``: dense ``[taps, C]``, the last tap for the current token; ``planes``: the
`SlotPlanes` of one layer, FP32: committed ``[slots, (taps - 1) D, C]``, the last columns before
the frontier in order (zeros before the first token); record ``[slots, rows, C]``. Size:
``dilation`` (D), 1 if left out.

Call: ``(x, batch, out) -> out``; ``x`` and ``out`` ``[T, C]`` of the compute dtype, rows
contiguous, row stride free, no overlap:
``out_t = silu(sum_j weight[j] x_{t - (taps - 1 - j) D})`` within the sequence of t.

Effects: for each row of the batch, first ``replay`` recorded columns are appended to the committed
ones, of which the last ``(taps - 1) D`` stay. Then a *certain* row appends all its columns; an
uncertain one writes them to its record and leaves the committed ones there. Slots of no row are
left alone. Columns are kept as they came in, so that nothing depends on how a sequence is cut into
steps.

Numerics: the sum in FP32, taps in ascending order; SiLU in FP32.
"""

from ninfer_core.api import LazyRef, OpContract

CONTRACT = OpContract(
    name="causal_conv1d",
    constants=("weight", "planes"),
    weights=(),
    sizes=("dilation",),
    reference=LazyRef("ninfer_core.ops.causal_conv1d.reference:bind"),
)
