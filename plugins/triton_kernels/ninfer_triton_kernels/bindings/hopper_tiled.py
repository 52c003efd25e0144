"""Products of some rows of activations on compute capability 90."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from attrs import evolve
from torch import Tensor
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from ninfer_triton_kernels.bindings.descriptors import HOPPER, swizzled
from ninfer_triton_kernels.bindings.launching import (
    OVERLAPPED,
    capability,
    num_processors,
    or_other,
)
from ninfer_triton_kernels.bindings.shared import shared
from ninfer_triton_kernels.kernels.arranged import arrange_tokens
from ninfer_triton_kernels.kernels.hopper_tiled import CHAINS, ROWS, hopper_linear
from ninfer_triton_kernels.kernels.warp_groups import WARPS
from ninfer_triton_kernels.tuning import Tile

if TYPE_CHECKING:
    from ninfer_triton_kernels.bindings.stored import ProductLaunch, TiledMatrix

TOKENS = 32
"""Rows of activations that a program takes."""

LEAST_TOKENS, LEAST_PROGRAMS = 17, 2
"""Rows of activations, and programs for each multiprocessor, from which on it is the faster."""

MOST_REGISTERS = 168
"""Of a thread: three programs on a multiprocessor."""


def takes(matrix: TiledMatrix, x: Tensor) -> bool:
    """Whether the kernel has such weights, and sums to the bits that `tiled_linear` has."""
    (rows, depth), tile = matrix.shape, matrix.tile
    left = depth % (CHAINS.value * matrix.block)
    programs = -(-rows // ROWS.value) * -(-x.shape[0] // TOKENS) * tile.splits
    return (
        x.shape[0] >= LEAST_TOKENS
        and capability(x.device) == HOPPER
        and programs >= LEAST_PROGRAMS * num_processors(x.device)
        and (tile.warps, tile.blocks, left) == (CHAINS.value, 1, 0)
        and (matrix.group in (0, 16, 64) or (matrix.bits, matrix.group) == (8, 32))
        and matrix.stored.minimums is None
    )


def tile_of(matrix: TiledMatrix) -> Tile:
    """Of a program."""
    return evolve(matrix.tile, rows=ROWS.value)


def multiply(
    matrix: TiledMatrix, launch: ProductLaunch, x: Tensor, out: Tensor, bias: Tensor | None,
    residual: Tensor | None, gated: float,
) -> None:
    """As of `stored.Matrix`, for rows that it `takes`."""
    depth, stored, tokens, wide = matrix.shape[1], matrix.stored, launch.tokens, matrix.block
    tiles, groups, splits = launch.grid
    blocks = depth // wide
    rows = groups * blocks * tokens
    sums = shared("less_sums", rows, torch.float32, x.device)
    arranged = shared("arranged", rows * wide, torch.bfloat16, x.device)
    has_sums = matrix.bits < 8 and matrix.group == 64
    arrange_tokens[blocks, groups](
        x, arranged, sums, x.shape[0], x.stride(0), depth, wide,
        (matrix.bits, matrix.offset) == (8, 0), matrix.offset, has_sums, tokens, **OVERLAPPED,
    )
    hopper_linear[groups, tiles, splits](
        _steps_of(arranged, wide, tokens), sums,
        stored.codes, or_other(stored.high, x), stored.scales, or_other(stored.divisor, x),
        or_other(bias, x), or_other(residual, x), out, launch.parts, launch.arrivals, x.shape[0],
        launch.width, *launch.strides[1:], depth, matrix.bits, matrix.offset, matrix.group, gated,
        bias is not None, residual is not None, tokens, splits, *_stages(matrix),
        num_warps=WARPS.value, maxnreg=MOST_REGISTERS, **OVERLAPPED,
    )


_STEPS: dict[tuple[torch.device, int, int], tuple[Tensor, TensorDescriptor]] = {}
"""Of the memory that products share: each takes the host as long as a launch."""


def _steps_of(arranged: Tensor, wide: int, tokens: int) -> TensorDescriptor:
    """Memory as rows of ``wide`` columns, of which a step has `CHAINS` blocks of ``tokens``."""
    key = arranged.device, wide, tokens
    memory, steps = _STEPS.get(key, (None, None))
    if steps is None or memory is not arranged:
        rows = arranged[: arranged.numel() // wide * wide].view(-1, wide)
        steps = swizzled(rows, [CHAINS.value * tokens, wide])
        _STEPS[key] = arranged, steps
    return steps


def _stages(matrix: TiledMatrix) -> tuple[int, int, int]:
    """Steps of activations and of weights that shared memory has room for, three programs on a
    multiprocessor, and blocks of columns that are multiplied at once: what the registers allow."""
    if matrix.bits == 8:
        return 3, 4, 4 if matrix.group == 0 else 2
    if matrix.bits == 4:
        return 2, 4, 4 if matrix.group == 16 else 2
    return 2, 3, 1
