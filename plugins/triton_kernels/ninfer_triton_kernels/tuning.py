"""Sizes of the tiles of products, by stored type and shape; see ``tuning.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from itertools import product
from math import ceil
from typing import Any

from attrs import evolve, frozen


@frozen
class Tile:
    """What one program of a product takes.

    The order in which columns are added depends on all but the stages and the rows, so that a tile
    is the same for every number of activation rows.

    :ivar rows: of the weight, a power of two from 16 on.
    :ivar warps: of the program; each sums columns of its own.
    :ivar blocks: of columns that a warp takes at once.
    :ivar splits: programs that share the columns of these rows.
    :ivar stages: loads in flight, from 1 on; of codes, steps of them in registers ahead of use.
    """

    rows: int
    warps: int = 4
    blocks: int = 1
    splits: int = 1
    stages: int = 3

    @property
    def batch(self) -> int:
        """Blocks of columns that a program takes at once."""
        return self.warps * self.blocks

    def for_tokens(self, tokens: int, group: int) -> Tile:
        """Of codes, for so many rows of activations: what these need of the registers, weights
        cannot have.

        :param group: columns that share a scale; 0 for whole rows.
        """
        if tokens <= 8:
            return self
        if tokens <= 16 and (self.splits > 1 or (group == 0 and self.rows >= 32)):
            return evolve(self, rows=64, stages=1)
        return evolve(self, rows=32, stages=2 if tokens <= 16 else 1)


GROUP_WARPS = 4
"""Of programs of weights that share a launch."""


def group_tile(kind: str, tile: Tile, group: Sequence[int], processors: int) -> Tile:
    """Of a weight that shares a launch with others: columns need not be split, as all fill the
    card.

    :param tile: that it has alone. :param group: rows of all weights of the launch.
    """
    if (tile.warps, tile.splits) == (GROUP_WARPS, 1):
        return tile
    programs = sum(-(-rows // 32) for rows in group) / processors
    if kind in DENSE:
        return Tile(16)
    return Tile(32, stages=2) if ceil(programs) < 1.1 * programs else Tile(16, stages=4)


_ROWS = {
    "dense": {1536: 32, 0: 16},
    "codes": {1536: 32, 0: 16},
}
"""Rows of a program for weights of at least so many; more of dense ones would not fit the shared
memory of every card."""

_PROGRAMS, _STAGES = {"dense": 3.6, "codes": 4.8}, {"dense": 3, "codes": 2}
"""For each processor: columns are split to have so many. And loads in flight."""

_MOST_SPLITS, _LEAST_STEPS = 8, 2
"""Of a tile, and steps over the columns that a program should have."""

DENSE = ("bf16", "fp32")
_BYTES = {"bf16": 2, "fp32": 4}

_AHEAD = {"dense": {16: (3, 4, 5), 32: (3, 4), 64: (3,)},
          "codes": {16: (2, 4, 8), 32: (1, 2, 3), 64: (1, 2)}}
"""Loads in flight that are worth a try, by rows: more take the room of other programs."""

_SHARED, _MOST_PROGRAMS = 96 << 10, 10
"""Bytes of shared memory that every card has for a program, and programs for each processor beyond
which columns are not split."""


def block_columns(kind: str) -> int:
    """Columns that a warp takes at once."""
    return 32 if kind.startswith(("fp8", "q8")) else 64


def candidate_tiles(kind: str, rows: int, depth: int, processors: int) -> list[Tile]:
    """Legal tiles that are worth timing for a weight ``[rows, depth]``. Numbers of activation rows
    have no part in it: a tile serves all of them, so that the bits of a row are the same.

    :param kind: as of `choose_tile`.
    """
    size, found = "dense" if kind in DENSE else "codes", []
    for tall, warps, splits in product((16, 32, 64), (4, 8), (1, 2, 3, 4, 6, 8)):
        steps = -(-depth // (block_columns(kind) * warps * splits))
        programs = -(-rows // tall) * splits / processors
        if splits == 1 or (steps >= _LEAST_STEPS and programs <= _MOST_PROGRAMS):
            found += [Tile(tall, warps, 1, splits, n) for n in _AHEAD[size][tall]]
    return [tile for tile in found if _shared_bytes(tile, kind) <= _SHARED]


def _shared_bytes(tile: Tile, kind: str) -> int:
    """Of dense weights and eight rows of activations on their way."""
    step = (tile.rows + 8) * block_columns(kind) * tile.batch
    return (tile.stages - 1) * step * _BYTES.get(kind, 0)


def choose_tile(kind: str, rows: int, depth: int, processors: int, capability: int) -> Tile:
    """The row of the table for a weight ``[rows, depth]``; else by its sizes.

    :param kind: ``bf16``, ``q4_g64`` ... as `stored_kind` names it.
    """
    for tuned in _table().get(str(capability), {}).get(kind, ()):
        if (tuned["rows"], tuned["depth"]) == (rows, depth):
            return Tile(*tuned["tile"])
    size = "dense" if kind in DENSE else "codes"
    tall = next(n for least, n in _ROWS[size].items() if rows >= least)
    steps = depth // (Tile(tall).batch * block_columns(kind))
    wanted = round(_PROGRAMS[size] * processors * tall / rows)
    splits = max(1, min(_MOST_SPLITS, wanted, steps // _LEAST_STEPS))
    return Tile(tall, splits=splits, stages=_STAGES[size])


@cache
def _table() -> dict[str, dict[str, list[dict[str, Any]]]]:
    return tomllib.loads(files("ninfer_triton_kernels").joinpath("tuning.toml").read_text("utf-8"))
