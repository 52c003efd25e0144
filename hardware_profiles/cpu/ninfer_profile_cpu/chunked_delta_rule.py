"""The gated delta rules by chunks of tokens: few large matrix products, not a long recurrence.

Within a chunk, with ``G_i = sum_{s <= i} g_s`` and the overlap
``A(x)_ij = sum_c x_ic k_jc e^(G_ic - G_jc)`` for ``i >= j``, the corrections d of all tokens solve
one unit lower triangular system (Yang et al., Parallelizing Linear Transformers with the Delta
Rule, 2024, section 3; with a decay, Gated Delta Networks, section 3.3; with decays by channel, Kimi
Linear, 2025, section 3)::

    d_i = beta_i (v_i - (e^G_i k_i)^T S - sum_{j < i} A(k)_ij d_j)
    o_i = (e^G_i q_i)^T S + sum_{j <= i} A(q)_ij d_j
    S'  = e^G_C S + sum_i e^(G_C - G_i) k_i d_i^T

Bits depend on where chunks begin, so these forms are not batch-invariant.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from ninfer_core.api import KernelRequest
from ninfer_core.ops.gated_delta_rule.tokens import (
    ChannelForm,
    HeadForm,
    TokenForm,
    Tokens,
    scan_rows,
)
from ninfer_core.state.step import StepBatch
from ninfer_core.state.views import SlotPlanes

CHUNK = 64
"""Tokens: the products within a chunk then cost about as much as those with the state."""

SUB_CHUNK = 16
"""Tokens whose decays by channel are taken relative to one of them."""

LOWEST_BOUND = -10.0
"""Of decays by channel: half of `SUB_CHUNK` times as much is the logarithm of an FP32."""

Overlap = Callable[[Tensor, Tensor, Tensor], Tensor]
"""``(x [H, C, Dk], keys [H, C, Dk], G [H, C, 1 or Dk]) -> A(x) [H, C, C]``; what it has above the
diagonal is finite."""


def head_overlap(x: Tensor, keys: Tensor, total: Tensor) -> Tensor:
    """With one decay for all channels."""
    return x @ keys.mT * (total - total.mT).tril().exp()


def channel_overlap(x: Tensor, keys: Tensor, total: Tensor) -> Tensor:
    """With decays by channel. Neither e^G_i nor e^-G_j is formed, which leave the range of FP32,
    but both relative to G at a token between j and i, or to one that is near to both."""
    overlap = x.new_zeros((*x.shape[:2], x.shape[1]))
    for begin in range(0, x.shape[1], SUB_CHUNK):
        own = slice(begin, begin + SUB_CHUNK)
        rows, now = x[:, own], total[:, own]
        middle = now[:, now.shape[1] // 2, None]
        overlap[:, own, own] = _relative(rows, now, keys[:, own], now, middle)
        if begin:
            before, between = total[:, :begin], total[:, begin - 1, None]
            overlap[:, own, :begin] = _relative(rows, now, keys[:, :begin], before, between)
    return overlap


def _relative(x: Tensor, now: Tensor, keys: Tensor, before: Tensor, between: Tensor) -> Tensor:
    return (x * (now - between).exp()) @ (keys * (between - before).exp()).mT


def scan_chunks(
    overlap: Overlap, state: Tensor, tokens: Tokens, chunk: int = CHUNK
) -> tuple[Tensor, Tensor | None]:
    """The state ``[Hv, Dk, Dv]`` after any number of tokens, and what their queries read.

    Computes in the dtype of the state, which the tokens must have too.
    """
    outputs = []
    for begin in range(0, len(tokens.keys), chunk):
        state, output = _advance(overlap, state, _part(tokens, slice(begin, begin + chunk)))
        outputs.append(output)
    return state, None if tokens.queries is None else torch.cat(outputs, 1).transpose(0, 1)


def _part(tokens: Tokens, part: slice) -> Tokens:
    """Some tokens, heads first: ``[Hv, C, D]``; decays ``[Hv, C, 1 or Dk]``, betas
    ``[Hv, C, 1]``."""
    queries, decays = tokens.queries, tokens.log_decays[part]
    return Tokens(
        tokens.keys[part].transpose(0, 1), tokens.values[part].transpose(0, 1),
        (decays if decays.ndim == 3 else decays.unsqueeze(-1)).transpose(0, 1),
        tokens.betas[part].T.unsqueeze(-1),
        None if queries is None else queries[part].transpose(0, 1),
    )


def _advance(overlap: Overlap, state: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor]:
    """One chunk: S after it, and outputs ``[Hv, C, Dv]`` (empty without queries)."""
    keys, betas, total = tokens.keys, tokens.betas, tokens.log_decays.cumsum(1)
    grown = total.exp()
    errors = tokens.values - (grown * keys) @ state
    deltas = torch.linalg.solve_triangular(
        (betas * overlap(keys, keys, total)).tril(-1), betas * errors, upper=False,
        unitriangular=True,
    )
    remaining = (total[:, -1:] - total).exp()
    after = grown[:, -1].unsqueeze(-1) * state + (remaining * keys).mT @ deltas
    if (queries := tokens.queries) is None:
        return after, deltas[:, :0]
    return after, (grown * queries) @ state + overlap(queries, keys, total).tril() @ deltas


def bind(
    request: KernelRequest, planes: SlotPlanes, a_log: Tensor, dt_bias: Tensor
) -> Callable[..., Tensor]:
    return _bind(HeadForm(request, a_log, dt_bias), head_overlap, planes)


def bind_channel(
    request: KernelRequest, planes: SlotPlanes, a_log: Tensor, dt_bias: Tensor
) -> Callable[..., Tensor]:
    return _bind(ChannelForm(request, a_log, dt_bias), channel_overlap, planes)


def accept_channel(request: KernelRequest) -> str | None:
    if (bound := request.sizes["lower_bound"]) < LOWEST_BOUND:
        return f"takes lower bounds from {LOWEST_BOUND} on, not {bound}"
    return None


def _bind(form: TokenForm, overlap: Overlap, planes: SlotPlanes) -> Callable[..., Tensor]:
    scan = partial(scan_chunks, overlap)

    def delta_rule(
        q: Tensor, k: Tensor, v: Tensor, gates: Tensor, b: Tensor, batch: StepBatch, out: Tensor
    ) -> Tensor:
        live = slice(batch.num_tokens)
        rows = form.record_rows(k[live], v[live], gates[live], b[live])
        return scan_rows(scan, form, planes, batch, rows, form.queries(q[live]), out)

    return delta_rule
