"""Stored objects: the parameters stacked in each, and the bytes of its image."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

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

Planes = Mapping[str, Tensor]


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

    def image(self) -> Tensor:
        """uint8 ``[nbytes]``; reads the checkpoint, one member after the other.

        :raises ArtifactError: if a tensor has another shape, or values that the format cannot hold.
        """
        with _named(self.object_id):
            if len(self.members) == 1:
                return self._image_of(self.members[0])
            image, begin = torch.zeros(self.nbytes, dtype=torch.uint8), 0
            planes = self._planes(image, self.shape)
            for member in self.members:
                shape = self._shape_of(member)
                piece = self._planes(self._image_of(member), shape)
                _place(piece, planes, begin, self.shape[0])
                begin += shape[0]
            return image

    def _image_of(self, member: ImportedParameter) -> Tensor:
        """The image of an object of this member alone."""
        parts = self._parts(member)
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


def _place(piece: Planes, planes: Planes, begin: int, total: int) -> None:
    """Copy the planes of some rows into those of all ``total`` rows, from row ``begin`` on."""
    for name, rows in piece.items():
        plane = planes[name]
        if not plane.ndim:
            if begin and not torch.equal(plane, rows):
                raise ArtifactError(
                    "matrices cannot be stacked", why=f"they have different numbers for {name}"
                )
            plane.copy_(rows)
            continue
        at = begin * plane.shape[0] // total
        plane[at : at + rows.shape[0]].copy_(rows)


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
