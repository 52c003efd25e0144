"""Stored objects: the parameters stacked in each, and the bytes of its image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from attrs import frozen
from torch import Tensor

from ninfer_core.api import (
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
        return self._layout().nbytes(self.format.name, self.shape)

    def image(self) -> Tensor:
        """uint8 ``[nbytes]``; reads the checkpoint."""
        return self._layout().pack(self.format.name, self._parts())

    def _parts(self) -> Mapping[str, Tensor]:
        if self.kept:
            members = [member.parts() for member in self.members if member.parts]
            return {name: _stack([parts[name] for parts in members]) for name in members[0]}
        codec: FormatCodec = self.format.codec.load()()
        return codec.quantize(_stack([member.values() for member in self.members]))

    def _layout(self) -> StorageLayout:
        layout: StorageLayout = self.layout.layout.load()()
        return layout


def _stack(rows: Sequence[Tensor]) -> Tensor:
    return rows[0] if len(rows) == 1 else torch.cat(list(rows))
