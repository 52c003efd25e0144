"""Cutting parameters out of the tensors of checkpoints.

A selection maps every part of a tensor (codes, scales, a divisor) alike, because parts have the
same rows; a part without rows is of the whole tensor and stays. One that transposes is of values.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

Select = Callable[[Tensor], Tensor]


def whole(part: Tensor) -> Tensor:
    """All of it."""
    return part


def rows_of_heads(num_heads: int, begin: int, end: int) -> Select:
    """Rows ``begin`` to ``end`` of each head's."""

    def select(part: Tensor) -> Tensor:
        if not part.ndim:
            return part
        return part.unflatten(0, (num_heads, -1))[:, begin:end].flatten(0, 1)

    return select


def columns_of_heads(num_heads: int, begin: int, end: int) -> Select:
    """Rows ``begin`` to ``end`` of each head's, transposed: the columns of a matrix for each head,
    one below the other."""

    def select(part: Tensor) -> Tensor:
        rows = part.unflatten(0, (num_heads, -1))[:, begin:end]
        return rows.mT.flatten(0, 1)

    return select


def taps(part: Tensor) -> Tensor:
    """A depthwise convolution ``[C, 1, taps]`` to ``[taps, C]``."""
    return part.permute(2, 0, 1).flatten(1).contiguous()
