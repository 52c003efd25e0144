"""``shared_moe_mlp``: ``moe_mlp``, and the gated MLP that all tokens share (DeepSeekMoE, section
3.2), in one op. Blocks use it where a kernel takes it, else its parts.

Constants: as of ``moe_mlp``; ``shared_gate_up`` ``[2J, H]`` as of ``swiglu``; ``shared_down``
``[H, J]``. Sizes: ``num_experts``, ``top_k``, ``limit`` of all products as of ``swiglu``.

Call: ``(x, ids, weights, score, out, residual=None) -> out``, as ``moe_mlp`` with
``sigmoid(score) * shared_down(silu(shared_gate x) * shared_up x)`` added behind the experts'; the
``score`` ``[T, 1]``, row stride free, or None for a factor of one.

Numerics: as ``moe_mlp``; products may be rounded to the compute dtype before they are scaled or
added.
"""

from ninfer_core.api import LazyRef, OpContract

CONTRACT = OpContract(
    name="shared_moe_mlp",
    constants=("gate_up", "down", "shared_gate_up", "shared_down"),
    weights=("gate_up", "down", "shared_gate_up", "shared_down"),
    sizes=("num_experts", "top_k", "limit"),
    reference=LazyRef("ninfer_core.ops.shared_moe_mlp.reference:bind"),
    fused=True,
)
