"""Whether an artifact holds what a pack wants of it, seen from the catalogue alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ninfer_core.api import ArtifactError, NInferError, ParameterSpec
from ninfer_core.artifact.container import Artifact
from ninfer_core.artifact.rows import shape_of

SHOWN = 5
"""Problems named in an error; `ninfer doctor` lists all."""


def require_weights(artifact: Artifact, parameters: Iterable[ParameterSpec]) -> None:
    """Check every parameter before a byte of it is read.

    :raises ArtifactError: naming the parameters that are missing or have another shape.
    """
    problems = [f"{name}: {why}" for _, name, why in weight_problems(artifact, parameters)]
    if problems:
        more = f"; and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        raise ArtifactError(
            "the artifact does not hold the model's weights", where=str(artifact.path),
            why="; ".join(problems[:SHOWN]) + more,
            fix="see all with `ninfer doctor`, convert anew",
        )


def weight_problems(
    artifact: Artifact, parameters: Iterable[ParameterSpec]
) -> Iterator[tuple[str, str, str]]:
    """Parameters that are not bound, or not in the shape the model wants: ``(kind, name, why)``."""
    for spec in parameters:
        try:
            shape = shape_of(artifact, spec.tied_to or spec.name)
        except NInferError as error:
            yield "missing", spec.name, str(error)
            continue
        if shape != spec.shape:
            yield "shape", spec.name, f"{list(shape)} stored, {list(spec.shape)} wanted"
