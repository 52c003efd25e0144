"""Leaving components of a model out of its artifact."""

from __future__ import annotations

from collections.abc import Collection

from attrs import evolve

from ninfer_core.api import ConfigError, ImportPlan


def keep_components(plan: ImportPlan, wanted: Collection[str]) -> ImportPlan:
    """The plan with these components alone. Parameters belong to the component that their names
    begin with; source tensors that only left-out parameters consume are ignored.

    :raises ConfigError: if the model does not have a component, or ``text`` is left out.
    """
    known = ", ".join(plan.components)
    if unknown := [name for name in wanted if name not in plan.components]:
        raise ConfigError("no such component", where=unknown[0], why=f"the model has {known}")
    if "text" not in wanted:
        raise ConfigError("component text cannot be left out", why=f"the model has {known}")
    left_out = plan.components.keys() - {*wanted}
    kept = [each for each in plan.parameters if _component(each.spec.name) not in left_out]
    used = {name for each in kept for name in each.sources}
    ignored = {
        name: f"component {_component(each.spec.name)} is left out"
        for each in plan.parameters for name in each.sources if name not in used
    }
    components = {name: plan.components[name] for name in plan.components if name in wanted}
    return evolve(
        plan, components=components, parameters=tuple(kept), ignored={**plan.ignored, **ignored}
    )


def _component(parameter: str) -> str:
    return parameter.partition("/")[0]
