"""Normalisation."""

from __future__ import annotations

from torch import Tensor

from ninfer_core.api import BuildContext


class RMSNorm:
    """``[T, H]`` to ``[T, H]`` in the buffer ``out``; ``unit_offset`` multiplies by ``1 + w``."""

    def __init__(
        self, context: BuildContext, name: str, *, eps: float, out: str, unit_offset: bool = False
    ) -> None:
        weight = context.tensor(name)
        sizes = {"eps": eps, "unit_offset": unit_offset}
        self._norm = context.bind("rmsnorm", sizes=sizes, weight=weight)
        self._out = context.buffer(out, weight.shape[0])

    def __call__(self, x: Tensor) -> Tensor:
        normed: Tensor = self._norm(x, self._out(x.shape[0]))
        return normed
