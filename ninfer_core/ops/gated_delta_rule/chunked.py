"""``gated_delta_rule`` by chunks of tokens: few large matrix products instead of a long recurrence.

Within a chunk, with ``G_i = sum_{s <= i} g_s`` and ``D_ij = e^(G_i - G_j)`` for ``i >= j``, the
corrections d of all tokens solve one unit lower triangular system (Yang et al., Parallelizing
Linear Transformers with the Delta Rule, 2024, section 3; with decay, Gated Delta Networks, section
3.3)::

    d_i = beta_i (v_i - e^G_i S^T k_i - sum_{j < i} D_ij (k_i . k_j) d_j)
    o_i = e^G_i S^T q_i + sum_{j <= i} D_ij (q_i . k_j) d_j
    S'  = e^G_C S + sum_i e^(G_C - G_i) k_i d_i^T

Bits depend on where chunks begin, so this form is not batch-invariant.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ninfer_core.api import KernelRequest
from ninfer_core.ops.gated_delta_rule.tokens import TokenForm, Tokens, scan_rows
from ninfer_core.state.step import StepBatch
from ninfer_core.state.views import SlotPlanes

CHUNK = 64
"""Tokens: the products within a chunk then cost about as much as those with the state."""


def scan_chunks(
    state: Tensor, tokens: Tokens, chunk: int = CHUNK
) -> tuple[Tensor, Tensor | None]:
    """The state ``[Hv, Dk, Dv]`` after any number of tokens, and what their queries read.

    Computes in the dtype of the state, which the tokens must have too.
    """
    outputs = []
    for begin in range(0, len(tokens.keys), chunk):
        state, output = _advance(state, _part(tokens, slice(begin, begin + chunk)))
        outputs.append(output)
    return state, None if tokens.queries is None else torch.cat(outputs, 1).transpose(0, 1)


def _part(tokens: Tokens, part: slice) -> Tokens:
    """Some tokens, heads first: ``[Hv, C, D]`` and ``[Hv, C]``."""
    queries = tokens.queries
    return Tokens(
        tokens.keys[part].transpose(0, 1), tokens.values[part].transpose(0, 1),
        tokens.log_decays[part].T, tokens.betas[part].T,
        None if queries is None else queries[part].transpose(0, 1),
    )


def _advance(state: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor]:
    """One chunk: S after it, and outputs ``[Hv, C, Dv]`` (empty without queries)."""
    keys, betas = tokens.keys, tokens.betas.unsqueeze(-1)
    total = tokens.log_decays.cumsum(-1)
    later = total.unsqueeze(-1) - total.unsqueeze(-2)
    decays = later.tril().exp().tril()  # above the diagonal, e^later could overflow
    grown = total.exp().unsqueeze(-1)
    expected = grown * (keys @ state)
    overlap = (keys @ keys.mT * decays * betas).tril(-1)
    deltas = torch.linalg.solve_triangular(
        overlap, betas * (tokens.values - expected), upper=False, unitriangular=True
    )
    remaining = (total[:, -1:] - total).exp().unsqueeze(-1)
    after = grown[:, -1:] * state + (remaining * keys).mT @ deltas
    if (queries := tokens.queries) is None:
        return after, deltas[:, :0]
    return after, grown * (queries @ state) + (queries @ keys.mT * decays) @ deltas


def bind(
    request: KernelRequest, planes: SlotPlanes, a_log: Tensor, dt_bias: Tensor
) -> Callable[..., Tensor]:
    form = TokenForm(request, a_log, dt_bias)

    def gated_delta_rule(
        q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, batch: StepBatch, out: Tensor
    ) -> Tensor:
        live = slice(batch.num_tokens)
        rows = form.record_rows(k[live], v[live], a[live], b[live])
        return scan_rows(scan_chunks, form, planes, batch, rows, form.queries(q[live]), out)

    return gated_delta_rule
