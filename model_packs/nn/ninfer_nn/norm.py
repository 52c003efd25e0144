"""Normalisation."""

from __future__ import annotations

from torch import Tensor

from ninfer_core.api import BuildContext


class RMSNorm:
    """``[T, H]`` to ``[T, H]`` in the buffer ``out``; ``unit_offset`` multiplies by ``1 + w``.

    :ivar weight, sizes: of the op. :ivar out: ``(T) -> rows`` of the buffer.
    """

    def __init__(
        self, context: BuildContext, name: str, *, eps: float, out: str, unit_offset: bool = False
    ) -> None:
        self.weight = context.tensor(name)
        self.sizes = {"eps": eps, "unit_offset": unit_offset}
        self._norm = context.bind("rmsnorm", sizes=self.sizes, weight=self.weight)
        self.out = context.buffer(out, self.weight.shape[0])

    def __call__(self, x: Tensor) -> Tensor:
        normed: Tensor = self._norm(x, self.out(x.shape[0]))
        return normed
