"""The tensors of a source checkpoint by name."""

from __future__ import annotations

from collections.abc import Mapping

from ninfer_core.api import ArtifactError, SourceTensor


class TensorTable(dict[str, SourceTensor]):
    """Tensors of a checkpoint by name; asking for one that is absent is the checkpoint's fault.

    :param where: the checkpoint, for the error.
    """

    def __init__(self, where: str, tensors: Mapping[str, SourceTensor]) -> None:
        super().__init__(tensors)
        self.where = where

    def __missing__(self, name: str) -> SourceTensor:
        raise ArtifactError(
            "the checkpoint lacks a tensor", where=self.where,
            why=f"{name!r} is not among its {len(self)} tensors",
        )
