"""Weights of few bits re-laid as fragments (see `kernels.fragments`): one pass at load."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import torch
from attrs import fields, frozen
from torch import Tensor
from torch.nn.functional import pad

from ninfer_core.api import AffineGroup
from ninfer_core.artifact.weight import Weight

BLOCK = 64
"""Columns that one 16-bit element spans."""

RUN_ELEMENTS, RUN_ROWS = 1 << 25, 128
"""Most elements that are re-laid at once, which take some 20 bytes each meanwhile, and what their
rows must be a multiple of."""


@frozen(eq=False)
class Fragments:
    """A matrix ``[N, K]``, filled with zeros to whole tiles of 16 rows and blocks of 64 columns.

    :ivar codes: int16 ``[N/16, K/64, 256]``, four bits of each code; int8 ``[N/16, K/32, 512]`` for
        codes of 8 bits.
    :ivar high: int16 ``[N/16, K/64, 128]`` (6 bits) or ``[N/16, K/64, 64]`` (5): the bits above.
    :ivar scales: ``[N/16, K/group, 16]`` of the format's type, ``[N/16, 1, 16]`` for whole rows;
        NVFP4: int32 ``[N/16, K/64, 16]``, four bytes each.
    :ivar minimums: as ``scales``. :ivar divisor: fp32 ``[N/16]``, of NVFP4.
    """

    codes: Tensor
    scales: Tensor
    high: Tensor | None = None
    minimums: Tensor | None = None
    divisor: Tensor | None = None


def in_runs(weight: Weight, build: Callable[[Weight], Fragments]) -> Fragments:
    """What ``build`` gives, of a large weight by runs of its rows (a bank's: of its matrices)."""
    count = _num_runs(weight.info.shape)
    if count == 1:
        return build(weight)
    whole: dict[str, Tensor] = {}
    for index in range(count):
        run = build(weight.part(index, count))
        for each in fields(Fragments):
            piece = getattr(run, each.name)
            if piece is not None:
                if index == 0:
                    whole[each.name] = piece.new_empty((count * len(piece), *piece.shape[1:]))
                whole[each.name][index * len(piece) : (index + 1) * len(piece)] = piece
    return Fragments(**whole)


def _num_runs(shape: tuple[int, ...]) -> int:
    """As few equal runs as keep each small; 1 if rows do not come in whole tiles."""
    unit = RUN_ROWS if len(shape) == 2 else 1
    units, rest = divmod(shape[0], unit)
    least = -(-prod(shape) // RUN_ELEMENTS)
    if rest:
        return 1
    return next((count for count in range(least, units + 1) if units % count == 0), 1)


def affine_fragments(weight: Weight, structure: AffineGroup) -> Fragments:
    """Of a matrix of group-quantised codes, bit for bit."""
    parts = weight.layout.unpack(weight.info.format.name, weight.info.shape, weight.planes)
    block = 32 if structure.bits == 8 else BLOCK
    scales = _by_tiles(_columns(parts["scales"], block // structure.group, weight, block))
    minimums = None
    if structure.minimum:
        minimums = _by_tiles(_columns(parts["minimums"], block // structure.group, weight, block))
    if structure.bits == 8:
        return Fragments(_byte_elements(_filled(parts["codes"], 32, 0)), scales, None, minimums)
    offset = 1 << structure.bits - 1 if structure.signed else 0
    words = _filled((parts["codes"].to(torch.int16) + offset).to(torch.uint8), BLOCK, offset)
    return Fragments(_low(words), scales, _high(words, structure.bits), minimums)


def e4m3_fragments(weight: Weight) -> Fragments:
    """Of a matrix of E4M3 codes with scales for rows or for 128 columns of one, bit for bit."""
    parts = weight.layout.unpack(weight.info.format.name, weight.info.shape, weight.planes)
    scales = parts["scales"]
    if scales.ndim == 1:
        scales = scales.unsqueeze(1)
    codes = parts["codes"].view(torch.int8)
    return Fragments(_byte_elements(_filled(codes, 32, 0)), _by_tiles(scales))


def nvfp4_fragments(weight: Weight) -> Fragments:
    """Of an NVFP4 matrix, or of a bank of them as one with whole tiles of each. Words of groups
    whose scale is 0 become 0."""
    parts = weight.layout.unpack("nvfp4", weight.info.shape, weight.planes)
    scales = parts["scales"].float().flatten(0, -2)  # [N, K/16]
    words = parts["codes"].flatten(0, -2).unflatten(1, (-1, 16)) * (scales > 0).unsqueeze(-1)
    tiles = -(-scales.shape[0] // 16)
    divisor = parts["divisor"].reshape(-1)
    divisor = divisor.repeat_interleave(tiles // len(divisor), output_size=tiles)
    mantissa, exponent = torch.frexp(torch.where(scales > 0, scales, torch.ones_like(scales)))
    byte = (exponent + 9) * 8 + (mantissa * 16).int() - 8  # 1 <= 2 mantissa < 2, three bits below
    byte = pad(byte, (0, -byte.shape[1] % 4)).unflatten(1, (-1, 4))
    quads = (byte << torch.arange(0, 32, 8, device=byte.device, dtype=torch.int32)).sum(-1)
    codes = _e2m1_elements(_filled(words.flatten(1).to(torch.uint8), BLOCK, 0))
    return Fragments(codes, _by_tiles(quads.to(torch.int32)), divisor=divisor)


def _filled(matrix: Tensor, block: int, value: int) -> Tensor:
    rows, columns = matrix.shape
    return pad(matrix, (0, -columns % block, 0, -rows % 16), value=value)


def _columns(scales: Tensor, per_block: int, weight: Weight, block: int) -> Tensor:
    """Scales for whole blocks of columns."""
    num_blocks = -(-weight.info.shape[1] // block)
    return pad(scales, (0, num_blocks * per_block - scales.shape[1]))


def _by_tiles(values: Tensor) -> Tensor:
    """``[N, G]`` to ``[N/16, G, 16]``."""
    filled = pad(values, (0, 0, 0, -values.shape[0] % 16))
    return filled.unflatten(0, (-1, 16)).transpose(1, 2).contiguous()


def _by_lanes(elements: Tensor) -> Tensor:
    """``[N, B, 16]`` to ``[N/16, B, 256]``, the order of fragments."""
    parts = elements.unflatten(0, (-1, 2, 8)).unflatten(-1, (2, 4, 2))  # tile rh g B kh t p
    return parts.permute(0, 3, 2, 5, 4, 1, 6).flatten(2).contiguous()


def _byte_elements(codes: Tensor) -> Tensor:
    """int8 ``[N, K]`` to ``[N/16, K/32, 512]``, by lane."""
    parts = codes.unflatten(0, (-1, 2, 8)).unflatten(-1, (-1, 2, 4, 4))  # tile rh g B kh t e
    return parts.permute(0, 3, 2, 5, 4, 1, 6).flatten(2).contiguous()


def _by_planes(words: Tensor) -> Tensor:
    """uint8 ``[N, K]`` to int32 ``[N, K/64, 4, 16]``."""
    return words.unflatten(1, (-1, 4, 16)).int()


def _joined(planes: Tensor, shifts: tuple[int, ...]) -> Tensor:
    """Planes at their places in an element, as int32 ``[N/16, K/64, 256]``."""
    places = torch.tensor(shifts, device=planes.device, dtype=torch.int32)
    return _by_lanes((planes << places.view(4, 1)).sum(2))


def _low(words: Tensor) -> Tensor:
    """The low four bits, as int16 elements."""
    return _joined(_by_planes(words) & 15, (0, 4, 8, 12)).to(torch.int16)


def _e2m1_elements(words: Tensor) -> Tensor:
    """E2M1 codes where `kernels.decoders.e2m1_planes` looks for them."""
    planes = _by_planes(words)
    signs = _joined(planes >> 3, (15, 12, 14, 13))
    return (signs | _joined(planes & 7, (6, 3, 0, 9))).to(torch.int16)


def _high(words: Tensor, bits: int) -> Tensor | None:
    if bits == 4:
        return None
    more = bits - 4
    elements = _joined(_by_planes(words) >> 4, (0, more, 2 * more, 3 * more))
    joined = elements[..., ::2] | elements[..., 1::2] << 4 * more  # by lane: column half, row half
    if bits == 5:
        halves = joined.unflatten(-1, (-1, 2))
        joined = halves[..., 0] | halves[..., 1] << 8
    return joined.to(torch.int16)
