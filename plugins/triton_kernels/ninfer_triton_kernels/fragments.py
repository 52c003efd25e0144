"""Weights of few bits re-laid as fragments (see `kernels.fragments`), bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import prod

import torch
from attrs import frozen
from torch import Tensor
from torch.nn.functional import pad

from ninfer_core.api import AffineGroup, FormatSpec
from ninfer_core.artifact.weight import Weight

BLOCK = 64
"""Columns that one 16-bit element spans."""

LAYOUT = "fragments_m16_v1"
"""Name of the layout of matrices whose rows are whole tiles, see `layouts`."""

RUN_ELEMENTS, RUN_ROWS = 1 << 25, 128
"""Most elements that are re-laid at once, which take some 20 bytes each meanwhile, and what their
rows must be a multiple of."""

SIGNS, MAGNITUDES = (15, 12, 14, 13), (6, 3, 0, 9)
"""Where `kernels.decoders.e2m1_of` looks for the E2M1 codes of an element's planes."""

SCALE_BIAS = 0x60
"""What is added to the byte of an NVFP4 scale, so that its exponent is one of a bf16 whose first
bits are ones."""

SCALE_PLACES = torch.tensor([[0, 8], [16, 24]])
"""Where these bytes are in a word, by row half and half of the planes."""

Parts = Mapping[str, Tensor]
"""As a format has them (`FormatCodec`), or planes of fragments."""


@frozen(eq=False)
class Fragments:
    """A matrix ``[N, K]``, filled with zeros to whole tiles of 16 rows and blocks of 64 columns.

    :ivar codes: int16 ``[N/16, K/64, 256]``, 16 bits of four codes each; int8 ``[N/16, K/32, 512]``
        for codes of 8 bits, as int16 two of them each.
    :ivar high: int16 ``[N/16, K/64, 128]`` (6 bits) or ``[N/16, K/64, 64]`` (5): the rest.
    :ivar scales: ``[N/16, K/group, 16]`` of the format's type, rows by (g, row half);
        ``[N/16, 1, 16]`` in order for whole rows; NVFP4: int32 ``[N/16, K/64, 16]``, four bytes
        each by (g, half of the columns' lanes).
    :ivar minimums: as ``scales``. :ivar divisor: fp32 ``[N/16]``, of NVFP4.
    """

    codes: Tensor
    scales: Tensor
    high: Tensor | None = None
    minimums: Tensor | None = None
    divisor: Tensor | None = None


