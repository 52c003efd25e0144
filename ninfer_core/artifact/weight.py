"""A weight as kernels see it: planes in their stored layout, and the way back to numbers."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve, frozen
from torch import Tensor

from ninfer_core.api import ArtifactError, FormatCodec, StorageLayout, WeightInfo
from ninfer_core.artifact.rows import cut


@frozen(eq=False)
class Weight:
    """A logical matrix ``[N, K]`` (or a stack of matrices by rows) in its stored form, or a bank of
    matrices ``[E, N, K]``.

    :ivar info: shape, format and layout name.
    :ivar planes: plane name -> tensor in the geometry `StorageLayout.planes` gives for the shape
        (dimension 0 may be a slice of the parent's rows).
    """

    info: WeightInfo
    planes: Mapping[str, Tensor]
    codec: FormatCodec
    layout: StorageLayout

    def part(self, index: int, count: int) -> Weight:
        """The ``index``-th of ``count`` equal runs of rows, without a copy.

        :raises ArtifactError: if the rows are no multiple, or the layout does not keep those of a
            run together.
        """
        total, where = self.info.shape[0], f"layout {self.info.layout}"
        rows, rest = divmod(total, count)
        if rest:
            why = f"{total} rows are not {count} equal runs"
            raise ArtifactError("a weight cannot be cut", where=where, why=why)
        planes = cut(self.planes, index * rows, (index + 1) * rows, total, where)
        shape = (rows, *self.info.shape[1:])
        return evolve(self, info=evolve(self.info, shape=shape), planes=planes)

    def dense(self) -> Tensor:
        """fp32 in the logical shape, exactly what the format means; a new tensor."""
        parts = self.layout.unpack(self.info.format.name, self.info.shape, self.planes)
        return self.codec.dequantize(parts)
