"""``ninfer doctor`` and ``ninfer kernels``: what a model would run on, without loading it."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from ninfer_core.api import KernelRequest, NInferError, ParameterSpec
from ninfer_core.artifact.container import Artifact
from ninfer_core.artifact.rows import rows_of
from ninfer_core.artifact.store import load_weights
from ninfer_core.cli.console import Console, table
from ninfer_core.cli.launch import prepare
from ninfer_core.cli.selection import find_plugins
from ninfer_core.config import EnginePlan, resolve
from ninfer_core.config.model import resolve_model
from ninfer_core.engine.build import Build
from ninfer_core.ops.binder import Binder, KernelChoice
from ninfer_core.state.store import StateStore

Row = tuple[str, str, str]


def run(arguments: Namespace) -> int:
    """Check claim, weights and kernels; exit code 1 if the model could not run."""
    with Console(arguments.log_level) as console:
        config, report = prepare(arguments, console.progress)
    model = resolve_model(config, report)
    artifact, parameters, claim = model.artifact, model.parameters, model.pack
    rejected = (("not", name, reason) for name, reason in claim.rejected)
    problems = list(weight_problems(artifact, parameters))
    bound = f"{len(parameters) - len(problems)} of {len(parameters)} parameters are bound"
    print(table(("claim", claim.spec.name, claim.reason), *rejected, ("weights", bound, ""),
                *problems, *unused_tensors(artifact, parameters)))
    if problems:
        return 1
    print_kernels(resolve(config, report, absent=True))
    return 0


def kernels(arguments: Namespace) -> int:
    """All kernels there are, or with a model those it gets."""
    with Console(arguments.log_level) as console:
        if arguments.model is not None:
            print_kernels(resolve(*prepare(arguments, console.progress), absent=True))
            return 0
        every = find_plugins(arguments).registry.kernels.values()
    head = ("OP", "KERNEL", "PRIORITY", "DEVICES", "INVARIANT", "DISTRIBUTION", "SOURCE")
    print(table(head, *sorted(
        (k.spec.op, k.spec.name, k.spec.priority, "/".join(k.spec.devices),
         "yes" if k.spec.batch_invariant else "no", k.provenance.distribution, k.spec.source)
        for k in every
    )))
    return 0


def weight_problems(artifact: Artifact, parameters: Iterable[ParameterSpec]) -> Iterator[Row]:
    """Parameters that are not bound, or not in the shape the model wants."""
    for spec in parameters:
        try:
            runs = rows_of(artifact, [spec.tied_to or spec.name])
        except NInferError as error:
            yield "missing", spec.name, str(error)
            continue
        shape = (sum(run.count for run in runs), *runs[0].tensor.shape[1:])
        if shape != spec.shape:
            yield "shape", spec.name, f"{list(shape)} stored, {list(spec.shape)} wanted"


def unused_tensors(artifact: Artifact, parameters: Iterable[ParameterSpec]) -> Iterator[Row]:
    """Stored tensors that no parameter of the pack reads; they may belong to another component."""
    names = {spec.tied_to or spec.name for spec in parameters} & artifact.bindings.keys()
    used = {tensor.id for name in names for tensor, _, _ in artifact.parts(name)}
    for id_, stored in artifact.objects.items():
        if stored.kind == "tensor" and id_ not in used:
            yield "unused", id_, f"{stored.bytes:,} B"


def print_kernels(plan: EnginePlan) -> None:
    """Print the kernel of every op of a plan's model, and why not the others.

    :raises NInferError: if an op has none.
    """
    rows = (row for choice in dry_build(plan) for row in _choice_rows(choice))
    print(table(("OP", "KERNEL", "FOR"), *rows))


def dry_build(plan: EnginePlan) -> Iterable[KernelChoice]:
    """Build the model of a plan from tensors without memory; the kernels it would get."""
    registry, hardware, config = plan.registry, plan.hardware, plan.config
    max_context = config.max_context or 0
    weights = load_weights(
        plan.artifact, device="meta", select=[spec.name for spec in plan.parameters],
        formats={name: each.spec for name, each in registry.formats.items()},
        layouts={name: each.spec for name, each in registry.layouts.items()},
    )
    store = StateStore(
        plan.states, plan.kv, num_pages=plan.num_pages, max_sequences=config.max_concurrency,
        max_context=max_context, max_verify_rows=plan.max_verify_rows, device="meta",
    )
    binder = _ChoosingBinder(
        plan.kernels, device=hardware.device, capability=hardware.capability,
        overrides=config.kernels,
    )
    plan.model_pack.build(plan.model_config, Build(
        weights, binder, store, getattr(torch, hardware.compute_dtype), torch.device("meta"),
        plan.max_tokens, config.max_concurrency * plan.max_verify_rows, max_context,
    ))
    return binder.choices


class _ChoosingBinder(Binder):
    """Chooses kernels and builds none, so that no weight is needed."""

    def bind(self, request: KernelRequest, **constants: Any) -> Callable[..., Any]:
        """Anything: a model that never runs calls no kernel."""
        self.choose(request)
        return print


def _choice_rows(choice: KernelChoice) -> Iterator[Row]:
    weights = (f"{each.format.name} {list(each.shape)}" for each in choice.request.weights)
    yield choice.request.op, choice.spec.name, " ".join(weights) or choice.request.dtype
    yield from (("", f"not {name}", reason) for name, reason in choice.rejected)
