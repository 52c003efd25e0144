"""Which file of a safetensors directory holds which tensor."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from ninfer_convert.json_file import read_json
from ninfer_core.api import ArtifactError

INDEX_PATTERN = "*.safetensors.index.json"
log = logging.getLogger(__name__)


def open_shards(directory: Path) -> dict[str, Any]:
    """Tensor name -> the open file (`safetensors.safe_open`) to read it from.

    The index is an allow-list: a tensor counts in the file that the index names for it and nowhere
    else; those it does not name at all are not used, with a warning. Files are memory-mapped, their
    sizes checked against their headers.

    :raises ArtifactError: naming what is missing or damaged.
    """
    indexes = sorted(directory.glob(INDEX_PATTERN))
    files = sorted(directory.glob("*.safetensors"))
    if len(indexes) == 1:
        return _follow(indexes[0])
    if not indexes and len(files) == 1:
        file = _open(files[0])
        return dict.fromkeys(file.keys(), file)
    found = ", ".join(path.name for path in indexes or files) or "none"
    raise ArtifactError(
        "cannot tell where the weights are", where=str(directory),
        why=f"expected one {INDEX_PATTERN}, or one *.safetensors; found {found}",
    )


def _follow(index: Path) -> dict[str, Any]:
    weight_map = _weight_map(index)
    paths = {name: index.parent / name for name in sorted(set(weight_map.values()))}
    _refuse(index, "files are missing", [n for n in paths if not os.path.isfile(paths[n])])
    files = {name: _open(path) for name, path in paths.items()}
    held = {name: frozenset(file.keys()) for name, file in files.items()}
    absent = [f"{name} ({file})" for name, file in weight_map.items() if name not in held[file]]
    _refuse(index, "tensors are missing from their files", absent)
    if unlisted := frozenset[str]().union(*held.values()) - weight_map.keys():
        log.warning("%s leaves out, so not used: %s", index.name, ", ".join(sorted(unlisted)))
    return {tensor: files[name] for tensor, name in weight_map.items()}


def _weight_map(index: Path) -> dict[str, str]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ArtifactError("the index is empty", where=index.name, why="it has no weight_map")
    odd = [repr(n) for n in weight_map.values() if not n or Path(str(n)).name != n]
    _refuse(index, "files are not plain names in the same directory", odd)
    return weight_map


def _refuse(index: Path, what: str, names: Sequence[str]) -> None:
    if names:
        raise ArtifactError(what, where=index.name, why=", ".join(names), fix="fetch them again")


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ArtifactError(
            "a file of weights is damaged", where=path.name, why=str(error), fix="fetch it again"
        ) from error
