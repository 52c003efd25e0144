"""Weights as the products of this distribution read them."""

from __future__ import annotations

from math import prod
from typing import Protocol

import torch
from attrs import frozen
from torch import Tensor

from ninfer_core.api import WeightInfo
from ninfer_core.artifact.weight import Weight
from ninfer_triton_kernels.bindings import hopper_tiled
from ninfer_triton_kernels.bindings.launching import (
    IS_INTERPRETED,
    OVERLAPPED,
    capability,
    num_processors,
    or_other,
)
from ninfer_triton_kernels.bindings.shared import shared
from ninfer_triton_kernels.fragments import Fragments, fragments_of
from ninfer_triton_kernels.kernels.dense import dense_linear
from ninfer_triton_kernels.kernels.tiled import tiled_linear
from ninfer_triton_kernels.kernels.unpack import unpack_fragments
from ninfer_triton_kernels.tuning import Tile, choose_tile

TOKENS = (8, 16, 32)
"""Rows of activations that a program may take; more go by the most."""

DENSE_COLUMNS = 64
"""Columns of a dense weight that a warp takes at once."""

E4M3_GROUPS = {"fp8_e4m3fn_row_bf16": 0, "fp8_e4m3fn_g128_fp32": 128}
"""Columns that share a scale; 0 for whole rows."""


class Matrix(Protocol):
    """A weight ``[N, K]``.

    :ivar wide: whether products of many rows go by way of `unpack` and the library's product.
    :ivar tensors, kinds: as `kernels.stored.stored_product` takes them: codes, what is beyond them,
        scales, minimums and divisor; and bits, offset, group and whether there are minimums.
    """

    wide: bool

    def multiply(
        self, x: Tensor, out: Tensor, bias: Tensor | None, residual: Tensor | None,
        *, gated: float = 0.0,
    ) -> None:
        """``out = x W^T + bias + residual``, or with ``gated`` silu of the upper half's product
        times the lower half's, both limited to ``gated``; any number of rows, the bits of
        each the same for every number."""
        ...

    def unpack(self) -> Tensor:
        """bf16 ``[N, K]``, valid until the next call of any weight's."""
        ...


def stored_matrix(weight: Weight) -> DenseMatrix | TiledMatrix:
    """Describe a weight, a bank of matrices as the rows of one; what has 8 bits or less is laid out
    anew unless it was stored or loaded so."""
    name, structure = weight.info.format.name, weight.info.format.structure
    *bank, depth = weight.info.shape
    shape, kind = (prod(bank), depth), stored_kind(weight.info)
    tile = _tile(kind, shape, next(iter(weight.planes.values())).device)
    if structure is not None:
        offset = 1 << structure.bits - 1 if structure.signed else 0
        fragments = fragments_of(weight)
        return TiledMatrix(shape, fragments, structure.bits, offset, structure.group, tile)
    if name == "nvfp4":
        return TiledMatrix(shape, fragments_of(weight), 4, 0, 16, tile)
    if name in E4M3_GROUPS:
        return TiledMatrix(shape, fragments_of(weight), 8, 0, E4M3_GROUPS[name], tile)
    parts = weight.layout.unpack(name, weight.info.shape, weight.planes)
    return DenseMatrix(shape, parts["codes"].contiguous().view(shape), tile)


def stored_kind(info: WeightInfo) -> str:
    """Name of a stored type in the table of tiles: what kernels are compiled for."""
    structure = info.format.structure
    if structure is None:
        return {"fp8_e4m3fn_row_bf16": "fp8", "fp8_e4m3fn_g128_fp32": "fp8_g128"}.get(
            info.format.name, info.format.name)
    return f"q{structure.bits}_g{structure.group}{'_min' if structure.minimum else ''}"


def _tile(kind: str, shape: tuple[int, ...], device: torch.device) -> Tile:
    if IS_INTERPRETED:
        return Tile(64, splits=2)
    rows, depth = shape
    return choose_tile(kind, rows, depth, num_processors(device), capability(device))


def tokens_of(x: Tensor) -> int:
    """Rows of activations that a program takes."""
    return next((n for n in TOKENS if x.shape[0] <= n), TOKENS[-1])


