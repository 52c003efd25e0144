"""Choosing how each object is stored: by the recipe, among the registered formats and layouts."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from ninfer_convert.objects import StoredObject
from ninfer_core.api import (
    ConfigError,
    ImportedParameter,
    ImportPlan,
    LayoutSpec,
    StorageChoice,
)

log = logging.getLogger(__name__)
KEEP = StorageChoice("*")
UNKEPT = "bf16"
"""Stored where a recipe says to keep what the checkpoint holds, and no format holds that."""


def plan_objects(
    plan: ImportPlan, recipe: Sequence[StorageChoice], registry: Any
) -> list[StoredObject]:
    """The objects of the artifact, in the order of the plan.

    :raises ConfigError: if the recipe has no entry for a parameter, differs within an object, or
        names what is not registered.
    """
    decided = [_choice(each, recipe) for each in plan.parameters]
    if idle := [choice.pattern for choice in recipe if not any(choice is one for one in decided)]:
        log.warning("these patterns of the recipe decide nothing: %s", ", ".join(idle))
    groups: dict[str, list[ImportedParameter]] = {}
    for parameter in plan.parameters:
        groups.setdefault(parameter.parent or parameter.spec.name, []).append(parameter)
    return [
        _plan_object(object_id, members, recipe, registry) for object_id, members in groups.items()
    ]


def _plan_object(
    object_id: str, members: Sequence[ImportedParameter], recipe: Sequence[StorageChoice],
    registry: Any,
) -> StoredObject:
    choice = _common([_choice(member, recipe) for member in members], object_id)
    name = choice.format or _held_format(members)
    if name not in registry.formats:
        raise _unknown("weight format", name, registry.formats)
    layout = _layout(choice.layout, name, registry)
    return StoredObject(object_id, tuple(members), registry.formats[name].spec, layout)


def _choice(parameter: ImportedParameter, recipe: Sequence[StorageChoice]) -> StorageChoice:
    if parameter.spec.kind == "direct":
        return KEEP
    for choice in recipe:
        if fnmatchcase(parameter.spec.name, choice.pattern):
            return choice
    raise ConfigError(
        "the recipe does not cover a parameter", where=parameter.spec.name,
        fix='end the recipe with an entry of pattern "*"',
    )


def _common(choices: Sequence[StorageChoice], object_id: str) -> StorageChoice:
    kinds = sorted({(choice.format, choice.layout) for choice in choices})
    if len(kinds) > 1:
        raise ConfigError(
            "the recipe splits an object", where=object_id,
            why="it is stored as one matrix, but the recipe says "
            + " and ".join(" ".join(kind).strip() or "(keep)" for kind in kinds),
            fix="give all its parameters the same format and layout",
        )
    return choices[0]


def _held_format(members: Sequence[ImportedParameter]) -> str:
    held = {member.format for member in members}
    if held == {"bf16", "fp32"}:
        return "fp32"  # which holds all numbers of both
    return (held.pop() if len(held) == 1 else "") or UNKEPT


def _layout(wanted: str, format_name: str, registry: Any) -> LayoutSpec:
    fitting: dict[str, LayoutSpec] = {
        name: registered.spec for name, registered in registry.layouts.items()
        if format_name in registered.spec.formats
    }
    if not fitting or (wanted and wanted not in fitting):
        raise _unknown(f"layout of {format_name}", wanted or "any", fitting)
    return fitting[wanted] if wanted else next(iter(fitting.values()))


def _unknown(what: str, name: str, known: Mapping[str, Any]) -> ConfigError:
    listed = ", ".join(sorted(known)) or "none"
    return ConfigError(f"no such {what}", where=name, why=f"registered are: {listed}")
