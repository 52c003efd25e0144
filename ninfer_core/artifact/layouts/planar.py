"""Planes one after the other, each at a multiple of 256 bytes: what all layouts share."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from ninfer_core.api import ArtifactError, PlaneInfo

Geometry = tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]


class PlanarLayout:
    """Base of a `StorageLayout`. Gaps are zero, and nothing follows the last plane."""

    def geometry(self, format_name: str, shape: tuple[int, ...]) -> Geometry:
        """``(name, dtype, shape)`` of each plane; raises `ArtifactError` for impossible shapes."""
        raise NotImplementedError

    def store(self, format_name: str, parts: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Parts to planes; here they are the same."""
        return parts

    def unpack(
        self, format_name: str, shape: tuple[int, ...], planes: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Inverse of `store`."""
        return dict(planes)

    def planes(self, format_name: str, shape: tuple[int, ...]) -> tuple[PlaneInfo, ...]:
        placed, end = [], 0
        for name, dtype, stored in self.geometry(format_name, shape):
            offset = -(-end // 256) * 256
            placed.append(PlaneInfo(name, str(dtype).removeprefix("torch."), stored, offset))
            end = offset + math.prod(stored) * dtype.itemsize
        return tuple(placed)

    def nbytes(self, format_name: str, shape: tuple[int, ...]) -> int:
        return _end(self.planes(format_name, shape)[-1])

    def pack(self, format_name: str, parts: Mapping[str, Tensor]) -> Tensor:
        shape, device = tuple(parts["codes"].shape), parts["codes"].device
        image = torch.zeros(self.nbytes(format_name, shape), dtype=torch.uint8, device=device)
        stored = self.store(format_name, parts)
        for plane in self.planes(format_name, shape):
            plane_view(image, plane).copy_(stored[plane.name])
        return image


def plane_view(image: Tensor, plane: PlaneInfo) -> Tensor:
    """A plane inside the uint8 image of an object, without a copy."""
    dtype: torch.dtype = getattr(torch, plane.dtype)
    return image[plane.offset : _end(plane)].view(dtype).view(plane.shape)


def require_shape(holds: bool, layout: str, shape: tuple[int, ...], wanted: str) -> None:
    """Raise `ArtifactError` unless ``holds``."""
    if not holds:
        why, fix = f"its shape {[*shape]} is not {wanted}", "choose another layout or format for it"
        raise ArtifactError(f"{layout} cannot hold a tensor", why=why, fix=fix)


def pack_bits(words: Tensor, width: int) -> Tensor:
    """uint8 words ``[..., L]`` to bytes ``[..., L * width / 8]``, the first word lowest."""
    lanes = words.reshape(*words.shape[:-1], -1, 8 // width).unbind(-1)
    packed = lanes[0].clone()
    for index, lane in enumerate(lanes[1:], start=1):
        packed |= lane << index * width
    return packed


def unpack_bits(packed: Tensor, width: int) -> Tensor:
    """Inverse of `pack_bits`."""
    words = packed.new_empty(*packed.shape, 8 // width)
    for index in range(8 // width):
        words[..., index] = packed >> index * width & (1 << width) - 1
    return words.flatten(-2)


def _end(plane: PlaneInfo) -> int:
    return plane.offset + math.prod(plane.shape) * getattr(torch, plane.dtype).itemsize