class ProductLaunch:
    """How a product of some rows of activations is launched: what both kinds of matrices share."""

    def __init__(
        self, tile: Tile, rows: int, x: Tensor, residual: Tensor | None, out: Tensor, gated: float
    ) -> None:
        device, splits, self.tokens = x.device, tile.splits, tokens_of(x)
        self.height = max(tile.rows, 32) if gated else tile.rows
        self.width = rows // 2 if gated else rows
        self.grid = -(-rows // self.height), -(-x.shape[0] // self.tokens), splits
        residual_stride = 0 if residual is None else residual.stride(0)
        self.strides = x.stride(0), residual_stride, out.stride(0)
        tiles = self.grid[0] * self.grid[1] * (splits > 1)
        size = tiles * splits * self.height * self.tokens
        self.parts = shared("parts", size, torch.float32, device)
        self.arrivals = shared("arrivals", tiles, torch.int32, device)


@frozen(eq=False)
class DenseMatrix:
    """Rows of bf16 or fp32, one after the other."""

    shape: tuple[int, ...]
    codes: Tensor
    tile: Tile

    @property
    def wide(self) -> bool:
        return self.codes.dtype != torch.float32

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.codes,) * 5

    @property
    def kinds(self) -> tuple[int, int, int, bool]:
        return 16, 0, 0, False

    def multiply(
        self, x: Tensor, out: Tensor, bias: Tensor | None, residual: Tensor | None,
        *, gated: float = 0.0,
    ) -> None:
        (rows, depth), tile = self.shape, self.tile
        launch = ProductLaunch(tile, rows, x, residual, out, gated)
        dense_linear[launch.grid](
            x, self.codes, or_other(bias, x), or_other(residual, x), out, launch.parts,
            launch.arrivals, x.shape[0], launch.width, depth, *launch.strides, gated,
            bias is not None, residual is not None,
            rows % (launch.height * (2 if gated else 1)) == 0,
            depth % (tile.batch * DENSE_COLUMNS) == 0, launch.tokens,
            launch.height, DENSE_COLUMNS, tile.batch, tile.splits, tile.stages,
            num_warps=tile.warps, **OVERLAPPED,
        )

    def unpack(self) -> Tensor:
        return self.codes


@frozen(eq=False)
class TiledMatrix:
    """Fragments, as `kernels.tiled.tiled_totals` takes them."""

    shape: tuple[int, ...]
    stored: Fragments
    bits: int
    offset: int
    group: int
    tile: Tile
    wide: bool = True

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        stored = self.stored
        optional = stored.high, stored.scales, stored.minimums, stored.divisor
        return stored.codes, *(or_other(each, stored.codes) for each in optional)

    @property
    def kinds(self) -> tuple[int, int, int, bool]:
        return self.bits, self.offset, self.group, self.stored.minimums is not None

    @property
    def block(self) -> int:
        """Columns of a block."""
        return 32 if self.bits == 8 else 64

    def multiply(
        self, x: Tensor, out: Tensor, bias: Tensor | None, residual: Tensor | None,
        *, gated: float = 0.0,
    ) -> None:
        (rows, depth), stored = self.shape, self.stored
        if hopper_tiled.takes(self, x):
            launch = ProductLaunch(hopper_tiled.tile_of(self), rows, x, residual, out, gated)
            hopper_tiled.multiply(self, launch, x, out, bias, residual, gated)
            return
        tile = self.tile.for_tokens(tokens_of(x), self.group)
        launch = ProductLaunch(tile, rows, x, residual, out, gated)
        tiled_linear[launch.grid](
            x, stored.codes, or_other(stored.high, x), stored.scales, or_other(stored.minimums, x),
            or_other(stored.divisor, x), or_other(bias, x), or_other(residual, x), out,
            launch.parts, launch.arrivals, x.shape[0], launch.width, *launch.strides, depth,
            self.bits, self.offset, self.group, stored.minimums is not None, gated,
            bias is not None, residual is not None, depth % self.block == 0, launch.tokens,
            launch.height, tile.batch, tile.splits, tile.stages, num_warps=tile.warps,
            **OVERLAPPED,
        )

    def unpack(self) -> Tensor:
        (rows, depth), stored = self.shape, self.stored
        out = shared("unpacked", rows * depth, torch.bfloat16, stored.codes.device)
        unpack_fragments[-(-rows // 64), -(-depth // self.block)](
            stored.codes, or_other(stored.high, out), stored.scales, or_other(stored.minimums, out),
            or_other(stored.divisor, out), out, rows, depth, self.bits, self.offset, self.group,
            stored.minimums is not None, 64,
        )
        return out[: rows * depth].view(rows, depth)
