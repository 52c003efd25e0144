"""A `Weight` of the core as the block of addresses that kernels read."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from ninfer_core.api import AffineGroup
from ninfer_core.artifact.weight import Weight
from ninfer_profile_cpu.kernels.decoders import Planes, affine_name
from ninfer_profile_cpu.kernels.weight_block import weight_block
from ninfer_profile_cpu.kernels.weight_fields import AREA

CODE_ORDERS = {"row_split_k128_v1": "pair", "half_split_k32_v1": "half"}
"""Layouts read as they are, with the order of their 4-bit codes (see `decoders.Affine`)."""


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
    rows, width = weight.info.shape
    structure = weight.info.format.structure
    planes: Mapping[str, Tensor] = weight.planes
    if structure is None:
        return _described(weight.info.format.name, planes, rows, width, row_groups=0)
    order = CODE_ORDERS.get(weight.info.layout)
    if order is None:
        parts = weight.layout.unpack(weight.info.format.name, weight.info.shape, planes)
        planes, order = _pair_order(parts, structure), "pair"
    fmt = affine_name(structure.signed, structure.bits, structure.group, order, structure.minimum)
    return _described(fmt, planes, rows, width, planes["scales"].shape[1])


def _described(
    fmt: str, planes: Mapping[str, Tensor], rows: int, width: int, row_groups: int
) -> StoredWeight:
    absent = torch.empty(0)
    kept = tuple(planes.get(name, absent).contiguous() for name in Planes._fields)
    addresses = Planes(*[plane.data_ptr() for plane in kept])
    return StoredWeight(fmt, weight_block(fmt, addresses, rows, width, row_groups), kept)


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
