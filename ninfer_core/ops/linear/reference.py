"""``linear`` and ``linear_group`` in FP32, row by row."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ninfer_core.api import KernelRequest
from ninfer_core.artifact.weight import Weight


class RowProduct:
    """``W x`` of one row: always the same product on the same memory, so that its bits do not
    depend on the other rows (those of a matrix product depend on their number)."""

    def __init__(self, weight: Weight) -> None:
        self._matrix = weight.dense().flatten(0, -2)  # [N, K]
        self._row = self._matrix.new_empty(self._matrix.shape[1])
        self._product = self._matrix.new_empty(self._matrix.shape[0])

    def __call__(self, row: Tensor) -> Tensor:
        """``[K]`` to fp32 ``[N]``, valid until the next call."""
        return torch.mv(self._matrix, self._row.copy_(row), out=self._product)


def bind(request: KernelRequest, weight: Weight, bias: Tensor | None) -> Callable[..., Tensor]:
    product = RowProduct(weight)

    def linear(x: Tensor, out: Tensor, residual: Tensor | None = None) -> Tensor:
        for t in range(x.shape[0]):
            row = product(x[t])
            if bias is not None:
                row += bias
            if residual is not None:
                row += residual[t]
            out[t] = row
        return out

    return linear


def bind_group(
    request: KernelRequest, weights: Sequence[Weight], biases: Sequence[Tensor | None]
) -> Callable[..., Tensor]:
    products = [bind(request, *each) for each in zip(weights, biases, strict=True)]
    return side_by_side(products, [weight.info.shape[0] for weight in weights])


def side_by_side(
    products: Sequence[Callable[..., Tensor]], widths: Sequence[int]
) -> Callable[..., Tensor]:
    """Products of one input as one, each into columns of its own."""

    def product(x: Tensor, out: Tensor, residual: Tensor | None = None) -> Tensor:
        rest = [None] * len(products) if residual is None else residual.split(widths, dim=1)
        for each, columns, added in zip(products, out.split(widths, dim=1), rest, strict=True):
            each(x, columns, added)
        return out

    return product
