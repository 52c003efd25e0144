"""Rows of stored tensors: where those of parameters lie, and how planes are cut and stacked."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from attrs import frozen
from torch import Tensor

from ninfer_core.api import ArtifactError
from ninfer_core.artifact.catalogue import TensorObject
from ninfer_core.artifact.container import Artifact

Planes = Mapping[str, Tensor]
Span = tuple[TensorObject, int, int]
"""Elements ``[begin, end)`` of a tensor, in C order."""


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
    """The rows of parameters in the order given; consecutive elements of a tensor are one run.

    :raises ArtifactError: if a run is not whole rows (of a bank: whole matrices), or the runs
        differ in more than rows.
    """
    runs = []
    for tensor, begin, end in _spans(artifact, names):
        width, where = tensor.num_elements // tensor.num_rows, artifact.place(tensor)
        if begin % width or end % width:
            raise _not_whole(where, tensor.shape[1:], begin, end)
        runs.append(Rows(tensor, begin // width, end // width, where))
    kinds = {(run.tensor.format, run.tensor.layout, run.tensor.shape[1:]) for run in runs}
    if len(kinds) > 1 or (len(runs) > 1 and not runs[0].tensor.shape):
        raise _not_rows(runs[-1].where, f"rows of different kinds do not stack: {kinds}")
    return runs


def shape_of(artifact: Artifact, name: str) -> tuple[int, ...]:
    """Shape of one parameter. What lies inside one matrix of a bank ``[E, N, K]`` is rows of that
    matrix, ``[n, K]``, although only whole matrices can be loaded.

    :raises ArtifactError: if a part is not whole rows, or the parts differ in more than rows.
    """
    rows, kinds = 0, set()
    for tensor, begin, end in _spans(artifact, [name]):
        if not tensor.shape:
            return ()
        width = tensor.num_elements // tensor.num_rows
        is_inside = tensor.num_rows > 1 and begin // width == (end - 1) // width
        kind = tensor.shape[2:] if is_inside and len(tensor.shape) > 2 else tensor.shape[1:]
        if begin % math.prod(kind) or end % math.prod(kind):
            raise _not_whole(artifact.place(tensor), kind, begin, end)
        rows += (end - begin) // math.prod(kind)
        kinds.add((tensor.format, tensor.layout, kind))
    if len(kinds) > 1:
        raise _not_rows(str(artifact.path), f"parts of {name} are of different kinds: {kinds}")
    return (rows, *kinds.pop()[-1])


def cut(planes: Planes, begin: int, end: int, total: int, where: str) -> dict[str, Tensor]:
    """Views of rows ``[begin, end)`` of planes with ``total`` rows; raises `ArtifactError` if they
    end inside a tile."""
    if end - begin == total:
        return dict(planes)
    views = {}
    for name, plane in planes.items():
        tile = _tile(where, name, plane, total)
        if begin % tile or end % tile:
            raise _not_rows(where, f"{name} has tiles of {tile} rows, one would be cut")
        views[name] = plane[begin // tile : end // tile] if plane.ndim else plane
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


def _spans(artifact: Artifact, names: Iterable[str]) -> list[Span]:
    """Where parameters are; a span that continues the one before is joined to it."""
    spans: list[Span] = []
    for name in names:
        for tensor, begin, end in artifact.parts(name):
            if spans and spans[-1][0] is tensor and spans[-1][2] == begin:
                begin = spans.pop()[1]
            spans.append((tensor, begin, end))
    return spans


def _tile(where: str, name: str, plane: Tensor, total: int) -> int:
    """Rows of the matrix that one row of a plane holds; 1 for a scalar, which is of all rows."""
    if plane.ndim == 0:
        return 1
    tile, rest = divmod(total, plane.shape[0])
    if rest or not tile:
        raise _not_rows(where, f"its layout does not keep {name} by rows")
    return tile


def _not_whole(where: str, kind: tuple[int, ...], begin: int, end: int) -> ArtifactError:
    span = f"elements {begin} to {end} are not whole rows of {math.prod(kind)}"
    if len(kind) < 2:
        return _not_rows(where, span)
    why = f"{span}: a bank is loaded by whole {' x '.join(map(str, kind))} matrices"
    return _not_rows(where, why, "use all parameters of a matrix together, in their stored order")


def _not_rows(
    where: str, why: str, fix: str = "convert the model again for the pack in use"
) -> ArtifactError:
    return ArtifactError("rows cannot be combined as asked", where=where, why=why, fix=fix)
