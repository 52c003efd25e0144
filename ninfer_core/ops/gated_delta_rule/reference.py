"""``gated_delta_rule`` and ``channel_delta_rule`` token by token: products in FP64, the state in
FP32 after each token."""

from collections.abc import Callable

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


def _advance(state: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, beta: Tensor) -> Tensor:
    """FP32 S ``[Hv, Dk, Dv]`` after one token; key ``[Hv, Dk]``, value ``[Hv, Dv]``, decay ``[Hv]``
    or ``[Hv, Dk]``."""
    decayed = state.double() * log_decay.double().exp().view(len(state), -1, 1)
    key = key.double().unsqueeze(-1)
    delta = beta.double().unsqueeze(-1) * (value.double() - (decayed * key).sum(1))
    return (decayed + key * delta.unsqueeze(1)).float()


def _scan(state: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor | None]:
    outputs = []
    for t in range(len(tokens.keys)):
        gates = tokens.log_decays[t], tokens.betas[t]
        state = _advance(state, tokens.keys[t], tokens.values[t], *gates)
        if tokens.queries is not None:
            outputs.append((state.double() * tokens.queries[t].double().unsqueeze(-1)).sum(1))
    return state, torch.stack(outputs) if outputs else None


def bind(
    request: KernelRequest, planes: SlotPlanes, a_log: Tensor, dt_bias: Tensor
) -> Callable[..., Tensor]:
    return _bind(HeadForm(request, a_log, dt_bias), planes)


def bind_channel(
    request: KernelRequest, planes: SlotPlanes, a_log: Tensor, dt_bias: Tensor
) -> Callable[..., Tensor]:
    return _bind(ChannelForm(request, a_log, dt_bias), planes)


def _bind(form: TokenForm, planes: SlotPlanes) -> Callable[..., Tensor]:
    def delta_rule(
        q: Tensor, k: Tensor, v: Tensor, gates: Tensor, b: Tensor, batch: StepBatch, out: Tensor
    ) -> Tensor:
        # One token at a time: the bits of a vectorised function may depend on where a value lies.
        each = [slice(t, t + 1) for t in range(batch.num_tokens)]
        rows = torch.cat([form.record_rows(k[t], v[t], gates[t], b[t]) for t in each])
        queries = torch.cat([form.queries(q[t]) for t in each])
        return scan_rows(_scan, form, planes, batch, rows, queries, out)

    return delta_rule
