"""A weight as kernels see it: planes in their stored layout, and the way back to numbers."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen
from torch import Tensor

from ninfer_core.api import FormatCodec, StorageLayout, WeightInfo


@frozen(eq=False)
class Weight:
    """A logical matrix ``[N, K]`` (or a stack of matrices by rows) in its stored form.

    :ivar info: shape, format and layout name.
    :ivar planes: plane name -> tensor in the geometry `StorageLayout.planes` gives for the shape
        (dimension 0 may be a slice of the parent's rows).
    """

    info: WeightInfo
    planes: Mapping[str, Tensor]
    codec: FormatCodec
    layout: StorageLayout

    def dense(self) -> Tensor:
        """fp32 ``[N, K]``, exactly what the format means; a new tensor."""
        parts = self.layout.unpack(self.info.format.name, self.info.shape, self.planes)
        return self.codec.dequantize(parts)
