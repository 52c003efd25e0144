"""A GGUF file as a source checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attrs import evolve, frozen
from gguf import GGMLQuantizationType, GGUFReader, ReaderTensor
from gguf.quants import dequantize
from torch import Tensor

from ninfer_convert.gguf_tokenizer import frontend_files
from ninfer_convert.tensor_table import TensorTable
from ninfer_core.api import ArtifactError, ModelDescription

FORMATS = {"F32": "fp32", "F16": "fp32", "BF16": "bf16", "Q8_0": "q8_g32_fp16"}
"""Types of ggml that a format of the core holds bit for bit."""


@frozen(eq=False)
class GgufTensor:
    """A tensor of a GGUF file; `dtype` is ggml's name of its type."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    _type: GGMLQuantizationType
    _data: np.ndarray[Any, Any]

    @property
    def format(self) -> str:
        return FORMATS.get(self.dtype, "")

    def raw(self) -> Tensor:
        stored = torch.from_numpy(np.array(self._data))
        return stored.view(torch.bfloat16) if self.dtype == "BF16" else stored

    def parts(self) -> dict[str, Tensor]:
        if self.dtype == "Q8_0":
            return _parts_of_q8_0(self.raw(), self.name)
        return {"codes": self.raw().float() if self.dtype == "F16" else self.raw()}

    def dense(self) -> Tensor:
        try:
            values = dequantize(np.asarray(self._data), self._type)
        except NotImplementedError as error:
            raise ArtifactError(
                "cannot read a tensor of the GGUF file", where=self.name, why=str(error)
            ) from error
        return torch.from_numpy(np.array(values, dtype=np.float32)).reshape(self.shape)

    def scalars(self) -> dict[str, float]:
        return {}

    def __getitem__(self, index: int | slice) -> GgufTensor:
        rows, rest = range(self.shape[0])[index], self.shape[1:]
        shape = rest if isinstance(rows, int) else (len(rows), *rest)
        return evolve(self, shape=shape, data=self._data[index])


def _tensor(tensor: ReaderTensor) -> GgufTensor:
    shape = tuple(int(size) for size in reversed(tensor.shape))
    kind = GGMLQuantizationType(tensor.tensor_type)
    return GgufTensor(tensor.name, kind.name, shape, kind, tensor.data)


def _parts_of_q8_0(blocks: Tensor, name: str) -> dict[str, Tensor]:
    """``[N, K / 32 * 34]``: blocks of an fp16 scale and 32 codes."""
    grid = blocks.unflatten(-1, (-1, 34))
    scales, codes = grid[..., :2].contiguous().view(torch.float16), grid[..., 2:].view(torch.int8)
    if (codes == -128).any():
        raise ArtifactError(
            "a tensor cannot be kept as it is", where=name,
            why="q8_g32_fp16 has no code -128, and this Q8_0 tensor has one",
            fix="convert with a recipe that stores it as bf16 or fp32",
        )
    return {"codes": codes.flatten(-2), "scales": scales.flatten(-2)}


class GgufSource:
    """A checkpoint in one GGUF file.

    The description's config holds all metadata but the tokenizer's, which the resources hold in
    the form of Hugging Face files (see `frontend_files`).

    :raises ArtifactError: if the file is damaged or is one piece of a split set.
    :raises UnsupportedError: if its tokenizer is of an unknown kind.
    """

    def __init__(self, path: Path) -> None:
        reader, metadata = _read(path)
        _check(metadata, reader, path)
        self.description = _describe(metadata)
        has_text = any(key.startswith("tokenizer.ggml.") for key in metadata)
        self.resources = frontend_files(metadata) if has_text else {}
        self.ignored: dict[str, str] = {}
        tensors = {tensor.name: _tensor(tensor) for tensor in reader.tensors}
        self.tensors = self.stored = TensorTable(path.name, tensors)


class _Reader(GGUFReader):
    """Stops at the end of the file, where the library goes on to count what is not there."""

    def _get(self, offset: int, dtype: Any, count: Any = 1, *order: Any, **options: Any) -> Any:
        found = super()._get(offset, dtype, count, *order, **options)
        if len(found) < count:
            raise ValueError(f"it ends at byte {len(self.data)}, before its content does")
        return found


def _read(path: Path) -> tuple[GGUFReader, dict[str, Any]]:
    """Tensors and metadata; the reader raises whatever its arithmetic meets in a damaged file."""
    try:
        reader = _Reader(path)
        return reader, {key: field.contents() for key, field in reader.fields.items()}
    except (
        ValueError, KeyError, IndexError, OverflowError, TypeError, OSError, RecursionError,
    ) as error:
        raise ArtifactError(
            "the GGUF file is damaged", where=path.name, why=str(error), fix="fetch it again"
        ) from error


def _check(metadata: Mapping[str, Any], reader: GGUFReader, path: Path) -> None:
    if not isinstance(metadata.get("general.architecture"), str):
        raise ArtifactError(
            "the GGUF file is damaged", where=path.name, why="general.architecture is missing"
        )
    if reader.byte_order != "I":
        raise ArtifactError(
            "the GGUF file is of the other byte order", where=path.name,
            fix="convert it with gguf-py's gguf_convert_endian first",
        )
    end = reader.data_offset
    for tensor in sorted(reader.tensors, key=lambda each: each.data_offset):
        if tensor.data_offset < end or (tensor.data_offset - reader.data_offset) % reader.alignment:
            raise ArtifactError(
                "the GGUF file is damaged", where=path.name, fix="fetch it again",
                why=f"{tensor.name} overlaps another tensor, or is not aligned",
            )
        end = tensor.data_offset + tensor.n_bytes
    if metadata.get("split.count", 1) != 1:
        raise ArtifactError(
            "the GGUF file is one piece of a split set", where=path.name,
            fix="merge the pieces with llama-gguf-split --merge first",
        )


def _describe(metadata: Mapping[str, Any]) -> ModelDescription:
    config = {
        key: value for key, value in metadata.items()
        if not key.startswith(("tokenizer.", "GGUF."))
    }
    return ModelDescription("gguf", (metadata["general.architecture"],), config)
