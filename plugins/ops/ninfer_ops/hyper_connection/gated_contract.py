"""Gated hyper-connections (Qwen4-Exp; after Zhu et al., Hyper-Connections, 2024): a residual of S
streams side by side, ``[T, S H]``, of which a block reads a gated mean, and to each of which its
output is added by a gate. They are never mixed with each other.

``grouped_rmsnorm``: rmsnorm of each group of a row by itself. Constants: ``weight``: dense ``[W]``,
of the whole row. Sizes: ``eps``; ``groups``, which W is a multiple of; ``unit_offset`` as of
``rmsnorm``. Call: ``(x, out) -> out``; both ``[T, W]``; ``out`` may be ``x``.

``scaled_silu``: ``out = silu(scale x)``. Size: ``scale``. Call: ``(x, out) -> out``; both
``[T, W]``; ``out`` may be ``x``.

``stream_read``: ``out = 1 / S sum_s sigmoid(gates_s) normed_s``. Size: ``num_streams`` (S). Call:
``(gates, normed, out) -> out``; ``gates``, ``normed`` ``[T, S H]``, ``out`` ``[T, H]``.

``stream_add``: ``streams_s += 2 sigmoid(logits_s / S) y``. Size: ``num_streams``. Call:
``(y, logits, streams) -> None``; ``y`` ``[T, H]``, ``logits`` ``[T, S]``, ``streams`` ``[T, S H]``
in place.

``signed_sqrt_gate``: ``out_s = sigmoid(sign(d) sqrt(max(|d|, 1e-6))) v`` with
``d = k_s . q_s / sqrt(H)``. Size: ``num_streams``. Call: ``(k, q, v, out) -> out``; ``k``, ``q``,
``out`` ``[T, S H]``, ``v`` ``[T, H]``.

All of the compute dtype, rows contiguous, row stride free; nothing else overlaps. In FP32 or
better until the one rounding at the end.
"""

from ninfer_core.api import LazyRef, OpContract

_REFERENCE = "ninfer_ops.hyper_connection.gated_reference"

GROUPED_RMSNORM = OpContract(
    name="grouped_rmsnorm",
    constants=("weight",),
    weights=(),
    sizes=("eps", "groups", "unit_offset"),
    reference=LazyRef(f"{_REFERENCE}:bind_norm"),
)
SCALED_SILU = OpContract(
    name="scaled_silu",
    constants=(),
    weights=(),
    sizes=("scale",),
    reference=LazyRef(f"{_REFERENCE}:bind_silu"),
)
STREAM_READ, STREAM_ADD, SIGNED_SQRT_GATE = (
    OpContract(
        name=name,
        constants=(),
        weights=(),
        sizes=("num_streams",),
        reference=LazyRef(f"{_REFERENCE}:{bind}"),
    )
    for name, bind in (
        ("stream_read", "bind_read"), ("stream_add", "bind_add"),
        ("signed_sqrt_gate", "bind_gate"),
    )
)
