"""Log probabilities of all tokens at every target, on disk: a safetensors file that is written and
read in blocks, with a tensor F16 ``[targets, V]`` for each text.

Half precision keeps 11 bits of a logarithm. What the rounding adds to a divergence is below 1e-6
nats, far less than any quantisation does.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import safetensors
import torch
from torch import Tensor

from ninfer_core.api import ArtifactError, CapacityError

FILE = "log_probs.safetensors"
ITEM_BYTES = 2


def require_space(folder: Path, nbytes: int) -> None:
    """Raise `CapacityError` unless the file system of a directory has room for a file."""
    free = shutil.disk_usage(folder).free
    if nbytes > free:
        raise CapacityError(
            "log probabilities do not fit on the disk", where=str(folder),
            why=f"they take {nbytes:,} bytes, and {free:,} are free",
            fix="measure fewer texts (--quick), or choose another --output",
        )


class LogProbWriter:
    """Writes the tensors of all texts, one block after the other.

    :param sizes: name of a text -> its number of targets, in the order of writing.
    """

    def __init__(self, file: BinaryIO, sizes: Mapping[str, int], vocab_size: int) -> None:
        self._file = file
        header: dict[str, object] = {}
        end = 0
        for name, targets in sizes.items():
            begin, end = end, end + targets * vocab_size * ITEM_BYTES
            shape = [targets, vocab_size]
            header[name] = {"dtype": "F16", "shape": shape, "data_offsets": [begin, end]}
        text = json.dumps(header).encode()
        text = text.ljust(-(-len(text) // 8) * 8)
        file.write(len(text).to_bytes(8, "little") + text)

    def write(self, log_probs: Tensor) -> None:
        """The next rows, ``[R, V]``."""
        self._file.write(log_probs.half().numpy(force=True).tobytes())


class LogProbReader:
    """Reads rows of the tensors of a file.

    :raises ArtifactError: if it is not readable, or lacks what is asked for.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = safetensors.safe_open(path, "pt")
        except (OSError, safetensors.SafetensorError) as error:
            raise self._unreadable(str(error)) from error

    def rows(self, name: str, begin: int, end: int) -> Tensor:
        """fp16 ``[end - begin, V]`` of one text."""
        try:
            rows: Tensor = self._file.get_slice(name)[begin:end]
        except safetensors.SafetensorError as error:
            raise self._unreadable(str(error)) from error
        if len(rows) != end - begin or rows.dtype != torch.float16:
            raise self._unreadable(f"{name} has other targets than its report says")
        return rows

    def _unreadable(self, why: str) -> ArtifactError:
        return ArtifactError(
            "cannot read the log probabilities of the reference", where=str(self._path), why=why,
            fix="measure the reference again with --save-logits",
        )
