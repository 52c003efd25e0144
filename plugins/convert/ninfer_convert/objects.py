"""Stored objects: the parameters stacked in each, and the bytes of its image, range by range."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod

import torch
from attrs import frozen
from torch import Tensor

from ninfer_core.api import (
    ArtifactError,
    FormatCodec,
    FormatSpec,
    ImportedParameter,
    LayoutSpec,
    NInferError,
    StorageLayout,
)
from ninfer_core.artifact.layouts.planar import plane_view
from ninfer_core.artifact.rows import Planes, cut

RANGE_ELEMENTS, RANGE_ROWS = 1 << 22, 128
"""Most elements of a matrix that are read at a time, and what their rows are a multiple of, so that
no tile of a layout is cut."""


@frozen(eq=False)
class StoredObject:
    """One object of the artifact: the rows of its members, one below the other.

    :ivar is_bank: it is ``[E, N, K]``, and each member one of the E matrices.
    """

    object_id: str
    members: tuple[ImportedParameter, ...]
    format: FormatSpec
    layout: LayoutSpec
    is_bank: bool = False

    @property
    def kept(self) -> bool:
        """Whether its bits are those of the checkpoint."""
        return all(self._keeps(each) for each in self.members)

    @property
    def shape(self) -> tuple[int, ...]:
        shapes = [self._shape_of(member) for member in self.members]
        return (sum(shape[0] for shape in shapes), *shapes[0][1:]) if shapes[0] else ()

    @property
    def nbytes(self) -> int:
        """Size of the image; raises `ArtifactError` if the layout cannot hold the shape."""
        with _named(self.object_id):
            return self._layout().nbytes(self.format.name, self.shape)

    @property
    def fits(self) -> bool:
        """Whether the layout can hold the whole, and each member so that it can be cut out."""
        layout, shapes = self._layout(), {self._shape_of(member) for member in self.members}
        try:
            return all(layout.nbytes(self.format.name, each) for each in {self.shape, *shapes})
        except ArtifactError:
            return False

    def pieces(self) -> Iterator[tuple[int, Tensor]]:
        """The image in pieces, uint8 ``[n]``, each with the byte it begins at; gaps are zero. Reads
        the checkpoint, one range of a member's rows after the other.

        :raises ArtifactError: if a tensor has another shape, or values that the format cannot hold.
        """
        with _named(self.object_id):
            absent = torch.empty(self.nbytes, dtype=torch.uint8, device="meta")
            image, begin, numbers = self._planes(absent, self.shape), 0, dict[str, Tensor]()
            for run in (run for member in self.members for run in self._runs(member)):
                shape = self._shape_of(run)
                end = begin + (shape[0] if shape else 1)
                total = self.shape[0] if shape else 1
                places = cut(image, begin, end, total, self.object_id)
                for name, plane in self._planes(self._image_of(run), shape).items():
                    if not plane.ndim:
                        _check_number(name, plane, numbers)
                    yield _offset(places[name]), plane.reshape(-1).view(torch.uint8)
                begin = end

    def _runs(self, member: ImportedParameter) -> Iterator[ImportedParameter]:
        """Ranges of a member's rows; all of them at once where they cannot be cut."""
        if member.rows is None or not self._is_by_rows(member):
            yield member
            return
        count, *width = member.spec.shape
        step = max(1, RANGE_ELEMENTS // prod(width) // RANGE_ROWS) * RANGE_ROWS
        for begin in range(0, count, step):
            yield member.rows(begin, min(begin + step, count))

    def _is_by_rows(self, member: ImportedParameter) -> bool:
        """Whether the planes of rows are rows of planes. A number of the whole is that of the rows
        if the checkpoint has it, but not if it is to be found."""
        shape = self._shape_of(member)
        return shape != () and not self.is_bank and all(
            RANGE_ROWS * info.shape[0] % shape[0] == 0 if info.shape else self._keeps(member)
            for info in self._layout().planes(self.format.name, shape)
        )

    def _image_of(self, run: ImportedParameter) -> Tensor:
        """The image of an object of these rows alone."""
        parts = self._parts(run)
        if self.is_bank:
            parts = {name: part.unsqueeze(0) for name, part in parts.items()}
        return self._layout().pack(self.format.name, parts)

    def _parts(self, member: ImportedParameter) -> Mapping[str, Tensor]:
        if self._keeps(member) and member.parts:
            parts = member.parts()
            _check_shape(member, parts["codes"])
            return parts
        values, codec = member.values(), self._codec()
        _check_shape(member, values)
        return codec.quantize(values)

    def _keeps(self, member: ImportedParameter) -> bool:
        return member.parts is not None and member.format == self.format.name

    def _shape_of(self, member: ImportedParameter) -> tuple[int, ...]:
        return (1, *member.spec.shape) if self.is_bank else member.spec.shape

    def _planes(self, image: Tensor, shape: tuple[int, ...]) -> Planes:
        infos = self._layout().planes(self.format.name, shape)
        return {info.name: plane_view(image, info) for info in infos}

    def _layout(self) -> StorageLayout:
        layout: StorageLayout = self.layout.layout.load()()
        return layout

    def _codec(self) -> FormatCodec:
        codec: FormatCodec = self.format.codec.load()()
        return codec


def _check_shape(member: ImportedParameter, given: Tensor) -> None:
    if tuple(given.shape) != member.spec.shape:
        raise ArtifactError(
            "the checkpoint's tensors have another shape", where=member.spec.name,
            why=f"{list(given.shape)}, the model wants {list(member.spec.shape)}",
        )


def _check_number(name: str, number: Tensor, known: dict[str, Tensor]) -> None:
    """Raise if a number of the whole is not that of the rows before."""
    if not torch.equal(known.setdefault(name, number.clone()), number):
        raise ArtifactError(
            "matrices cannot be stacked", why=f"they have different numbers for {name}"
        )


def _offset(plane: Tensor) -> int:
    """Bytes of an image before a view in it."""
    return int(plane.storage_offset()) * plane.element_size()


@contextmanager
def _named(object_id: str) -> Iterator[None]:
    """Say which object it was in errors of formats and layouts, which do not know."""
    try:
        yield
    except NInferError as error:
        if error.where:
            raise
        kind = type(error)
        raise kind(error.what, where=object_id, why=error.why, fix=error.fix) from error
