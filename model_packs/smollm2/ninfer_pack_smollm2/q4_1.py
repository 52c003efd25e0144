"""Q4_1 weights: 32 unsigned 4-bit codes share an fp16 scale and an fp16 minimum.

``w = scale * code + minimum``: the numbers of llama.cpp's Q4_1 blocks, held bit for bit. The layout
keeps each block's 16 bytes of nibbles as they are, but in a plane of their own.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ninfer_core.api import ArtifactError
from ninfer_core.artifact.formats.grouped import by_rows
from ninfer_core.artifact.layouts.planar import Geometry, PlanarLayout, require_shape

GROUP = 32


def parts_of_blocks(blocks: Tensor) -> dict[str, Tensor]:
    """uint8 ``[N, K / 32 * 20]``, blocks of scale, minimum and 16 bytes of nibbles, to parts."""
    grid = blocks.unflatten(-1, (-1, 20))
    scales, minimums = grid[..., :4].contiguous().view(torch.float16).unbind(-1)
    return {"codes": _codes(grid[..., 4:].flatten(-2)), "scales": scales, "minimums": minimums}


class Q4_1Codec:
    """Numbers of ``q4_1_g32_fp16``: ``codes`` int8 ``[N, K]`` of 0..15, ``scales`` and
    ``minimums`` fp16 ``[N, K/32]``."""

    @by_rows
    def quantize(self, values: Tensor) -> dict[str, Tensor]:
        """Spread the codes evenly from the smallest to the largest value of each group.

        :raises ArtifactError: if a value is not finite or beyond fp16.
        """
        groups = values.float().unflatten(-1, (-1, GROUP))  # [N, K/32, 32]
        low, high = groups.aminmax(dim=-1)
        scales, minimums = ((high - low) / 15).half(), low.half()
        if not (scales.isfinite().all() and minimums.isfinite().all()):
            raise ArtifactError("values cannot be stored as Q4_1", why="a group exceeds fp16")
        # Codes against the rounded scale and minimum, which are what a reader will have.
        step = scales.float().unsqueeze(-1)
        offsets = groups - minimums.float().unsqueeze(-1)
        codes = torch.where(step > 0, offsets / step, 0).round().clamp(0, 15).to(torch.int8)
        return {"codes": codes.flatten(-2), "scales": scales, "minimums": minimums}

    def dequantize(self, parts: Mapping[str, Tensor]) -> Tensor:
        """fp32 ``[N, K]``."""
        codes = parts["codes"].float().unflatten(-1, (-1, GROUP))
        scales, minimums = (parts[name].float().unsqueeze(-1) for name in ("scales", "minimums"))
        return (scales * codes + minimums).flatten(-2)


class HalfSplitLayout(PlanarLayout):
    """``half_split_k32_v1``: ``codes`` uint8 ``[N, K/2]``, ``scales`` and ``minimums`` fp16
    ``[N, K/32]``; the byte j of a group of 32 holds element j low and element j + 16 high."""

    def geometry(self, format_name: str, shape: tuple[int, ...]) -> Geometry:
        fits = len(shape) == 2 and not shape[1] % GROUP
        require_shape(fits, "half_split_k32_v1", shape, f"[N, K] with K a multiple of {GROUP}")
        rows, columns = shape
        codes = ("codes", torch.uint8, (rows, columns // 2))
        per_group = (torch.float16, (rows, columns // GROUP))
        return (codes, ("scales", *per_group), ("minimums", *per_group))

    def store(self, format_name: str, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        codes = parts["codes"].view(torch.uint8).unflatten(-1, (-1, 2, GROUP // 2))
        low, high = codes.unbind(-2)
        return {**parts, "codes": (low | high << 4).flatten(-2)}

    def unpack(
        self, format_name: str, shape: tuple[int, ...], planes: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        return {**planes, "codes": _codes(planes["codes"])}


def _codes(nibbles: Tensor) -> Tensor:
    halves = nibbles.unflatten(-1, (-1, GROUP // 2))
    return torch.cat([halves & 15, halves >> 4], dim=-1).flatten(-2).to(torch.int8)
