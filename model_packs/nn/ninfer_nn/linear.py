"""Projections, tables and the output head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor

from ninfer_core.api import BuildContext
from ninfer_core.artifact.weight import Weight
from ninfer_core.ops.linear.reference import side_by_side
from ninfer_core.state.step import StepBatch
from ninfer_nn.fused import bind_fused

Product = Callable[..., Tensor]
"""``(x, out, residual=None) -> out``, as of the op ``linear``."""


class Linear:
    """A projection, or several of the same input into the columns of one result.

    Neighbours that are stored alike run as one product, so those of one stored matrix should be
    named in its order: then nothing is copied. All run in one launch where a kernel takes them.

    :param names: parameters, stacked by rows.
    :param out: name of the buffer of the result; None if only `add_to` and `write` are used.
    :param dtype: of that buffer; None: the compute dtype.
    :param bias: direct parameters, stacked in the same order.
    :param apart: parameters that come behind the others and never stack with them.
    """

    def __init__(
        self, context: BuildContext, *names: str, out: str | None = None,
        bias: Sequence[str] = (), dtype: torch.dtype | None = None, apart: Sequence[str] = (),
    ) -> None:
        weights = (*context.weight_runs(*names), *context.weight_runs(*apart))
        widths = [weight.info.shape[0] for weight in weights]
        biases: Sequence[Tensor | None] = [None] * len(weights)
        if bias:
            biases = torch.cat([context.tensor(name) for name in bias]).split(widths)
        self._product = bind_products(context, weights, biases)
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


def bind_products(
    context: BuildContext, weights: Sequence[Weight], biases: Sequence[Tensor | None]
) -> Product:
    """Products of one input with weights, side by side."""
    if len(weights) == 1:
        return cast(Product, context.bind("linear", weight=weights[0], bias=biases[0]))
    product = bind_fused(context, "linear_group", weights=tuple(weights), biases=tuple(biases))
    if product is None:
        products = [context.bind("linear", weight=weight, bias=bias)
                    for weight, bias in zip(weights, biases, strict=True)]
        product = side_by_side(products, [weight.info.shape[0] for weight in weights])
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
        self._wanted = WantedRows(context, width, out="head_rows")
        self._logits = torch.empty(
            (context.max_logits, vocab_size), dtype=torch.float32, device=context.device
        )

    def __call__(self, hidden: Tensor, batch: StepBatch) -> Tensor:
        """``[T, H]`` to fp32 ``[batch.num_logits, V]``, valid until the next call."""
        return self.of_rows(self._wanted(hidden, batch))

    def of_rows(self, rows: Tensor) -> Tensor:
        """The same for wanted rows ``[R, H]``."""
        logits: Tensor = self._product(rows, self._logits[: rows.shape[0]])
        return logits


class WantedRows:
    """``[T, W]`` to the rows whose logits are wanted, ``[batch.num_logits, W]``; if those are all,
    to itself.

    :param out: name of the buffer of the result.
    """

    def __init__(self, context: BuildContext, width: int, *, out: str) -> None:
        self._rows = context.buffer(out, width)

    def __call__(self, x: Tensor, batch: StepBatch) -> Tensor:
        count = batch.num_logits
        if count == x.shape[0]:
            return x
        return torch.index_select(x, 0, batch.logit_rows[:count], out=self._rows(count))
