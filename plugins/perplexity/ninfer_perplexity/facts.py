"""What a report says of the model and of how it ran."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable

from ninfer_core.config import EnginePlan
from ninfer_core.ops.binder import KernelChoice
from ninfer_perplexity.report import ModelFacts, Settings


def model_facts(plan: EnginePlan, kernels: Iterable[KernelChoice]) -> ModelFacts:
    """The model, in what formats its parameters are, and what computes with them."""
    formats: dict[str, Counter[str]] = defaultdict(Counter)
    for spec in plan.parameters:
        [stored, *_] = plan.artifact.parts(spec.tied_to or spec.name)[0]
        formats[role(spec.name)][stored.format] += 1
    chosen: dict[str, set[str]] = defaultdict(set)
    for choice in kernels:
        chosen[choice.request.op].add(choice.spec.name)
    return ModelFacts(
        name=str(plan.artifact.metadata.get("name") or plan.artifact.path.name),
        artifact_id=str(plan.artifact.artifact_id),
        architectures=plan.artifact.description().architectures, pack=plan.pack.spec.name,
        formats=formats, kernels={op: tuple(sorted(names)) for op, names in chosen.items()},
    )


def role(name: str) -> str:
    """A parameter's name without the numbers of its layer and expert."""
    return re.sub(r"(?<=/)\d+(?=/)", "*", name)


def settings(plan: EnginePlan, stride: int, vocab_size: int) -> Settings:
    """How the plan runs."""
    assert plan.config.max_context is not None
    return Settings(
        context=plan.config.max_context, stride=stride, vocab_size=vocab_size,
        kv_dtype=plan.kv.name, profile=plan.profile.spec.name,
        compute_dtype=plan.hardware.compute_dtype, step_tokens=plan.max_tokens,
        step_logits=plan.max_logits,
    )
