"""`fragments_m16_v1`: weights of 8 bits or less in the order in which products read them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ninfer_core.api import AffineGroup
from ninfer_core.artifact.layouts.planar import Geometry, PlanarLayout, require_shape
from ninfer_triton_kernels.fragments import BLOCK, LAYOUT, Parts, lay_affine, lay_e4m3, lay_nvfp4
from ninfer_triton_kernels.parts import read_affine, read_e4m3, read_nvfp4

GROUPS = {
    "q4_g64_fp16": AffineGroup(4, 64), "q5_g64_fp16": AffineGroup(5, 64),
    "q6_g64_fp16": AffineGroup(6, 64), "q8_g32_fp16": AffineGroup(8, 32),
}
BY_ROW = "fp8_e4m3fn_row_bf16"
MINIFLOATS = {BY_ROW: (torch.bfloat16, 0), "fp8_e4m3fn_g128_fp32": (torch.float32, 128)}
"""Type of their scales, and the columns of one; 0: all."""


class FragmentsLayout(PlanarLayout):
    """A matrix ``[N, K]``, N a multiple of 16, or of NVFP4 a bank ``[E, N, K]`` of such.

    Planes are those of `fragments.Fragments`, of a bank by matrix, but the divisor, which is one
    fp32 for each matrix. Exact, but that NVFP4 codes under a scale of 0 become 0.
    """

    def geometry(self, format_name: str, shape: tuple[int, ...]) -> Geometry:
        is_bank = format_name == "nvfp4" and len(shape) == 3
        fits = (len(shape) == 2 or is_bank) and shape[-2] % 16 == 0
        require_shape(fits, LAYOUT, shape, "[N, K] with N a multiple of 16")
        *bank, rows, columns = shape
        tiles, blocks = (*bank, rows // 16), -(-columns // BLOCK)
        if format_name == "nvfp4":
            return (("codes", torch.int16, (*tiles, blocks, 256)),
                    ("scales", torch.int32, (*tiles, blocks, 16)),
                    ("divisor", torch.float32, (*bank,)))
        if format_name in MINIFLOATS:
            dtype, group = MINIFLOATS[format_name]
            groups = -(-columns // group) if group else 1
            return _bytes(tiles, columns), ("scales", dtype, (*tiles, groups, 16))
        return _grouped(tiles, columns, GROUPS[format_name])

    def store(self, format_name: str, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        shape = tuple(parts["codes"].shape)
        planes = _lay(format_name, parts)
        return {name: planes[name].view(stored)
                for name, _, stored in self.geometry(format_name, shape)}

    def unpack(
        self, format_name: str, shape: tuple[int, ...], planes: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        columns = shape[-1]
        if format_name in GROUPS:
            return read_affine(planes, GROUPS[format_name], columns)
        if format_name in MINIFLOATS:
            return read_e4m3(planes, columns, by_row=format_name == BY_ROW)
        flat = {name: plane.flatten(0, -3) if plane.ndim > 2 else plane
                for name, plane in planes.items()}
        parts = read_nvfp4(flat, columns)
        scales = parts["scales"].view(*shape[:-1], columns // 16)
        return {**parts, "codes": parts["codes"].reshape(shape), "scales": scales}


def _lay(format_name: str, parts: Parts) -> dict[str, Tensor]:
    if format_name in GROUPS:
        return lay_affine(parts, GROUPS[format_name])
    return lay_e4m3(parts) if format_name in MINIFLOATS else lay_nvfp4(parts)


def _bytes(tiles: tuple[int, ...], columns: int) -> tuple[str, torch.dtype, tuple[int, ...]]:
    return "codes", torch.int8, (*tiles, -(-columns // 32), 512)


def _grouped(tiles: tuple[int, ...], columns: int, structure: AffineGroup) -> Geometry:
    bits, group = structure.bits, structure.group
    if bits == 8:
        return (_bytes(tiles, columns),
                ("scales", torch.float16, (*tiles, -(-columns // group), 16)))
    blocks = -(-columns // BLOCK)
    codes = ("codes", torch.int16, (*tiles, blocks, 256))
    scales = ("scales", torch.float16, (*tiles, blocks * (BLOCK // group), 16))
    if bits == 4:
        return codes, scales
    return codes, ("high", torch.int16, (*tiles, blocks, 64 * (bits - 4))), scales
