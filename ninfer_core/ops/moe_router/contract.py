"""``moe_router``: a norm, the scores of all experts, and the experts of each token, in one op.
Blocks use it where a kernel takes it, else ``rmsnorm``, ``linear`` and ``moe_route``.

Constants: ``norm``: ``weight`` of the norm, ``[H]``; ``weight``: ``[E + S, H]``, that of the router
and behind it, if S is 1, that of the shared expert's score. Sizes: ``eps``, ``unit_offset`` as of
``rmsnorm``; ``num_experts`` (E), ``top_k`` (k), ``scoring`` as of ``moe_route``, without bias or
scale.

Call: ``(x, normed, scores, ids, weights) -> normed``; ``x`` and ``normed`` ``[T, H]``, ``scores``
``[T, E + S]``, of the compute dtype, rows contiguous, row stride free; ``ids`` and ``weights`` as
of ``moe_route``. Of ``scores`` the last S columns are written; the others may be.

Numerics: as of the three, whose results are rounded to the compute dtype in between.
"""

from ninfer_core.api import LazyRef, OpContract

CONTRACT = OpContract(
    name="moe_router",
    constants=("norm", "weight"),
    weights=("weight",),
    sizes=("eps", "unit_offset", "num_experts", "top_k", "scoring"),
    reference=LazyRef("ninfer_core.ops.moe_router.reference:bind"),
    fused=True,
)
