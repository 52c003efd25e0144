"""Weights of all experts as the kernels of experts take them."""

from __future__ import annotations

from typing import Any

from attrs import frozen
from torch import Tensor

from ninfer_core.artifact.weight import Weight
from ninfer_triton_kernels.bindings.launching import IS_INTERPRETED
from ninfer_triton_kernels.bindings.stored import DENSE_COLUMNS, DenseMatrix, stored_matrix

DENSE_STAGES = 2
"""Most loads of dense weights, which go through shared memory."""


@frozen
class ExpertTile:
    """What one program takes of an expert.

    :ivar rows: of its matrix. :ivar batch: blocks of columns at once; from two on, each is one
        warp's. :ivar stages: loads in flight.
    """

    rows: int
    warps: int
    batch: int
    stages: int = 3


@frozen(eq=False)
class Bank:
    """Tensors and kinds of a bank as `kernels.stored.stored_product` takes them.

    :ivar block: columns that a warp takes at once.
    """

    tensors: tuple[Tensor, ...]
    kinds: tuple[Any, ...]
    depth: int
    block: int

    @classmethod
    def of(cls, weight: Weight) -> Bank:
        matrix, depth = stored_matrix(weight), weight.info.shape[-1]
        block = DENSE_COLUMNS if isinstance(matrix, DenseMatrix) else matrix.block
        return cls(matrix.tensors, matrix.kinds, depth, block)

    def sizes(self, tile: ExpertTile) -> tuple[bool, int, int, int]:
        """Whether columns are whole steps; rows, blocks of columns, and loads of a program."""
        rows = 64 if IS_INTERPRETED else tile.rows
        stages = min(tile.stages, DENSE_STAGES) if self.kinds[0] == 16 else tile.stages
        return self.depth % (tile.batch * self.block) == 0, rows, tile.batch, stages


Banks = tuple[Bank, Bank]
"""Gate_up and down."""
