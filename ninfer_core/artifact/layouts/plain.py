"""`contiguous_le_v1`, `row_scale_v1`, `row_scale_g128_v1`: planes that are the parts themselves."""

from __future__ import annotations

import torch

from ninfer_core.artifact.layouts.planar import Geometry, PlanarLayout, require_shape

_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, "int32": torch.int32}


class ContiguousLayout(PlanarLayout):
    """``codes``: the values of a direct format, in C order."""

    def geometry(self, format_name: str, shape: tuple[int, ...]) -> Geometry:
        return (("codes", _DTYPES[format_name], shape),)


class RowScaleLayout(PlanarLayout):
    """``codes`` float8_e4m3fn ``[N, K]``, ``scales`` bf16 ``[N]``."""

    def geometry(self, format_name: str, shape: tuple[int, ...]) -> Geometry:
        require_shape(len(shape) == 2, "row_scale_v1", shape, "[N, K]")
        return ("codes", torch.float8_e4m3fn, shape), ("scales", torch.bfloat16, shape[:1])


class RowGroupScaleLayout(PlanarLayout):
    """``codes`` float8_e4m3fn ``[N, K]``, ``scales`` fp32 ``[N, ceil(K / 128)]``."""

    def geometry(self, format_name: str, shape: tuple[int, ...]) -> Geometry:
        require_shape(len(shape) == 2, "row_scale_g128_v1", shape, "[N, K]")
        scales = ("scales", torch.float32, (shape[0], -(-shape[1] // 128)))
        return ("codes", torch.float8_e4m3fn, shape), scales
