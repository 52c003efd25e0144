"""`fp8_e4m3fn_row_bf16`, `fp8_e4m3fn_g128_fp32`, `nvfp4`: codes that are small floating-point
numbers."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import pad

from ninfer_core.api import UnsupportedError
from ninfer_core.artifact.formats.grouped import absmax_normalize, by_rows, require

_E4M3_MAX = 448.0
E2M1_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


class Fp8RowCodec:
    """``w = code * scale``: ``codes`` float8_e4m3fn ``[N, K]``, ``scales`` bf16 ``[N]``."""

    @by_rows
    def quantize(self, values: Tensor) -> dict[str, Tensor]:
        """`fp8_row_maxabs`, which rounds values to bf16 first; raises as `absmax_normalize`."""
        normal, scales = absmax_normalize(values.bfloat16().float(), _E4M3_MAX, torch.bfloat16)
        normal.clamp_(-_E4M3_MAX, _E4M3_MAX)  # the cast makes NaN of anything larger
        return {"codes": normal.to(torch.float8_e4m3fn), "scales": scales}

    def dequantize(self, parts: Mapping[str, Tensor]) -> Tensor:
        """fp32 ``[N, K]``; raises `ArtifactError` for words that the format does not have."""
        return _scaled_e4m3(parts["codes"], parts["scales"].float())


class Fp8GroupCodec:
    """``w = code * scale``: ``codes`` float8_e4m3fn ``[N, K]``, ``scales`` fp32
    ``[N, ceil(K / 128)]``, one for 128 columns of a row."""

    @by_rows
    def quantize(self, values: Tensor) -> dict[str, Tensor]:
        """`fp8_group_maxabs`; raises as `absmax_normalize`."""
        groups = _in_groups(values.float())
        normal, scales = absmax_normalize(groups, _E4M3_MAX, torch.float32)
        normal.clamp_(-_E4M3_MAX, _E4M3_MAX)
        codes = normal.to(torch.float8_e4m3fn).flatten(1)[:, : values.shape[1]]
        return {"codes": codes.contiguous(), "scales": scales}

    def dequantize(self, parts: Mapping[str, Tensor]) -> Tensor:
        """fp32 ``[N, K]``; raises `ArtifactError` for words that the format does not have."""
        codes = parts["codes"]
        values = _scaled_e4m3(_in_groups(codes.float()), parts["scales"]).flatten(1)
        return values[:, : codes.shape[1]].contiguous()


class Nvfp4Codec:
    """``w = e2m1(code) * scale / divisor``, a scale for 16 elements of a row; import only.

    ``codes``: uint8 ``[..., N, K]`` of E2M1 words 0..15; ``scales``: float8_e4m3fn
    ``[..., N, K / 16]``; ``divisor``: fp32 ``[...]``, one for each matrix.
    """

    def quantize(self, values: Tensor) -> dict[str, Tensor]:
        """Always raises `UnsupportedError`."""
        raise UnsupportedError(
            "nothing quantises values to nvfp4", why="its scales need calibration",
            fix="convert a checkpoint that is NVFP4 already, or choose another format",
        )

    def dequantize(self, parts: Mapping[str, Tensor]) -> Tensor:
        """fp32 ``[..., N, K]``; raises `ArtifactError` for words that the format does not have."""
        scales, divisor = parts["scales"].float(), parts["divisor"][..., None, None]
        require((scales.isfinite() & ~scales.signbit()).all(), "a scale is negative or NaN")
        require((divisor.isfinite() & (divisor > 0)).all(), "a divisor is not positive and finite")
        words = torch.tensor([*E2M1_MAGNITUDES, *(-m for m in E2M1_MAGNITUDES)])
        values = words.to(scales.device)[parts["codes"].int()]
        values.view(*scales.shape, 16).mul_(scales.unsqueeze(-1))
        return values.div_(divisor)


def _in_groups(matrix: Tensor) -> Tensor:  # [N, K] to [N, G, 128], filled with zeros
    rows, columns = matrix.shape
    return pad(matrix, (0, -columns % 128)).view(rows, -1, 128)


def _scaled_e4m3(codes: Tensor, scales: Tensor) -> Tensor:
    """The product of E4M3 numbers ``[..., K]`` and fp32 scales ``[...]``."""
    values = codes.float()
    require(values.isfinite().all(), "a code is NaN")
    require((scales.isfinite() & ~scales.signbit()).all(), "a scale is negative or not finite")
    require(not values[scales == 0].any(), "a scale is 0, and codes under it are not")
    return values.mul_(scales.unsqueeze(-1))
