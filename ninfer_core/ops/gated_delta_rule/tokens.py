"""Tokens of the gated delta rules, and the walk over the rows of a step that all its forms share.

Every token is first turned into the row that a record would keep of it, and advances the state from
there: what is replayed is what would have been applied at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
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
    :ivar log_decays: g, ``[T, Hv]``, or ``[T, Hv, Dk]`` with one for each component of a key.
    :ivar betas: ``[T, Hv]``.
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


class TokenForm(ABC):
    """Activations to record rows and queries, and rows to `Tokens`, for one bound op.

    :param key_heads, value_heads: numbers. :param decay_dim: decays of a value head.
    """

    def __init__(
        self, request: KernelRequest, a_log: Tensor, *, key_heads: int, value_heads: int,
        decay_dim: int,
    ) -> None:
        sizes = request.sizes
        self._key_heads, self._value_heads, self._decay_dim = key_heads, value_heads, decay_dim
        self._key_dim, self._value_dim, self._eps = (
            sizes["key_dim"], sizes["value_dim"], sizes["eps"],
        )
        self._rates = a_log.double().exp()

    @abstractmethod
    def log_decays(self, gates: Tensor) -> Tensor:
        """FP64 ``[T, Hv decays]`` of what the op is called with."""

    def record_rows(self, k: Tensor, v: Tensor, gates: Tensor, b: Tensor) -> Tensor:
        """FP32 ``[T, W]``: keys, values, decays and betas."""
        keys = self._normalised(k).flatten(1)
        parts = keys, v.double(), self.log_decays(gates.double()), b.double().sigmoid()
        return torch.cat(parts, 1).float()

    def queries(self, q: Tensor) -> Tensor:
        """FP32 ``[T, Hv, Dk]``."""
        return self._expanded(self._normalised(q) * self._key_dim**-0.5).float()

    def tokens(self, rows: Tensor, queries: Tensor | None = None) -> Tokens:
        """What record rows stand for."""
        heads, count = self._value_heads, len(rows)
        keys_width = self._key_heads * self._key_dim
        widths = (keys_width, heads * self._value_dim, heads * self._decay_dim, heads)
        keys, values, log_decays, betas = rows.split(widths, 1)
        keys = self._expanded(keys.reshape(count, self._key_heads, self._key_dim))
        values = values.reshape(count, heads, self._value_dim)
        log_decays = log_decays.reshape(count, heads, self._decay_dim).squeeze(-1)
        return Tokens(keys, values, log_decays, betas, queries)

    def _normalised(self, x: Tensor) -> Tensor:
        heads = x.reshape(len(x), self._key_heads, self._key_dim).double()
        return heads / (heads.square().sum(-1, keepdim=True) + self._eps).sqrt()

    def _expanded(self, heads: Tensor) -> Tensor:
        return heads.repeat_interleave(self._value_heads // self._key_heads, 1)


class HeadForm(TokenForm):
    """Of ``gated_delta_rule``: a decay for each value head."""

    def __init__(self, request: KernelRequest, a_log: Tensor, dt_bias: Tensor) -> None:
        heads = {name: request.sizes[f"num_{name}"] for name in ("key_heads", "value_heads")}
        super().__init__(request, a_log, **heads, decay_dim=1)
        self._dt_bias = dt_bias.double()

    def log_decays(self, gates: Tensor) -> Tensor:
        return -self._rates * softplus(gates + self._dt_bias, threshold=50)


class ChannelForm(TokenForm):
    """Of ``channel_delta_rule``: a decay for each component of a key."""

    def __init__(self, request: KernelRequest, a_log: Tensor, dt_bias: Tensor) -> None:
        heads, dim = request.sizes["num_heads"], request.sizes["key_dim"]
        super().__init__(request, a_log, key_heads=heads, value_heads=heads, decay_dim=dim)
        self._dt_bias, self._lower_bound = dt_bias.double(), request.sizes["lower_bound"]

    def log_decays(self, gates: Tensor) -> Tensor:
        growing = (gates + self._dt_bias).unflatten(1, (-1, self._key_dim))
        return self._lower_bound * (self._rates.unsqueeze(-1) * growing).sigmoid().flatten(1)


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
