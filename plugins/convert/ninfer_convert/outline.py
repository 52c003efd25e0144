"""The artifact that a conversion would write, without weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ninfer_artifact_writer.writer import Outline
from ninfer_convert.declaration import declare
from ninfer_convert.storage import plan_objects
from ninfer_core.api import ImportPlan, ParameterSpec
from ninfer_core.artifact.container import Artifact


def outline(
    plan: ImportPlan, registry: Any, *, expected: Iterable[ParameterSpec] | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> Artifact:
    """Plan objects as `convert_checkpoint` does; of the plan's parameters neither values nor parts
    are read. Matrices of which no scalars are given are taken to be divided by equal numbers.

    :param registry: has ``formats`` and ``layouts``: name -> object with a ``spec``.
    :param expected: what readers will ask for; the plan's parameters if None.
    :raises ConfigError: if the recipe does not fit the plan or the registry.
    :raises ArtifactError: if a layout cannot hold an object.
    """
    objects = plan_objects(plan, registry)
    planned = Outline(Path("outline"), components=plan.components, provenance=provenance)
    specs = [each.spec for each in plan.parameters] if expected is None else expected
    declare(planned, objects, specs, plan.recipe)
    for role, content in plan.resources.items():
        planned.add_resource(role, content)
    return planned.artifact()
