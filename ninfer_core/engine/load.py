"""From a plan to an engine that is ready to serve."""

from __future__ import annotations

from attrs import frozen

from ninfer_core.api import Frontend, Model, PluginError, Progress, Speculator
from ninfer_core.artifact.store import LoadReport, WeightStore, load_weights
from ninfer_core.config.model import blame
from ninfer_core.config.resolve import EnginePlan
from ninfer_core.engine.build import build_model
from ninfer_core.engine.engine import Engine
from ninfer_core.engine.scheduler import Limits
from ninfer_core.ops.binder import Binder, KernelChoice
from ninfer_core.state.store import StateStore


@frozen(eq=False)
class LoadedEngine:
    """An engine and what it is made of.

    :ivar report: what loading the weights took. :ivar kernels: what was bound, and why.
    """

    engine: Engine
    frontend: Frontend
    model: Model
    report: LoadReport
    kernels: tuple[KernelChoice, ...]


def load_engine(plan: EnginePlan, progress: Progress | None = None) -> LoadedEngine:
    """Load weights, allocate state, bind kernels.

    :raises NInferError: if the machine, the artifact or a plugin is not what the plan took it for.
    """
    config, device = plan.config, plan.hardware.device
    with blame(plan.profile.provenance):
        plan.hardware.prepare(config.threads)
    assert config.max_context is not None  # a plan has all choices filled in
    limits = Limits(
        config.max_context, config.max_concurrency, prefill_chunk=config.prefill_chunk
    )
    weights = _weights(plan, progress)
    store = StateStore(
        plan.states, plan.kv, num_pages=plan.num_pages, max_sequences=limits.max_sequences,
        max_context=limits.max_context, max_verify_rows=plan.max_verify_rows, device=device,
    )
    binder = Binder(
        plan.kernels, device=device, capability=plan.hardware.capability, overrides=config.kernels
    )
    with blame(plan.pack.provenance):
        model = build_model(
            plan.model_pack, plan.model_config, weights=weights, binder=binder, store=store,
            profile=plan.hardware, max_tokens=plan.max_tokens, max_context=limits.max_context,
            max_logits=limits.max_sequences * plan.max_verify_rows,
        )
        frontend = plan.model_pack.frontend(plan.model_config, plan.artifact.resources("text"))
    speculator = _speculator(plan)
    engine = Engine(
        model, frontend, store, limits, speculator=speculator, device=device,
        vocab_size=plan.operations["vocab_size"],
    )
    return LoadedEngine(engine, frontend, model, weights.report, tuple(binder.choices))


def _weights(plan: EnginePlan, progress: Progress | None) -> WeightStore:
    registry = plan.registry
    return load_weights(
        plan.artifact, device=plan.hardware.device, progress=progress,
        formats={name: each.spec for name, each in registry.formats.items()},
        layouts={name: each.spec for name, each in registry.layouts.items()},
        budget_bytes=plan.ledger.budget_bytes, select=[p.name for p in plan.parameters],
    )


def _speculator(plan: EnginePlan) -> Speculator | None:
    if plan.speculator is None:
        return None
    provenance = plan.registry.speculators[plan.speculator.name].provenance
    with blame(provenance):
        made: Speculator = plan.speculator.speculator.load()(draft_tokens=plan.config.draft_tokens)
        most = made.max_drafts
    if most >= plan.max_verify_rows:
        why = f"up to {most}, and a step has room for {plan.max_verify_rows - 1}"
        raise PluginError("a speculator drafts too much", where=str(provenance), why=why)
    return made
