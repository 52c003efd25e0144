"""``linear_group``: products of one input, side by side: ``out_i = x W_i^T (+ bias_i)``. Blocks use
it where a kernel takes it, else ``linear`` for each.

Constants: ``weights``: a tuple of `Weight` ``[N_i, K]``, each in any format; ``biases``: for each a
dense ``[N_i]`` or None.

Call: ``(x, out, residual=None) -> out``, as ``linear`` with ``out`` and ``residual``
``[T, N_1 + N_2 + ...]``, the columns of the products in the order of the weights.

Numerics: as ``linear``.
"""

from ninfer_core.api import LazyRef, OpContract

CONTRACT = OpContract(
    name="linear_group",
    constants=("weights", "biases"),
    weights=("weights",),
    sizes=(),
    reference=LazyRef("ninfer_core.ops.linear.reference:bind_group"),
    fused=True,
)
