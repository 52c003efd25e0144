"""Rows of stored tensors: where those of parameters lie, and how planes are cut and stacked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from attrs import evolve, frozen
from torch import Tensor

from ninfer_core.api import ArtifactError
from ninfer_core.artifact.catalogue import TensorObject
from ninfer_core.artifact.container import Artifact

Planes = Mapping[str, Tensor]


@frozen
class Rows:
    """Rows ``[begin, end)`` of a tensor, along its first dimension. ``where``: for errors."""

    tensor: TensorObject
    begin: int
    end: int
    where: str

    @property
    def count(self) -> int:
        return self.end - self.begin


def rows_of(artifact: Artifact, names: Iterable[str]) -> list[Rows]:
    """The rows of parameters in the order given; consecutive rows of a tensor are one run.

    :raises ArtifactError: if a part is not whole rows, or the runs differ in more than rows.
    """
    runs: list[Rows] = []
    for tensor, begin, end in (part for name in names for part in artifact.parts(name)):
        width, where = tensor.num_elements // tensor.num_rows, artifact.place(tensor)
        if begin % width or end % width:
            raise _not_rows(where, f"elements {begin} to {end} are not whole rows of {width}")
        run = Rows(tensor, begin // width, end // width, where)
        if runs and runs[-1].tensor == tensor and runs[-1].end == run.begin:
            run = evolve(run, begin=runs.pop().begin)
        runs.append(run)
    kinds = {(run.tensor.format, run.tensor.layout, run.tensor.shape[1:]) for run in runs}
    if len(kinds) > 1 or (len(runs) > 1 and not runs[0].tensor.shape):
        raise _not_rows(runs[-1].where, f"rows of different kinds do not stack: {kinds}")
    return runs


def cut(rows: Rows, planes: Planes, total: int) -> dict[str, Tensor]:
    """Views of some rows of planes with ``total`` rows; raises `ArtifactError` inside of tiles."""
    if rows.count == total:
        return dict(planes)
    views = {}
    for name, plane in planes.items():
        tile = _tile(rows.where, name, plane, total)
        if rows.begin % tile or rows.end % tile:
            raise _not_rows(rows.where, f"{name} has tiles of {tile} rows, one would be cut")
        views[name] = plane[rows.begin // tile : rows.end // tile] if plane.ndim else plane
    return views


def stack(runs: Sequence[Rows], pieces: Sequence[Planes]) -> dict[str, Tensor]:
    """Concatenate the planes of runs; raises `ArtifactError` if a shared plane differs."""
    stacked = {}
    for name, first in pieces[0].items():
        planes = [piece[name] for piece in pieces]
        tiles = {_tile(run.where, name, p, run.count) for run, p in zip(runs, planes, strict=True)}
        if len(tiles) > 1 or (not first.ndim and any(plane != first for plane in planes)):
            raise _not_rows(runs[0].where, f"the matrices to be stacked differ in {name}")
        stacked[name] = torch.cat(planes) if first.ndim else first
    return stacked


def _tile(where: str, name: str, plane: Tensor, total: int) -> int:
    """Rows of the matrix that one row of a plane holds; 1 for a scalar, which is of all rows."""
    if plane.ndim == 0:
        return 1
    tile, rest = divmod(total, plane.shape[0])
    if rest or not tile:
        raise _not_rows(where, f"its layout does not keep {name} by rows")
    return tile


def _not_rows(where: str, why: str) -> ArtifactError:
    what, fix = "rows cannot be combined as asked", "convert the model again for the pack in use"
    return ArtifactError(what, where=where, why=why, fix=fix)
