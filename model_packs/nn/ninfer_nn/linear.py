"""Projections, tables and the output head."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ninfer_core.api import BuildContext
from ninfer_core.state.step import StepBatch

Product = Callable[..., Tensor]
"""``(x, out, residual=None) -> out``, as of the op ``linear``."""


class Linear:
    """A projection, or several of the same input into the columns of one result.

    Neighbours that are stored alike run as one product, so those of one stored matrix should be
    named in its order: then nothing is copied.

    :param names: parameters, stacked by rows.
    :param out: name of the buffer of the result; None if only `add_to` and `write` are used.
    :param dtype: of that buffer; None: the compute dtype.
    :param bias: direct parameters, stacked in the same order.
    :param leads, follows: whether it is always called right before, or right after, another of the
        same input.
    """

    def __init__(
        self, context: BuildContext, *names: str, out: str | None = None,
        bias: Sequence[str] = (), dtype: torch.dtype | None = None, leads: bool = False,
        follows: bool = False,
    ) -> None:
        weights = context.weight_runs(*names)
        widths = [weight.info.shape[0] for weight in weights]
        biases: Sequence[Tensor | None] = [None] * len(weights)
        if bias:
            biases = torch.cat([context.tensor(name) for name in bias]).split(widths)
        products = [
            context.bind("linear", weight=weight, bias=added)
            for weight, added in zip(weights, biases, strict=True)
        ]
        last = len(products) - 1
        products = [
            _among(each, leads=leads or i < last, follows=follows or i > 0)
            for i, each in enumerate(products)
        ]
        self._product = products[0] if len(products) == 1 else _side_by_side(products, widths)
        if out:
            self._out = context.buffer(out, sum(widths), dtype=dtype)

    def __call__(self, x: Tensor) -> Tensor:
        """``[T, K]`` to ``[T, N]``."""
        result: Tensor = self._product(x, self._out(x.shape[0]))
        return result

    def add_to(self, stream: Tensor, x: Tensor) -> None:
        """Add the product of ``x`` to the residual stream ``[T, N]`` in place."""
        self._product(x, stream, stream)

    def write(self, out: Tensor, x: Tensor) -> None:
        """Write the product of ``x`` to ``out`` ``[T, N]``."""
        self._product(x, out)


def _among(product: Product, *, leads: bool, follows: bool) -> Product:
    """A product in its place among others, if its kernel cares."""
    among: Callable[..., Product] | None = getattr(product, "among", None)
    return among(leads=leads, follows=follows) if among else product


def _side_by_side(products: Sequence[Product], widths: Sequence[int]) -> Product:
    """Products of one input as one, each into columns of its own."""

    def product(x: Tensor, out: Tensor, residual: Tensor | None = None) -> Tensor:
        rest = [None] * len(products) if residual is None else residual.split(widths, dim=1)
        for each, columns, added in zip(products, out.split(widths, dim=1), rest, strict=True):
            each(x, columns, added)
        return out

    return product


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
