"""Stored objects: the parameters stacked in each, and the bytes of its image."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    StorageLayout,
)


@frozen(eq=False)
class StoredObject:
    """One object of the artifact: the rows of its members, one below the other."""

    object_id: str
    members: tuple[ImportedParameter, ...]
    format: FormatSpec
    layout: LayoutSpec

    @property
    def kept(self) -> bool:
        """Whether its bits are those of the checkpoint."""
        return all(each.parts and each.format == self.format.name for each in self.members)

    @property
    def shape(self) -> tuple[int, ...]:
        shapes = [member.spec.shape for member in self.members]
        return (sum(shape[0] for shape in shapes), *shapes[0][1:])

    @property
    def nbytes(self) -> int:
        """Size of the image; raises `ArtifactError` if the layout cannot hold the shape."""
        with _named(self.object_id):
            return self._layout().nbytes(self.format.name, self.shape)

    def image(self) -> Tensor:
        """uint8 ``[nbytes]``; reads the checkpoint.

        :raises ArtifactError: if a tensor has another shape, or values that the format cannot hold.
        """
        with _named(self.object_id):
            parts = self._kept_parts() if self.kept else self._quantized_parts()
            return self._layout().pack(self.format.name, parts)

    def _kept_parts(self) -> Mapping[str, Tensor]:
        members = [member.parts() for member in self.members if member.parts]
        self._check_shapes([each["codes"] for each in members])
        return {name: _stack([each[name] for each in members]) for name in members[0]}

    def _quantized_parts(self) -> Mapping[str, Tensor]:
        values = [member.values() for member in self.members]
        self._check_shapes(values)
        codec: FormatCodec = self.format.codec.load()()
        return codec.quantize(_stack(values))

    def _check_shapes(self, given: Sequence[Tensor]) -> None:
        for member, elements in zip(self.members, given, strict=True):
            if tuple(elements.shape) != member.spec.shape:
                raise ArtifactError(
                    "the checkpoint's tensors have another shape", where=member.spec.name,
                    why=f"{list(elements.shape)}, the model wants {list(member.spec.shape)}",
                )

    def _layout(self) -> StorageLayout:
        layout: StorageLayout = self.layout.layout.load()()
        return layout


@contextmanager
def _named(object_id: str) -> Iterator[None]:
    """Say which object it was in errors of formats and layouts, which do not know."""
    try:
        yield
    except ArtifactError as error:
        if error.where:
            raise
        raise ArtifactError(error.what, where=object_id, why=error.why, fix=error.fix) from error


def _stack(rows: Sequence[Tensor]) -> Tensor:
    return rows[0] if len(rows) == 1 else torch.cat(list(rows))
