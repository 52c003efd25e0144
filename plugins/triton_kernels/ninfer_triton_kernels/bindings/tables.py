"""``embedding``."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ninfer_core.api import KernelRequest, UnsupportedError
from ninfer_core.artifact.weight import Weight
from ninfer_triton_kernels.bindings.host import is_on_host, locked
from ninfer_triton_kernels.bindings.launching import OVERLAPPED, power
from ninfer_triton_kernels.kernels.embedding import dense_rows, grouped_rows, nvfp4_rows

Gather = Callable[[Tensor, Tensor], Tensor]

DENSE = ("contiguous_le_v1", "row_scale_v1", "row_scale_g128_v1")
"""Layouts of values, or of a byte a value."""

SCALES_IN_TILES = {"block_scale_k16_plain_v1": False, "block_scale_k16_m128x4_v1": True}
"""Layouts of NVFP4."""


def bind_embedding(request: KernelRequest, weight: Weight) -> Gather:
    """A table in a layout that the kernels do not read is held in bf16, which is what they give.
    One in host memory stays there, and rows of it are read across the bus."""
    if on_host := is_on_host(weight):
        weight = locked(weight)
    if weight.info.layout in SCALES_IN_TILES:
        return _bind_nvfp4(weight)
    if weight.info.layout == "row_split_k128_v1":
        return _bind_grouped(weight)
    if weight.info.layout in DENSE:
        return _bind_dense(weight.planes["codes"], weight.planes.get("scales"))
    if on_host:
        raise UnsupportedError(
            "a table cannot stay in host memory",
            why=f"its rows are stored as {weight.info.layout}, which is not read across the bus",
            fix="hold it on the device (--tables-on-device), or convert it to another format",
        )
    return _bind_dense(weight.dense().to(torch.bfloat16), None)


def _bind_dense(table: Tensor, scales: Tensor | None) -> Gather:
    width, block, group = table.shape[1], min(2048, power(table.shape[1])), 0
    if scales is not None:
        group = 128 if scales.ndim == 2 else power(width)

    def embedding(ids: Tensor, out: Tensor) -> Tensor:
        dense_rows[ids.shape[0], -(-width // block)](
            ids, table, table if scales is None else scales, out, out.stride(0), width, group,
            block, **OVERLAPPED,
        )
        return out

    return embedding


def _bind_nvfp4(weight: Weight) -> Gather:
    width, planes = weight.info.shape[1], weight.planes
    tiled, block = SCALES_IN_TILES[weight.info.layout], min(2048, power(width))
    divisor = planes["divisor"]

    def embedding(ids: Tensor, out: Tensor) -> Tensor:
        nvfp4_rows[ids.shape[0], -(-width // block)](
            ids, planes["codes"], planes["scales"], divisor, out, out.stride(0), width, tiled,
            block, **OVERLAPPED,
        )
        return out

    return embedding


def _bind_grouped(weight: Weight) -> Gather:
    width, structure, planes = weight.info.shape[1], weight.info.format.structure, weight.planes
    assert structure is not None
    codes, scales = planes["codes"], planes["scales"]
    high, stored = planes.get("high", codes), scales.shape[1] * structure.group
    block = min(2048, power(width))

    def embedding(ids: Tensor, out: Tensor) -> Tensor:
        grouped_rows[ids.shape[0], -(-width // block)](
            ids, codes, high, scales, out, out.stride(0), width, stored, structure.bits,
            structure.group, block, **OVERLAPPED,
        )
        return out

    return embedding
