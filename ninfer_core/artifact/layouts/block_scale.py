"""NVFP4: `block_scale_k16_m128x4_v1` and its bank of experts, with scales in tiles of 128 x 4, and
`block_scale_k16_plain_v1` for shapes that do not fill those tiles."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ninfer_core.artifact.layouts.planar import (
    Geometry,
    PlanarLayout,
    pack_bits,
    require_shape,
    unpack_bits,
)


class PlainBlockScaleLayout(PlanarLayout):
    """A matrix ``[N, K]`` or a bank of any rank, K a multiple of 16.

    ``codes``: uint8 ``[..., N, K/2]``, the smaller k in the low half; ``scales``: float8_e4m3fn
    ``[..., N, K/16]``; ``divisor``: fp32 ``[...]``.
    """

    def geometry(self, format_name: str, shape: tuple[int, ...]) -> Geometry:
        fits = len(shape) >= 2 and shape[-1] % 16 == 0
        wanted = "[..., N, K] with K a multiple of 16"
        require_shape(fits, "block_scale_k16_plain_v1", shape, wanted)
        return _planes(shape, (shape[-2], shape[-1] // 16))

    def store(self, format_name: str, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {**parts, "codes": pack_bits(parts["codes"], 4)}

    def unpack(
        self, format_name: str, shape: tuple[int, ...], planes: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        return {**planes, "codes": unpack_bits(planes["codes"], 4)}


class BlockScaleLayout(PlainBlockScaleLayout):
    """A matrix ``[N, K]``, N a multiple of 128 and K of 64.

    ``scales``: float8_e4m3fn ``[N/128, K/64, 32, 4, 4]``, at ``[a, t, b, c, d]`` that of row
    ``128 a + 32 c + b`` and group ``4 t + d``.
    """

    rank = 2

    def geometry(self, format_name: str, shape: tuple[int, ...]) -> Geometry:
        fits = len(shape) == self.rank and shape[-2] % 128 == 0 and shape[-1] % 64 == 0
        wanted = f"of rank {self.rank} with N a multiple of 128 and K of 64"
        require_shape(fits, "block_scale_k16_m128x4_v1", shape, wanted)
        return _planes(shape, (shape[-2] // 128, shape[-1] // 64, 32, 4, 4))

    def store(self, format_name: str, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        *bank, rows, groups = parts["scales"].shape
        tiles = parts["scales"].reshape(*bank, rows // 128, 4, 32, groups // 4, 4)  # a c b t d
        scales = tiles.transpose(-4, -2)  # a t b c d
        return super().store(format_name, {**parts, "scales": scales})

    def unpack(
        self, format_name: str, shape: tuple[int, ...], planes: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        scales = planes["scales"].transpose(-4, -2).reshape(*shape[:-1], shape[-1] // 16)
        return super().unpack(format_name, shape, {**planes, "scales": scales})


class ExpertBlockScaleLayout(BlockScaleLayout):
    """A bank ``[E, N, K]``: the codes of all experts, then their scales, then divisors ``[E]``."""

    rank = 3


def _planes(shape: tuple[int, ...], scales: tuple[int, ...]) -> Geometry:
    """Planes of a bank of matrices, of which each has ``scales``."""
    *bank, rows, columns = shape
    return (
        ("codes", torch.uint8, (*bank, rows, columns // 2)),
        ("scales", torch.float8_e4m3fn, (*bank, *scales)),
        ("divisor", torch.float32, (*bank,)),
    )
