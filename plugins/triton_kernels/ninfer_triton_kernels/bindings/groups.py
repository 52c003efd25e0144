"""``linear_group``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from attrs import frozen
from torch import Tensor

from ninfer_core.api import KernelRequest
from ninfer_core.artifact.weight import Weight
from ninfer_core.ops.linear.reference import side_by_side
from ninfer_triton_kernels.bindings.launching import OVERLAPPED, num_processors
from ninfer_triton_kernels.bindings.matrices import FEW_TOKENS, MatrixProduct
from ninfer_triton_kernels.bindings.stored import (
    DenseMatrix,
    TiledMatrix,
    stored_kind,
    stored_matrix,
    tokens_of,
)
from ninfer_triton_kernels.kernels.groups import linear_group as kernel
from ninfer_triton_kernels.tuning import GROUP_WARPS, Tile, group_tile

Matrix = DenseMatrix | TiledMatrix


def bind_linear_group(
    request: KernelRequest, weights: tuple[Weight, ...], biases: tuple[Tensor | None, ...]
) -> Callable[..., Tensor]:
    """One launch for few rows, one for each weight for many."""
    matrices, depth = [*map(stored_matrix, weights)], weights[0].info.shape[1]
    products = [MatrixProduct(*each) for each in zip(matrices, biases, strict=True)]
    apart = side_by_side(products, [matrix.shape[0] for matrix in matrices])
    members = _members(weights, matrices, biases)

    @cache
    def prepared(tokens: int) -> tuple[int, tuple[Any, ...], tuple[Any, ...]]:
        """Programs, tensors and kinds for programs of so many rows of activations."""
        end, kinds = 0, []
        for member in members:
            begin, tile = end, member.tile_for(tokens)
            end += -(-member.width // tile.rows)
            kinds.append((begin, end, *member.kind, tile.rows, tile.batch, tile.stages))
        return end, tuple(member.tensors for member in members), tuple(kinds)

    def linear_group(x: Tensor, out: Tensor, residual: Tensor | None = None) -> Tensor:
        if x.shape[0] > FEW_TOKENS:
            return apart(x, out, residual)
        tokens = tokens_of(x)
        programs, tensors, kinds = prepared(tokens)
        rest = out if residual is None else residual
        kernel[programs, -(-x.shape[0] // tokens)](
            x, tensors, rest, out, x.shape[0], x.stride(0), rest.stride(0), out.stride(0), depth,
            kinds, residual is not None, tokens, num_warps=GROUP_WARPS, **OVERLAPPED,
        )
        return out

    return linear_group


@frozen(eq=False)
class _Member:
    """One weight of a group.

    :ivar tensors: as the kernel takes them. :ivar kind: first column, width, and what there is.
    """

    tile: Tile
    width: int
    tensors: tuple[Tensor, ...]
    kind: tuple[Any, ...]
    is_dense: bool

    def tile_for(self, tokens: int) -> Tile:
        return self.tile if self.is_dense else self.tile.for_tokens(tokens, self.kind[4])


def _members(
    weights: Sequence[Weight], matrices: Sequence[Matrix], biases: Sequence[Tensor | None]
) -> list[_Member]:
    """Those whose programs take longest come first."""
    members, column, heights = [], 0, [matrix.shape[0] for matrix in matrices]
    processors = num_processors(matrices[0].tensors[0].device)
    for weight, matrix, bias in zip(weights, matrices, biases, strict=True):
        width = matrix.shape[0]
        tile = group_tile(stored_kind(weight.info), matrix.tile, heights, processors)
        tensors = (*matrix.tensors, matrix.tensors[0] if bias is None else bias)
        kind = (column, width, *matrix.kinds, bias is not None)
        members.append(_Member(tile, width, tensors, kind, isinstance(matrix, DenseMatrix)))
        column += width
    return sorted(members, key=lambda each: (not each.is_dense, -each.tile.rows * each.kind[2]))