def fragments_of(weight: Weight) -> Fragments:
    """Of a matrix or a bank of them as the rows of one: as they are stored, or laid out anew."""
    planes = weight.planes if weight.info.layout == LAYOUT else _in_runs(weight)
    whole = {name: plane.flatten(0, -3) if plane.ndim > 2 else plane
             for name, plane in planes.items()}
    if "divisor" in whole:
        divisor, tiles = whole["divisor"].reshape(-1), len(whole["codes"])
        whole["divisor"] = divisor.repeat_interleave(tiles // len(divisor), output_size=tiles)
    return Fragments(**whole)


def lay(format: FormatSpec) -> Callable[[Parts], dict[str, Tensor]]:
    """How parts of a format of 8 bits or less become planes."""
    if format.structure is not None:
        return partial(lay_affine, structure=format.structure)
    return lay_nvfp4 if format.name == "nvfp4" else lay_e4m3


def _in_runs(weight: Weight) -> Parts:
    """Planes of a weight, by runs of its rows (a bank's: of its matrices)."""
    count, build, whole = _num_runs(weight.info.shape), lay(weight.info.format), dict[str, Tensor]()
    for index in range(count):
        part = weight.part(index, count)
        parts = part.layout.unpack(part.info.format.name, part.info.shape, part.planes)
        for name, piece in build(parts).items():
            if piece.ndim == 0 or count == 1:
                whole[name] = piece
                continue
            if index == 0:
                whole[name] = piece.new_empty((count * len(piece), *piece.shape[1:]))
            whole[name][index * len(piece) : (index + 1) * len(piece)] = piece
    return whole


def _num_runs(shape: tuple[int, ...]) -> int:
    """As few equal runs as keep each small; 1 if rows do not come in whole tiles."""
    unit = RUN_ROWS if len(shape) == 2 else 1
    units, rest = divmod(shape[0], unit)
    least = -(-prod(shape) // RUN_ELEMENTS)
    if rest:
        return 1
    return next((count for count in range(least, units + 1) if units % count == 0), 1)


def lay_affine(parts: Parts, structure: AffineGroup) -> dict[str, Tensor]:
    """Of a matrix of group-quantised codes, bit for bit."""
    block = 32 if structure.bits == 8 else BLOCK
    groups = -(-parts["codes"].shape[1] // block) * (block // structure.group)
    planes = {
        name: _by_halves(pad(parts[name], (0, groups - parts[name].shape[1])))
        for name in ("scales", "minimums") if name in parts
    }
    if structure.bits == 8:
        one, two = _planes(_filled(parts["codes"].view(torch.uint8), 32, 0), 2).unbind(2)
        return {"codes": (one | two << 8).to(torch.int16).view(torch.int8), **planes}
    offset = 1 << structure.bits - 1 if structure.signed else 0
    words = _filled((parts["codes"].to(torch.int16) + offset).to(torch.uint8), BLOCK, offset)
    lay = {4: _four_bits, 5: _five_bits, 6: _six_bits}[structure.bits]
    return {**lay(_planes(words, 4)), **planes}


def lay_e4m3(parts: Parts) -> dict[str, Tensor]:
    """Of a matrix of E4M3 codes with scales for rows or for 128 columns of one, bit for bit."""
    scales, codes = parts["scales"], _filled(parts["codes"].view(torch.uint8), 32, 0)
    one, two = _planes(codes, 2).unbind(2)
    elements = (one & 0x80) << 8 | (one & 0x7F) << 4
    elements |= (two & 0x80) << 4 | (two & 0x70) << 8 | two & 0x0F
    laid = _by_tiles(scales.unsqueeze(1)) if scales.ndim == 1 else _by_halves(scales)
    return {"codes": elements.to(torch.int16).view(torch.int8), "scales": laid}


def lay_nvfp4(parts: Parts) -> dict[str, Tensor]:
    """Of an NVFP4 matrix, or of a bank of them as one. Codes of groups whose scale is 0 become 0,
    which is what they mean."""
    scales = parts["scales"].float().flatten(0, -2)  # [N, K/16]
    codes = parts["codes"].flatten(0, -2).unflatten(1, (-1, 16)) * (scales > 0).unsqueeze(-1)
    mantissa, exponent = torch.frexp(scales)
    byte = (exponent + 9) * 8 + (mantissa * 16).int() - 8  # 1 <= 2 mantissa < 2, three bits below
    byte = _filled((byte + SCALE_BIAS) * (scales > 0), 4, 0)
    by_lane = byte.unflatten(0, (-1, 2, 8)).unflatten(-1, (-1, 2, 2)).long()  # tile rh g B h lanes
    words = (by_lane.permute(0, 3, 2, 5, 1, 4) << SCALE_PLACES.to(byte.device)).sum((-2, -1))
    planes = _planes(_filled(codes.flatten(1).to(torch.uint8), BLOCK, 0), 4)
    return {"codes": _at(planes >> 3, SIGNS) | _at(planes & 7, MAGNITUDES),
            "scales": words.flatten(2).to(torch.int32), "divisor": parts["divisor"]}


def _filled(matrix: Tensor, block: int, value: int) -> Tensor:
    rows, columns = matrix.shape
    return pad(matrix, (0, -columns % block, 0, -rows % 16), value=value)


def _by_tiles(values: Tensor) -> Tensor:
    """``[N, G]`` to ``[N/16, G, 16]``."""
    filled = pad(values, (0, 0, 0, -values.shape[0] % 16))
    return filled.unflatten(0, (-1, 16)).transpose(1, 2).contiguous()


def _by_halves(values: Tensor) -> Tensor:
    """``[N, G]`` to ``[N/16, G, 16]``, rows by (g, row half)."""
    filled = pad(values, (0, 0, 0, -values.shape[0] % 16))
    return filled.unflatten(0, (-1, 2, 8)).permute(0, 3, 2, 1).flatten(2)


def _planes(words: Tensor, count: int) -> Tensor:
    """uint8 ``[N, K]`` to int32 ``[N/16, K / (16 count), count, 256]``, by lane."""
    parts = words.unflatten(0, (-1, 2, 8)).unflatten(-1, (-1, count // 2, 4, 2, 2, 2))
    # tile, row half, g; block, half of the planes, t, plane, column half, pair
    return parts.permute(0, 3, 4, 6, 2, 5, 7, 1, 8).flatten(4).flatten(2, 3).int()


def _at(planes: Tensor, places: tuple[int, ...]) -> Tensor:
    """Planes at their places in an element, as int16 ``[N/16, K/64, 256]``."""
    shifts = torch.tensor(places, device=planes.device, dtype=torch.int32)
    return (planes << shifts.view(-1, 1)).sum(2).to(torch.int16)


def _four_bits(planes: Tensor) -> dict[str, Tensor]:
    return {"codes": _at(planes, (0, 4, 8, 12))}


def _six_bits(planes: Tensor) -> dict[str, Tensor]:
    """As `kernels.decoders.affine_planes` says."""
    rows, rest = planes.unflatten(-1, (-1, 2, 2)), (planes[:, :, 3] >> 4).unflatten(-1, (-1, 2, 2))
    high = rows[:, :, 2, :, 0] | rows[:, :, 2, :, 1] << 6
    high |= rest[:, :, :, 0] << 12 | rest[:, :, :, 1] << 14
    codes = planes[:, :, 0] | planes[:, :, 1] << 6 | (planes[:, :, 3] & 15) << 12
    return {"codes": codes.to(torch.int16), "high": high.flatten(2).to(torch.int16)}


def _five_bits(planes: Tensor) -> dict[str, Tensor]:
    """As `kernels.decoders.affine_planes` says; words of two neighbouring lanes are swapped."""
    first, second, third, last = planes[:, :, 3].unflatten(-1, (32, 4, 2)).unbind(3)
    bits = last.unsqueeze(3) >> torch.arange(4, device=last.device).view(4, 1) & 1
    codes = planes[:, :, 0] | planes[:, :, 1] << 5 | planes[:, :, 2] << 10 | bits.flatten(2) << 15
    high = first | second << 5 | third << 10 | (last >> 4) << 15
    swapped = high.unflatten(2, (16, 2)).flip(3).flatten(2)
    return {"codes": codes.to(torch.int16), "high": swapped.to(torch.int16)}
