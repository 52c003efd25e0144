"""The artifact that a conversion would write, without weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ninfer_convert.declaration import declare
from ninfer_convert.storage import plan_objects
from ninfer_core.api import ImportPlan
from ninfer_core.artifact.container import Artifact
from ninfer_core.artifact.writer import Outline


def outline(plan: ImportPlan, registry: Any) -> Artifact:
    """Plan objects as `convert_checkpoint` does; of the plan's parameters neither values nor parts
    are read. Matrices of which no scalars are given are taken to be divided by equal numbers.

    :param registry: has ``formats`` and ``layouts``: name -> object with a ``spec``.
    :raises ConfigError: if the recipe does not fit the plan or the registry.
    :raises ArtifactError: if a layout cannot hold an object.
    """
    objects = plan_objects(plan, registry)
    planned = Outline(Path("outline"), components=plan.components)
    declare(planned, objects, [each.spec for each in plan.parameters], plan.recipe)
    for role, content in plan.resources.items():
        planned.add_resource(role, content)
    return planned.artifact()
