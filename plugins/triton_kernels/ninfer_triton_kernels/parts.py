"""Fragments back to the parts of their format: the inverse of `fragments`."""

from __future__ import annotations

import torch
from torch import Tensor

from ninfer_core.api import AffineGroup
from ninfer_triton_kernels.fragments import (
    MAGNITUDES,
    SCALE_BIAS,
    SCALE_PLACES,
    SIGNS,
    Parts,
)


def read_affine(planes: Parts, structure: AffineGroup, columns: int) -> dict[str, Tensor]:
    """Codes ``[N, columns]``, scales and minimums of group-quantised weights."""
    groups = -(-columns // structure.group)
    parts = {
        name: _by_halves(planes[name])[:, :groups]
        for name in ("scales", "minimums") if name in planes
    }
    if structure.bits == 8:
        pairs = _elements(planes["codes"])
        words = _rows_of(torch.stack((pairs & 255, pairs >> 8), 2))
        return {"codes": words[:, :columns].to(torch.int8), **parts}
    read = {4: _four_bits, 5: _five_bits, 6: _six_bits}[structure.bits]
    codes = _rows_of(read(planes)) - (1 << structure.bits - 1 if structure.signed else 0)
    kind = torch.int8 if structure.signed else torch.uint8
    return {"codes": codes[:, :columns].to(kind), **parts}


def read_e4m3(planes: Parts, columns: int, *, by_row: bool) -> dict[str, Tensor]:
    """Codes ``[N, columns]`` and scales, ``[N]`` or ``[N, columns / 128]``."""
    whole = _elements(planes["codes"])
    one = whole >> 8 & 0x80 | whole >> 4 & 0x7F
    two = whole >> 4 & 0x80 | whole >> 8 & 0x70 | whole & 0x0F
    codes = _rows_of(torch.stack((one, two), 2))[:, :columns].to(torch.uint8)
    scales = planes["scales"]
    return {"codes": codes.view(torch.float8_e4m3fn),
            "scales": scales.flatten() if by_row else _by_halves(scales)}


def read_nvfp4(planes: Parts, columns: int) -> dict[str, Tensor]:
    """Codes ``[N, columns]``, scales and the divisor of an NVFP4 matrix."""
    whole = _elements(planes["codes"])
    words = _rows_of(_fields(whole, MAGNITUDES, 7) | _fields(whole, SIGNS, 1) << 3)
    return {"codes": words[:, :columns].to(torch.uint8),
            "scales": read_nvfp4_scales(planes["scales"], columns), "divisor": planes["divisor"]}


def read_nvfp4_scales(stored: Tensor, columns: int) -> Tensor:
    """E4M3 ``[N, columns / 16]``."""
    quads = stored.unflatten(2, (8, 2))[..., None, None]
    byte = quads >> SCALE_PLACES.to(quads.device).int() & 255  # tile B g lanes rh h
    byte = byte.permute(0, 4, 2, 1, 5, 3).flatten(3).flatten(0, 2)[:, : columns // 16]
    plain = byte - SCALE_BIAS
    scales = torch.ldexp(((plain & 7) + 8) / 16, (plain >> 3) - 9) * (byte > 0)
    return scales.to(torch.float8_e4m3fn)


def _by_halves(tiles: Tensor) -> Tensor:
    """``[N/16, G, 16]``, rows by (g, row half), to ``[N, G]``."""
    return tiles.unflatten(2, (8, 2)).permute(0, 3, 2, 1).flatten(0, 2)


def _elements(stored: Tensor) -> Tensor:
    """16-bit elements as int32 from 0 up, ``[N/16, B, 256]``."""
    return stored.contiguous().view(torch.int16).int() & 0xFFFF


def _fields(elements: Tensor, places: tuple[int, ...], mask: int) -> Tensor:
    """Planes ``[N/16, B, planes, 256]`` whose codes begin at these bits."""
    shifts = torch.tensor(places, device=elements.device, dtype=torch.int32)
    return elements.unsqueeze(2) >> shifts.view(-1, 1) & mask


def _rows_of(planes: Tensor) -> Tensor:
    """``[N/16, B, planes, 256]`` by lane to ``[N, 16 B planes]``."""
    parts = planes.unflatten(3, (8, 4, 2, 2, 2)).unflatten(2, (-1, 2))
    # tile, block, half of the planes, plane, g, t, column half, row half, pair
    return parts.permute(0, 7, 4, 1, 2, 5, 3, 6, 8).flatten(3).flatten(0, 2)


def _four_bits(planes: Parts) -> Tensor:
    return _fields(_elements(planes["codes"]), (0, 4, 8, 12), 15)


def _six_bits(planes: Parts) -> Tensor:
    whole, high = _elements(planes["codes"]), _elements(planes["high"])
    first, second, low = whole & 63, whole >> 6 & 63, whole >> 12
    both = high.unflatten(-1, (-1, 1, 2))
    third = torch.cat((both & 63, both >> 6 & 63), -2).flatten(2)
    rest = torch.cat((both >> 12 & 3, both >> 14), -2).flatten(2)
    return torch.stack((first, second, third, low | rest << 4), 2)


def _five_bits(planes: Parts) -> Tensor:
    whole = _elements(planes["codes"])
    high = _elements(planes["high"]).unflatten(2, (16, 2, 2)).flip(3).flatten(2, 3)  # lane, pair
    spare = (whole >> 15).unflatten(2, (32, 4, 2))
    places = torch.arange(4, device=whole.device).view(4, 1)
    last = (spare << places).sum(3) | high >> 15 << 4
    fourth = torch.stack((high & 31, high >> 5 & 31, high >> 10 & 31, last), 3).flatten(2)
    return torch.cat((_fields(whole, (0, 5, 10), 31), fourth.int().unsqueeze(2)), 2)
