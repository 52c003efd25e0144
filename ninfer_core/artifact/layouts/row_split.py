"""`row_split_k128_v1`: group-quantised rows as planes of low bits, high bits and scales."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import pad

from ninfer_core.artifact.layouts.planar import (
    Geometry,
    PlanarLayout,
    pack_bits,
    require_shape,
    unpack_bits,
)

_BITS_GROUP = {
    "q4_g64_fp16": (4, 64), "q5_g64_fp16": (5, 64), "q6_g64_fp16": (6, 64), "q8_g32_fp16": (8, 32),
}


class RowSplitLayout(PlanarLayout):
    """Rows are filled with zeros to P columns, the next multiple of 128.

    ``codes``: the low four bits of the codes, uint8 ``[N, P/2]``; for q8 all of them, int8
    ``[N, P]``. ``high``: the bits above, uint8 ``[N, P/8]`` for q5, ``[N, P/4]`` for q6.
    ``scales``: fp16 ``[N, P/group]``. Bytes hold the words of lower columns in lower bits.
    """

    def geometry(self, format_name: str, shape: tuple[int, ...]) -> Geometry:
        require_shape(len(shape) == 2, "row_split_k128_v1", shape, "[N, K]")
        bits, group = _BITS_GROUP[format_name]
        rows, columns = shape[0], shape[1] + -shape[1] % 128
        scales = ("scales", torch.float16, (rows, columns // group))
        if bits == 8:
            return ("codes", torch.int8, (rows, columns)), scales
        low = ("codes", torch.uint8, (rows, columns // 2))
        high = ("high", torch.uint8, (rows, columns * (bits - 4) // 8))
        return (low, scales) if bits == 4 else (low, high, scales)

    def store(self, format_name: str, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        bits, group = _BITS_GROUP[format_name]
        codes, scales = parts["codes"], parts["scales"]
        codes = pad(codes, (0, -codes.shape[1] % 128))
        planes = {"scales": pad(scales, (0, codes.shape[1] // group - scales.shape[1]))}
        if bits == 8:
            return {**planes, "codes": codes}
        words = codes.view(torch.uint8)
        if bits > 4:
            planes["high"] = pack_bits(words >> 4 & (1 << bits - 4) - 1, bits - 4)
        return {**planes, "codes": pack_bits(words & 15, 4)}

    def unpack(
        self, format_name: str, shape: tuple[int, ...], planes: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        bits, group = _BITS_GROUP[format_name]
        codes, columns = planes["codes"], shape[1]
        if bits < 8:
            words, sign = unpack_bits(codes, 4), 1 << bits - 1
            if bits > 4:
                words |= unpack_bits(planes["high"], bits - 4) << 4
            codes = (words ^ sign).view(torch.int8) - sign
        return {"codes": codes[:, :columns], "scales": planes["scales"][:, : -(-columns // group)]}
