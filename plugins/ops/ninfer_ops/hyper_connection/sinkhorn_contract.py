"""Manifold-constrained hyper-connections (mHC, Xie et al., 2026; as in GLM-5.3): a residual of S
streams, of which a block reads a weighted sum, and which are mixed when its output is added.

All weights of a token come from ``products`` ``[T, S (S + 2)]``, FP32: ``fn u`` of the token's
streams side by side ``u`` ``[S H]``, not yet normed: ``m = products / sqrt(mean(u^2) + norm_eps)``.
Its columns are ``m_pre`` ``[S]``, ``m_post`` ``[S]`` and ``m_comb`` ``[S, S]``.

``sinkhorn_read``: constants ``base`` FP32 ``[S (S + 2)]``, in the same columns, and ``scale`` FP32
``[3]``, of pre, post and comb. Sizes: ``num_streams`` (S), ``iterations``, ``eps``, ``norm_eps``.
Call: ``(products, streams, out, mix) -> None``; ``streams`` ``[T, S H]``, ``out`` ``[T, H]``,
``mix`` FP32 ``[T, S + S S]``::

    pre  = sigmoid(scale[0] m_pre + base_pre) + eps
    post = 2 sigmoid(scale[1] m_post + base_post)
    comb = softmax over columns(scale[2] m_comb + base_comb) + eps, columns divided by their sums
           + eps; then iterations - 1 times: rows divided by theirs + eps, then columns
    out = sum_s pre[s] R_s        mix = post, then comb row by row

``sinkhorn_write``: size ``num_streams``. Call: ``(y, mix, streams) -> None``; ``y`` ``[T, H]``;
``streams`` in place: ``R'_t = post[t] y + sum_s comb[s, t] R_s``.

``stream_mean``: size ``num_streams``. Call: ``(streams, out) -> out``: ``[T, S H]`` to ``[T, H]``.

Rows are contiguous, row stride free; activations are of the compute dtype; nothing overlaps. All
sums are taken in FP32 or better.
"""

from ninfer_core.api import LazyRef, OpContract

_REFERENCE = "ninfer_ops.hyper_connection.sinkhorn_reference"

SINKHORN_READ = OpContract(
    name="sinkhorn_read",
    constants=("base", "scale"),
    weights=(),
    sizes=("num_streams", "iterations", "eps", "norm_eps"),
    reference=LazyRef(f"{_REFERENCE}:bind_read"),
)
SINKHORN_WRITE = OpContract(
    name="sinkhorn_write",
    constants=(),
    weights=(),
    sizes=("num_streams",),
    reference=LazyRef(f"{_REFERENCE}:bind_write"),
)
STREAM_MEAN = OpContract(
    name="stream_mean",
    constants=(),
    weights=(),
    sizes=("num_streams",),
    reference=LazyRef(f"{_REFERENCE}:bind_mean"),
)
