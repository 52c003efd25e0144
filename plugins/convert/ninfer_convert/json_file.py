"""JSON files of a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ninfer_core.api import ArtifactError


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file; raises `ArtifactError` for anything else, a repeated name included."""
    try:
        value = json.loads(path.read_bytes(), object_pairs_hook=_unique)
    except (OSError, ValueError, RecursionError) as error:
        raise ArtifactError("cannot read a file", where=path.name, why=str(error)) from error
    if not isinstance(value, dict):
        raise ArtifactError("cannot read a file", where=path.name, why="not a JSON object")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        names = [name for name, _ in pairs]
        repeated = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"repeated names: {', '.join(repeated)}")
    return members
