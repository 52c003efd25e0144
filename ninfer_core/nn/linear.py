"""Projections, tables and the output head."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ninfer_core.api import BuildContext
from ninfer_core.state.step import StepBatch


class Linear:
    """A projection, or several of the same input as one product.

    :param names: parameters, stacked by rows.
    :param out: name of the buffer of the result; None if only `add_to` is used.
    :param bias: direct parameters, stacked in the same order.
    """

    def __init__(
        self, context: BuildContext, *names: str, out: str | None = None, bias: Sequence[str] = ()
    ) -> None:
        weight = context.weight(*names)
        stacked = torch.cat([context.tensor(name) for name in bias]) if bias else None
        self._product = context.bind("linear", weight=weight, bias=stacked)
        if out:
            self._out = context.buffer(out, weight.info.shape[0])

    def __call__(self, x: Tensor) -> Tensor:
        """``[T, K]`` to ``[T, N]``."""
        result: Tensor = self._product(x, self._out(x.shape[0]))
        return result

    def add_to(self, stream: Tensor, x: Tensor) -> None:
        """Add the product of ``x`` to the residual stream ``[T, N]`` in place."""
        self._product(x, stream, stream)


class Embedding:
    """Rows of a table: int64 ``[T]`` to ``[T, H]``."""

    def __init__(self, context: BuildContext, name: str, *, out: str) -> None:
        weight = context.weight(name)
        self._gather = context.bind("embedding", weight=weight)
        self._out = context.buffer(out, weight.info.shape[1])

    def __call__(self, ids: Tensor) -> Tensor:
        rows: Tensor = self._gather(ids, self._out(ids.shape[0]))
        return rows


class OutputHead:
    """Logits of the wanted tokens only."""

    def __init__(self, context: BuildContext, name: str) -> None:
        weight = context.weight(name)
        vocab_size, width = weight.info.shape
        self._product = context.bind("linear", weight=weight, bias=None)
        self._rows = context.buffer("head_rows", width)
        self._logits = torch.empty(
            (context.max_logits, vocab_size), dtype=torch.float32, device=context.device
        )

    def __call__(self, hidden: Tensor, batch: StepBatch) -> Tensor:
        """``[T, H]`` to fp32 ``[batch.num_logits, V]``, valid until the next call."""
        wanted, count = batch.logit_rows[: batch.num_logits], batch.num_logits
        rows = torch.index_select(hidden, 0, wanted, out=self._rows(count))
        logits: Tensor = self._product(rows, self._logits[:count])
        return logits
