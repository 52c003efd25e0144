"""``gated_delta_rule``: the recurrence of Gated DeltaNet with a decay per head (Yang, Kautz and
Hatamizadeh, 2024, equation 10; the linear attention of the Qwen3.5 models).

Constants: ``planes``: the `SlotPlanes` of one layer, FP32: committed ``[slots, Hv, Dk, Dv]``, the
state S of each value head; record ``[slots, rows, Hk Dk + Hv Dv + 2 Hv]``, per token the normalised
keys k' ``[Hk, Dk]``, the values ``[Hv, Dv]``, g ``[Hv]`` and beta ``[Hv]``; ``a_log``, ``dt_bias``:
FP32 ``[Hv]``. Sizes: ``num_key_heads`` (Hk), ``num_value_heads`` (Hv, a multiple of Hk),
``key_dim`` (Dk), ``value_dim`` (Dv), ``eps``.

Call: ``(q, k, v, a, b, batch, out) -> out``; ``q``, ``k`` ``[T, Hk Dk]``, ``v`` and ``out``
``[T, Hv Dv]``, ``a``, ``b`` ``[T, Hv]`` of the compute dtype, rows contiguous, row stride free;
``out`` overlaps nothing. Per value head h with key head ``h // (Hv / Hk)``:

- ``q' = q / sqrt(sum q^2 + eps) / sqrt(Dk)``, ``k' = k / sqrt(sum k^2 + eps)``;
- ``g = -exp(a_log) softplus(a + dt_bias)``, ``beta = sigmoid(b)``;
- ``S <- e^g S``; ``d = beta (v - S^T k')``; ``S <- S + k' d^T``; ``out = S^T q'``.

Effects: for each row of the batch, first the ``replay`` recorded tokens are applied to the
committed state. Then a *certain* row advances it by all its tokens; an uncertain one records them
and leaves the committed state there. Slots of no row are left alone.

Numerics: FP32 or better throughout; S, k', g and beta are kept in FP32, never below. A
batch-invariant kernel advances token by token, so that neither chunking nor replay changes bits.

``channel_delta_rule``: the same with a decay for each component of a key (Kimi Delta Attention:
Kimi Team, Kimi Linear, 2025, equation 1, with the bounded gate of GLM-5.3-Flash), and as many key
heads as value heads (H). What differs: record ``[slots, rows, H Dk + H Dv + H Dk + H]``, with g
``[H, Dk]``; ``a_log`` FP32 ``[H]``, ``dt_bias`` FP32 ``[H Dk]``; sizes ``num_heads``, ``key_dim``,
``value_dim``, ``eps``, ``lower_bound`` (negative). Call: ``(q, k, v, f, b, batch, out) -> out``,
``f`` ``[T, H Dk]``: ``g = lower_bound sigmoid(exp(a_log) (f + dt_bias))``, ``S <- diag(e^g) S``.
"""

from ninfer_core.api import LazyRef, OpContract

CONTRACT = OpContract(
    name="gated_delta_rule",
    constants=("planes", "a_log", "dt_bias"),
    weights=(),
    sizes=("num_key_heads", "num_value_heads", "key_dim", "value_dim", "eps"),
    reference=LazyRef("ninfer_core.ops.gated_delta_rule.reference:bind"),
)

CHANNEL_DELTA_RULE = OpContract(
    name="channel_delta_rule",
    constants=("planes", "a_log", "dt_bias"),
    weights=(),
    sizes=("num_heads", "key_dim", "value_dim", "eps", "lower_bound"),
    reference=LazyRef("ninfer_core.ops.gated_delta_rule.reference:bind_channel"),
)
