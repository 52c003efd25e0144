"""``moe_mlp``: the gated MLPs of a token's experts, summed by their shares (Shazeer et al., 2017).

Constants: ``gate_up``: a `Weight` of all experts, ``[E 2I, H]``, of each the gate's rows above the
up projection's; or a bank of matrices with these rows in this order, ``[E, 2I, H]`` or
``[2E, I, H]``; ``down``: ``[E H, I]`` or ``[E, H, I]``. Sizes: ``num_experts`` (E), ``top_k`` (k),
``limit`` as of ``swiglu``.

Call: ``(x, ids, weights, out, residual=None) -> out``; ``x``, ``out`` ``[T, H]``, rows contiguous,
row stride free; ``ids`` int32, ``weights`` FP32 ``[T, k]`` as of ``moe_route``;
``out = residual + sum_j weights[j] down_e(silu(gate_e x) * up_e x)`` with ``e = ids[j]``, summed in
the order of j; ``residual`` ``[T, H]``, added last, may be ``out`` itself; ``x`` may not overlap
``out``.

Numerics: as ``swiglu`` and ``linear``; the sum over experts in FP32. A batch-invariant kernel gives
a row the same bits whatever the others choose.
"""

from ninfer_core.api import LazyRef, OpContract

CONTRACT = OpContract(
    name="moe_mlp",
    constants=("gate_up", "down"),
    weights=("gate_up", "down"),
    sizes=("num_experts", "top_k", "limit"),
    reference=LazyRef("ninfer_core.ops.moe_mlp.reference:bind"),
)
