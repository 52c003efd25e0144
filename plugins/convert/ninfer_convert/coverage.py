"""Nothing of a checkpoint is lost, used twice or made up."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from attrs import evolve

from ninfer_core.api import ArtifactError, CheckpointSource, ImportPlan, ParameterSpec


def check_parameters(plan: ImportPlan, expected: Iterable[ParameterSpec]) -> None:
    """The plan gives every parameter that a reader of the artifact will ask for, and no other.

    :raises ArtifactError: naming the parameters in question.
    """
    wanted = {spec.name: spec for spec in expected if not spec.tied_to}
    counts = Counter(parameter.spec.name for parameter in plan.parameters)
    _refuse("the plan gives parameters twice", [n for n, count in counts.items() if count > 1])
    _refuse("the plan lacks parameters", [name for name in wanted if name not in counts])
    odd = [each.spec.name for each in plan.parameters if not _fits(each.spec, wanted)]
    _refuse("the plan gives parameters that the model does not have", odd)


def _fits(given: ParameterSpec, wanted: Mapping[str, ParameterSpec]) -> bool:
    """Whether it is wanted so; its inputs do not matter, they depend on other components."""
    spec = wanted.get(given.name)
    return spec is not None and evolve(given, inputs=spec.inputs) == spec


def check_tensors(plan: ImportPlan, source: CheckpointSource) -> None:
    """Every tensor of the checkpoint is consumed exactly once, or ignored with a reason.

    Several parameters may share one tensor if together they have as many elements.

    :raises ArtifactError: naming the tensors in question.
    """
    sizes = {name: math.prod(tensor.shape) for name, tensor in source.tensors.items()}
    used = Counter[str]()
    for parameter in plan.parameters:
        for name in parameter.sources:
            alone = len(parameter.sources) == 1
            used[name] += math.prod(parameter.spec.shape) if alone else sizes[name]
    taken = [name for name in sizes if name in used]
    _refuse("tensors are consumed and ignored", [name for name in taken if name in plan.ignored])
    _refuse("tensors are consumed more than once", [n for n in taken if used[n] > sizes[n]])
    _refuse("tensors are consumed in part only", [n for n in taken if used[n] < sizes[n]])
    left = [name for name in sizes if name not in used and name not in plan.ignored]
    _refuse("tensors of the checkpoint have no place in the model", left)


def _refuse(what: str, names: list[str]) -> None:
    if names:
        raise ArtifactError(what, why=listed(names))


def listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
