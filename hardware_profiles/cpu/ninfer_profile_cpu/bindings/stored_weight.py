"""A `Weight` of the core as the block of addresses that kernels read."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from ninfer_core.api import AffineGroup, FormatCodec
from ninfer_core.artifact.weight import Weight
from ninfer_profile_cpu.kernels.decoders import affine_name
from ninfer_profile_cpu.kernels.minifloats import FP8_SCALE_LIMIT, NVFP4_TABLE
from ninfer_profile_cpu.kernels.planes import Planes
from ninfer_profile_cpu.kernels.weight_block import weight_block
from ninfer_profile_cpu.kernels.weight_fields import AREA

CODE_ORDERS = {"row_split_k128_v1": "pair", "half_split_k32_v1": "half"}
"""Layouts of affine groups that are read as they are, with the order of their 4-bit codes (see
`nibbles`)."""
FP8 = {"fp8_e4m3fn_row_bf16": "fp8_row", "fp8_e4m3fn_g128_fp32": "fp8_g128"}
"""Formats whose planes are their parts in any layout there is, with their decoders."""
NVFP4_LAYOUTS = {
    "block_scale_k16_m128x4_v1": "nvfp4_tiled", "block_scale_k16_plain_v1": "nvfp4_rows",
}
"""Layouts of NVFP4 that are read as they are, with their decoders."""


@frozen(eq=False)
class StoredWeight:
    """:ivar fmt: name of the decoder. :ivar block: int64 fields. :ivar planes: keeps them alive."""

    fmt: str
    block: np.ndarray
    planes: tuple[Tensor, ...]

    @property
    def address(self) -> int:
        return self.block.ctypes.data

    @property
    def area_bytes(self) -> int:
        """Scratch memory that a block of rows needs."""
        return int(self.block[AREA])


def stored_weight(weight: Weight) -> StoredWeight:
    """Describe a weight; one in a layout that kernels cannot read is laid out anew, bit for bit."""
    name, structure = weight.info.format.name, weight.info.format.structure
    if structure is not None:
        return _affine(weight, structure)
    if name in FP8:
        return _fp8(weight, FP8[name])
    if name == "nvfp4":
        return _nvfp4(weight)
    return _described(name, weight.info.shape, weight.planes)


def dense_matrix(matrix: Tensor) -> StoredWeight:
    """Describe fp32 ``[N, K]``, rows contiguous, where it lies."""
    return _described("fp32", tuple(matrix.shape), {"codes": matrix})


def _affine(weight: Weight, structure: AffineGroup) -> StoredWeight:
    planes, order = weight.planes, CODE_ORDERS.get(weight.info.layout)
    if order is None:
        planes, order = _pair_order(_parts(weight), structure), "pair"
    fmt = affine_name(structure.signed, structure.bits, structure.group, order, structure.minimum)
    return _described(fmt, weight.info.shape, planes, planes["scales"].shape[1])


def _fp8(weight: Weight, fmt: str) -> StoredWeight:
    parts = _parts(weight)
    scales = parts["scales"].float()
    if scales.max() >= FP8_SCALE_LIMIT:
        return _described("fp32", weight.info.shape, {"codes": weight.dense()})
    return _described(fmt, weight.info.shape, {**parts, "scales": scales})


def _nvfp4(weight: Weight) -> StoredWeight:
    planes, fmt = weight.planes, NVFP4_LAYOUTS.get(weight.info.layout)
    if fmt is None:
        parts = _parts(weight)
        planes, fmt = {**parts, "codes": _packed(parts["codes"], 4)}, "nvfp4_rows"
    table = _table(weight.codec, planes["divisor"])
    return _described(fmt, weight.info.shape, {**planes, "table": table})


def _table(codec: FormatCodec, divisor: Tensor) -> Tensor:
    """fp32 `NVFP4_TABLE`: what each code means under each scale, NaN where a byte is no scale."""
    table = torch.full(NVFP4_TABLE, torch.nan)
    codes = torch.arange(16, dtype=torch.uint8).expand(127, 16)
    scales = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).unsqueeze(1)
    table[:127] = codec.dequantize({"codes": codes, "scales": scales, "divisor": divisor})
    return table


def _parts(weight: Weight) -> Mapping[str, Tensor]:
    return weight.layout.unpack(weight.info.format.name, weight.info.shape, weight.planes)


def _described(
    fmt: str, shape: tuple[int, ...], planes: Mapping[str, Tensor], row_steps: int = 0
) -> StoredWeight:
    absent = torch.empty(0)
    kept = tuple(planes.get(name, absent).contiguous() for name in Planes._fields)
    addresses = Planes(*[plane.data_ptr() for plane in kept])
    rows, width = shape
    block = weight_block(fmt, addresses, rows, width, row_steps)
    return StoredWeight(fmt, block, kept)


def _pair_order(parts: Mapping[str, Tensor], structure: AffineGroup) -> dict[str, Tensor]:
    """Parts to the planes of `decoders.Affine` in ``pair`` order."""
    width = parts["codes"].shape[1]
    codes = torch.nn.functional.pad(parts["codes"], (0, -width % structure.group))
    planes = {"scales": parts["scales"].contiguous()}
    if structure.minimum:
        planes["minimums"] = parts["minimums"].contiguous()
    if structure.bits == 8:
        return {**planes, "codes": codes}
    words = codes.view(torch.uint8)
    if structure.bits > 4:
        planes["high"] = _packed((words >> 4) & ((1 << structure.bits - 4) - 1), structure.bits - 4)
    return {**planes, "codes": _packed(words & 15, 4)}


def _packed(words: Tensor, bits: int) -> Tensor:
    """uint8 words of a few bits to bytes, the first word lowest."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8)
    return (words.unflatten(1, (-1, 8 // bits)) << shifts).sum(-1, dtype=torch.uint8)
