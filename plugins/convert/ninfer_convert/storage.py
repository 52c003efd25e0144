"""Choosing how each object is stored: by the recipe, among the registered formats and layouts."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import groupby
from typing import Any

from attrs import frozen

from ninfer_convert.objects import StoredObject
from ninfer_core.api import (
    ConfigError,
    ImportedParameter,
    ImportPlan,
    LayoutSpec,
    ParameterSpec,
    StorageChoice,
)

log = logging.getLogger(__name__)
KEEP = StorageChoice("*")
UNKEPT = "bf16"
"""Stored where a recipe says to keep what the checkpoint holds, and no format holds that."""
BY_MATRIX = frozenset({"nvfp4"})
"""Formats with a number for each matrix: their banks are ``[E, N, K]``, others are rows."""


def plan_objects(plan: ImportPlan, registry: Any) -> list[StoredObject]:
    """The objects of the artifact by the plan's recipe, in the plan's order.

    Neighbours of one parent that are stored in different formats or layouts, or whose matrices are
    divided by different numbers, become objects of their own.

    :raises ConfigError: if the recipe has no entry for a parameter, splits a bank, or names what is
        not registered.
    """
    decided = [choose(each.spec, plan.recipe) for each in plan.parameters]
    idle = [each.pattern for each in plan.recipe if not any(each is choice for choice in decided)]
    if idle:
        log.warning("these patterns of the recipe decide nothing: %s", ", ".join(idle))
    groups: dict[str, list[ImportedParameter]] = {}
    for parameter in plan.parameters:
        groups.setdefault(parameter.parent or parameter.spec.name, []).append(parameter)
    return [
        stored for parent, members in groups.items()
        for stored in _plan_parent(parent, members, plan.recipe, registry)
    ]


def choose(spec: ParameterSpec, recipe: Sequence[StorageChoice]) -> StorageChoice:
    """The recipe's entry for a parameter; raises `ConfigError` if there is none."""
    if spec.kind == "direct":
        return KEEP
    for choice in recipe:
        if fnmatchcase(spec.name, choice.pattern):
            return choice
    raise ConfigError(
        "the recipe does not cover a parameter", where=spec.name,
        fix='end the recipe with an entry of pattern "*"',
    )


@frozen
class _Kind:
    """What the members of an object have in common; ``divisor`` is None for other formats."""

    format: str
    layout: str
    divisor: float | None

    def __str__(self) -> str:
        divided = "" if self.divisor is None else f"/ {self.divisor:g}"
        return " ".join(filter(None, (self.format, self.layout, divided)))


def _kind(member: ImportedParameter, choice: StorageChoice) -> _Kind:
    name = choice.format or member.format or UNKEPT
    read = member.scalars if name == member.format and not member.bank else None
    return _Kind(name, choice.layout, read().get("divisor") if read else None)


def _plan_parent(
    parent: str, members: Sequence[ImportedParameter], recipe: Sequence[StorageChoice],
    registry: Any,
) -> list[StoredObject]:
    grouped = groupby(members, lambda member: _kind(member, choose(member.spec, recipe)))
    runs = [(kind, tuple(run)) for kind, run in grouped]
    if len(runs) > 1 and members[0].bank:
        raise ConfigError(
            "a bank of experts cannot be split", where=parent,
            why=f"its matrices would be {' and '.join(sorted({str(kind) for kind, _ in runs}))}",
            fix="use a recipe that gives all of them one format and layout",
        )
    names = [parent] if len(runs) == 1 else [f"{parent}.{index}" for index in range(len(runs))]
    return [
        _plan_object(name, run, kind, registry)
        for name, (kind, run) in zip(names, runs, strict=True)
    ]


def _plan_object(
    object_id: str, members: tuple[ImportedParameter, ...], kind: _Kind, registry: Any
) -> StoredObject:
    if kind.format not in registry.formats:
        raise _unknown("weight format", kind.format, registry.formats)
    is_bank = members[0].bank and len(members) > 1 and kind.format in BY_MATRIX
    if is_bank and len(shapes := {member.spec.shape for member in members}) > 1:
        raise ConfigError(
            "a bank of experts cannot be stored", where=object_id,
            why=f"{kind.format} wants matrices of one shape, not {sorted(shapes)}",
        )
    spec, layouts = registry.formats[kind.format].spec, _layouts(kind, registry)
    possible = [StoredObject(object_id, members, spec, layout, is_bank) for layout in layouts]
    return next((stored for stored in possible if stored.fits), possible[0])


def _layouts(kind: _Kind, registry: Any) -> list[LayoutSpec]:
    """The layout that is wanted, else all of the format; at least one."""
    fitting: dict[str, LayoutSpec] = {
        name: registered.spec for name, registered in registry.layouts.items()
        if kind.format in registered.spec.formats
    }
    if not fitting or (kind.layout and kind.layout not in fitting):
        raise _unknown(f"layout of {kind.format}", kind.layout or "any", fitting)
    return [fitting[kind.layout]] if kind.layout else [*fitting.values()]


def _unknown(what: str, name: str, known: Mapping[str, Any]) -> ConfigError:
    listed = ", ".join(sorted(known)) or "none"
    return ConfigError(f"no such {what}", where=name, why=f"registered are: {listed}")
