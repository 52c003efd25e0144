"""Tensors of Hugging Face checkpoints to parameters, each kept bit for bit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce

import torch
from attrs import evolve, frozen
from torch import Tensor

from ninfer_checkpoints import selection
from ninfer_checkpoints.parameters import Origin, Parameter
from ninfer_core import api


@frozen
class Root:
    """A prefix of names in one spelling, and those that checkpoints have in its place.

    :ivar tensor: one that every checkpoint has below it: the spelling that it has, all others have.
    """

    prefix: str
    spellings: tuple[str, ...]
    tensor: str


class Tensors:
    """The tensors of a checkpoint under the names of one spelling."""

    def __init__(self, stored: Mapping[str, api.SourceTensor], roots: Sequence[Root]) -> None:
        self.stored = stored
        self._roots = {root.prefix: _spelling(stored, root) for root in roots}

    def name(self, name: str) -> str:
        """The checkpoint's own name."""
        for ours, theirs in self._roots.items():
            if name.startswith(ours):
                return theirs + name.removeprefix(ours)
        return name

    def find(self, origins: Iterable[Origin]) -> tuple[api.SourceTensor, Origin]:
        """The first that is there, else the last, which raises an error that names it."""
        named = [(self.name(origin.tensor), origin) for origin in origins]
        name, origin = next((each for each in named if each[0] in self.stored), named[-1])
        return self.stored[name], origin


def _spelling(stored: Mapping[str, api.SourceTensor], root: Root) -> str:
    return next((each for each in root.spellings if each + root.tensor in stored),
                root.spellings[0])


def ignored_tensors(
    names: Iterable[str], *, begins: Mapping[str, str], ends: Mapping[str, str]
) -> dict[str, str]:
    """The names that begin or end with one of these, and why they are not used."""
    return {
        name: why for name in names
        for is_one, parts in ((str.startswith, begins), (str.endswith, ends))
        for part, why in parts.items() if is_one(name, part)
    }


def import_parameter(parameter: Parameter, tensors: Tensors) -> api.ImportedParameter:
    """Place one parameter; by default it keeps the bits it has in the checkpoint.

    :raises ArtifactError: naming a tensor that is missing or has another shape.
    """
    dim, alternatives = parameter.joined, [parameter.origins]
    if dim is not None:
        alternatives = [(origin,) for origin in parameter.origins]
    pieces = [_Piece.of(*tensors.find(origins)) for origins in alternatives]
    _check_shape(parameter, pieces)
    formats = {"fp32"} if parameter.fp32 else {piece.tensor.format for piece in pieces}
    if parameter.transposed:
        formats &= {"fp32", "bf16"}
    return _imported(parameter, pieces, formats.pop() if len(formats) == 1 else "")


def _imported(
    parameter: Parameter, pieces: Sequence[_Piece], format: str
) -> api.ImportedParameter:
    dim, spec = parameter.joined, parameter.spec

    def values() -> Tensor:
        return _join([piece.origin.select(piece.tensor.dense()) for piece in pieces], dim)

    def parts() -> dict[str, Tensor]:
        if parameter.fp32:
            return {"codes": values()}
        each = [piece.parts() for piece in pieces]
        return {name: _join([part[name] for part in each], dim) for name in each[0]}

    def rows(begin: int, end: int) -> api.ImportedParameter:
        cut = evolve(parameter, spec=evolve(spec, shape=(end - begin, *spec.shape[1:])))
        return _imported(cut, _rows(pieces, begin, end, dim), format)

    are_whole = all(piece.origin.select is selection.whole for piece in pieces)
    return api.ImportedParameter(
        spec, tuple(piece.tensor.name for piece in pieces), values, parts, format,
        parameter.parent, scalars=pieces[0].tensor.scalars, bank=parameter.bank,
        rows=rows if are_whole else None,
    )


@frozen
class _Piece:
    """What of a tensor a parameter, or a part of one, is. :ivar shape: None if there is no such
    place in it."""

    whole: api.SourceTensor
    tensor: api.SourceTensor
    origin: Origin
    shape: tuple[int, ...] | None

    @classmethod
    def of(cls, whole: api.SourceTensor, origin: Origin) -> _Piece:
        try:
            tensor = reduce(lambda so_far, index: so_far[index], origin.at, whole)
            shape = tensor.shape
            if origin.select is not selection.whole:
                shape = tuple(origin.select(torch.empty(shape, device="meta")).shape)
        except (RuntimeError, IndexError):
            return cls(whole, whole, origin, None)
        return cls(whole, tensor, origin, shape)

    def parts(self) -> dict[str, Tensor]:
        return {name: self.origin.select(part) for name, part in self.tensor.parts().items()}

    def rows(self, begin: int, end: int) -> _Piece:
        """A range of the rows, where all of the tensor is selected."""
        tensor = self.tensor[begin:end]
        return evolve(self, tensor=tensor, shape=tensor.shape)


def _rows(pieces: Sequence[_Piece], begin: int, end: int, dim: int | None) -> list[_Piece]:
    """What of the pieces lies in a range of rows of all."""
    if dim:
        return [piece.rows(begin, end) for piece in pieces]
    found = []
    for piece in pieces:
        count = piece.tensor.shape[0]
        first, last = max(begin, 0), min(end, count)
        if first < last:
            found.append(piece.rows(first, last))
        begin, end = begin - count, end - count
    return found


def _join(each: list[Tensor], dim: int | None) -> Tensor:
    """One after the other; a number of the whole must be that of every piece."""
    if dim is None or len(each) == 1:
        return each[0]
    if each[0].ndim:
        return torch.cat(each, dim)
    if odd := [part for part in each if not torch.equal(part, each[0])]:
        raise api.ArtifactError("tensors of one parameter are divided by different numbers",
                                why=f"{each[0]:g} and {odd[0]:g}")
    return each[0]


def _check_shape(parameter: Parameter, pieces: list[_Piece]) -> None:
    """Raise unless the pieces make up the parameter."""
    wanted, dim = list(parameter.spec.shape), parameter.joined
    left = 0 if dim is None else wanted[dim]
    for piece in pieces:
        shape = list(piece.shape or ())
        if dim is not None and len(shape) == len(wanted):
            left, shape[dim] = left - shape[dim], wanted[dim]
        if shape != wanted or left < 0:
            why = f"{list(piece.whole.shape)}; {parameter.spec.name} of it should be {wanted}"
            raise api.ArtifactError("a tensor has another shape", where=piece.whole.name, why=why)
    if left:
        raise api.ArtifactError("tensors do not make up a parameter", where=parameter.spec.name,
                                why=f"{left} of {wanted[dim or 0]} are missing")
