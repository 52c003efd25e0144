"""Tokens of the gated delta rule, and the walk over the rows of a step that all its forms share.

Every token is first turned into the row that a record would keep of it, and advances the state from
there: what is replayed is what would have been applied at once.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from attrs import frozen
from torch import Tensor
from torch.nn.functional import softplus

from ninfer_core.api import KernelRequest
from ninfer_core.ops.slot_rows import slot_rows
from ninfer_core.state.step import StepBatch
from ninfer_core.state.views import SlotPlanes


@frozen(eq=False)
class Tokens:
    """Consecutive tokens of one sequence, by value head.

    :ivar keys: normalised, ``[T, Hv, Dk]``. :ivar values: ``[T, Hv, Dv]``.
    :ivar log_decays: g, ``[T, Hv]``. :ivar betas: ``[T, Hv]``.
    :ivar queries: normalised and scaled, ``[T, Hv, Dk]``; None if nothing is read.
    """

    keys: Tensor
    values: Tensor
    log_decays: Tensor
    betas: Tensor
    queries: Tensor | None = None


Scan = Callable[[Tensor, Tokens], tuple[Tensor, Tensor | None]]
"""``(S [Hv, Dk, Dv], tokens) -> (S after them, outputs [T, Hv, Dv] if there are queries)``; what is
given stays as it is."""


class TokenForm:
    """Activations to record rows and queries, and rows to `Tokens`, for one bound op."""

    def __init__(self, request: KernelRequest, a_log: Tensor, dt_bias: Tensor) -> None:
        sizes = request.sizes
        self._key_heads, self._value_heads = sizes["num_key_heads"], sizes["num_value_heads"]
        self._key_dim, self._value_dim, self._eps = (
            sizes["key_dim"], sizes["value_dim"], sizes["eps"],
        )
        self._rates, self._dt_bias = -a_log.double().exp(), dt_bias.double()

    def record_rows(self, k: Tensor, v: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """FP32 ``[T, Hk Dk + Hv Dv + 2 Hv]``."""
        keys = self._normalised(k).flatten(1)
        log_decays = self._rates * softplus(a.double() + self._dt_bias, threshold=50)
        return torch.cat((keys, v.double(), log_decays, b.double().sigmoid()), 1).float()

    def queries(self, q: Tensor) -> Tensor:
        """FP32 ``[T, Hv, Dk]``."""
        return self._expanded(self._normalised(q) * self._key_dim**-0.5).float()

    def tokens(self, rows: Tensor, queries: Tensor | None = None) -> Tokens:
        """What record rows stand for."""
        heads, count = self._value_heads, len(rows)
        widths = (self._key_heads * self._key_dim, heads * self._value_dim, heads, heads)
        keys, values, log_decays, betas = rows.split(widths, 1)
        keys = self._expanded(keys.reshape(count, self._key_heads, self._key_dim))
        values = values.reshape(count, heads, self._value_dim)
        return Tokens(keys, values, log_decays, betas, queries)

    def _normalised(self, x: Tensor) -> Tensor:
        heads = x.reshape(len(x), self._key_heads, self._key_dim).double()
        return heads / (heads.square().sum(-1, keepdim=True) + self._eps).sqrt()

    def _expanded(self, heads: Tensor) -> Tensor:
        return heads.repeat_interleave(self._value_heads // self._key_heads, 1)


def scan_rows(
    scan: Scan, form: TokenForm, planes: SlotPlanes, batch: StepBatch, rows: Tensor,
    queries: Tensor, out: Tensor,
) -> Tensor:
    """Replay, then advance or record, every row of a step; ``rows`` and ``queries`` of its T
    tokens."""
    for row in slot_rows(batch):
        committed, record = planes.committed[row.slot], planes.record[row.slot]
        if row.replay:
            committed.copy_(scan(committed, form.tokens(record[: row.replay]))[0])
        if row.begin == row.end:
            continue
        own = rows[row.tokens]
        state, outputs = scan(committed, form.tokens(own, queries[row.tokens]))
        assert outputs is not None
        out[row.tokens] = outputs.flatten(1)
        if row.certain:
            committed.copy_(state)
        else:
            record[: len(own)] = own
    return out
