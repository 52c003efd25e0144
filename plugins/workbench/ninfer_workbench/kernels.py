"""``ninfer kernels``: which there are, and which a model would get, without loading it."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

from ninfer_core.api import KernelRequest
from ninfer_core.artifact.store import load_weights
from ninfer_core.cli.console import Console, table
from ninfer_core.cli.launch import prepare_catalogue
from ninfer_core.cli.plugins import find_plugins
from ninfer_core.config import EnginePlan, resolve
from ninfer_core.config.model import blame
from ninfer_core.engine.build import build_model
from ninfer_core.engine.load import bind_judge
from ninfer_core.ops.binder import Binder, KernelChoice
from ninfer_core.state.store import StateStore


def run(arguments: Namespace) -> int:
    """All kernels there are, or with a model those it gets."""
    if arguments.model is not None:
        with Console(arguments.log_level) as console:
            config, report, artifact = prepare_catalogue(arguments, console.progress)
            plan = resolve(config, report, absent=True, artifact=artifact)
        print_kernels(plan)
        return 0
    head = ("OP", "KERNEL", "PRIORITY", "DEVICES", "INVARIANT", "DISTRIBUTION", "SOURCE")
    print(table(head, *sorted(
        (k.spec.op, k.spec.name, k.spec.priority, "/".join(k.spec.devices),
         "yes" if k.spec.batch_invariant else "no", k.provenance.distribution, k.spec.source)
        for k in find_plugins(arguments).registry.kernels.values()
    )))
    return 0


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
        relay=plan.relay,
        formats={name: each.spec for name, each in registry.formats.items()},
        layouts={name: each.spec for name, each in registry.layouts.items()},
    )
    store = StateStore(
        plan.states, plan.kv, num_pages=plan.num_pages, max_sequences=config.max_concurrency,
        max_context=max_context, max_verify_rows=plan.max_verify_rows, device="meta",
    )
    binder = _ChoosingBinder(
        plan.kernels, plan.registry.contracts, device=hardware.device,
        capability=hardware.capability, overrides=config.kernels,
    )
    nowhere: Any = SimpleNamespace(device="meta", compute_dtype=hardware.compute_dtype)
    with blame(plan.pack.provenance):
        build_model(
            plan.model_pack, plan.model_config, weights=weights, binder=binder, store=store,
            profile=nowhere, max_tokens=plan.max_tokens, max_context=max_context,
            max_logits=plan.max_logits,
        )
    bind_judge(binder, plan.operations["vocab_size"])
    return binder.choices


def fact_rows(choices: Iterable[KernelChoice]) -> Iterator[tuple[str, str, str]]:
    """What kernels know of their code for the requests they were chosen for."""
    for choice in choices:
        if choice.spec.facts and (line := choice.spec.facts.load()(choice.request)):
            yield choice.request.op, _weights_of(choice), line


class _ChoosingBinder(Binder):
    """Chooses kernels and builds none, so that no weight is needed."""

    def bind(self, request: KernelRequest, **constants: Any) -> Callable[..., Any]:
        """Anything: a model that never runs calls no kernel."""
        self.check(request, constants)
        self.choose(request)
        return print


def _choice_rows(choice: KernelChoice) -> Iterator[tuple[str, str, str]]:
    yield choice.request.op, choice.spec.name, _weights_of(choice) or choice.request.dtype
    yield from (("", f"not {name}", reason) for name, reason in choice.rejected)


def _weights_of(choice: KernelChoice) -> str:
    return " ".join(f"{w.format.name} {list(w.shape)}" for w in choice.request.weights)
