"""The planes of a stored weight, and how rows of scales lie."""

from __future__ import annotations

import enum
import typing


class Planes(typing.NamedTuple):
    """One value for each plane of a weight: addresses, IR addresses of a row, or bytes of a step.

    ``table`` is no plane: fp32 values that all rows look up.
    """

    codes: typing.Any = 0
    high: typing.Any = 0
    scales: typing.Any = 0
    minimums: typing.Any = 0
    table: typing.Any = 0


class Scales(enum.Enum):
    """What the scales of a few rows need before they are used."""

    NONE = enum.auto()
    HALVES = enum.auto()
    """fp16, as are the minimums: converted to fp32 in scratch memory, which for a few rows at a
    time costs a tenth of converting each where it is used."""
    ROWS = enum.auto()
    """Used where they lie, the rows one after the other."""
    TILED = enum.auto()
    """Used where they lie, in tiles of 128 rows and 4 scales: row ``32 c + b`` of a tile has its
    four in a word, and the tile's words are ordered by b, then c."""


TILE_SCALE_ROWS, TILE_SCALE_BYTES = 128, 512
"""A tile of `Scales.TILED`."""
