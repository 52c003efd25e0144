"""Opening a source checkpoint, whatever its kind."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ninfer_core.api import ArtifactError

if TYPE_CHECKING:
    from ninfer_convert.gguf_source import GgufSource
    from ninfer_convert.safetensors_source import SafetensorsSource


def open_source(path: Path) -> SafetensorsSource | GgufSource:
    """Open a directory of safetensors or a GGUF file; reads headers and metadata only.

    :raises ArtifactError: if it is neither, or damaged.
    """
    if os.path.isdir(path):  # unlike the methods, these take any text for a path
        from ninfer_convert.safetensors_source import SafetensorsSource

        return SafetensorsSource(path)
    if path.suffix == ".gguf" and os.path.isfile(path):
        from ninfer_convert.gguf_source import GgufSource

        return GgufSource(path)
    raise ArtifactError(
        "not a source checkpoint", where=str(path),
        why="expected a directory with *.safetensors or a .gguf file",
    )
