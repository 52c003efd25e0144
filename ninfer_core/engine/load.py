"""From a plan to a model that runs steps, and to an engine that is ready to serve."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import cast

from attrs import frozen

from ninfer_core.api import (
    ConstraintCompiler,
    ConstraintContext,
    Frontend,
    KernelRequest,
    Model,
    PluginError,
    Progress,
    Speculator,
    SpeculatorContext,
    StateTier,
    StateTierContext,
)
from ninfer_core.artifact.store import LoadReport, WeightStore, load_weights
from ninfer_core.config.model import blame
from ninfer_core.config.resolve import EnginePlan
from ninfer_core.engine.build import build_model
from ninfer_core.engine.engine import Engine
from ninfer_core.engine.scheduler import Limits
from ninfer_core.ops.binder import Binder, KernelChoice
from ninfer_core.sampling.verify import Judge
from ninfer_core.state.prefix_cache import PrefixCache
from ninfer_core.state.store import StateStore

JUDGES = "sampling"
"""The op of judges."""


@frozen(eq=False)
class LoadedModel:
    """A model, the state of its sequences, and what they are made of.

    :ivar vocab_size: ids that model and tokenizer both know.
    :ivar report: what loading the weights took. :ivar kernels: what was bound, and why.
    :ivar judge: draws tokens.
    """

    model: Model
    frontend: Frontend
    store: StateStore
    vocab_size: int
    report: LoadReport
    kernels: tuple[KernelChoice, ...]
    judge: Judge


@frozen(eq=False)
class LoadedEngine:
    """An engine on a loaded model; the fields of that are its own too."""

    engine: Engine
    frontend: Frontend
    model: Model
    report: LoadReport
    kernels: tuple[KernelChoice, ...]


def load_model(plan: EnginePlan, progress: Progress | None = None) -> LoadedModel:
    """Load weights, allocate state, bind kernels.

    :raises NInferError: if the machine, the artifact or a plugin is not what the plan took it for.
    """
    config, device = plan.config, plan.hardware.device
    with blame(plan.profile.provenance):
        plan.hardware.prepare(config.threads)
    assert config.max_context is not None  # a plan has all choices filled in
    weights = _weights(plan, progress)
    store = StateStore(
        plan.states, plan.kv, num_pages=plan.num_pages, max_sequences=config.max_concurrency,
        max_context=config.max_context, max_verify_rows=plan.max_verify_rows, device=device,
    )
    binder = Binder(
        plan.kernels, plan.registry.contracts, device=device,
        capability=plan.hardware.capability, overrides=config.kernels,
    )
    with blame(plan.pack.provenance):
        model = build_model(
            plan.model_pack, plan.model_config, weights=weights, binder=binder, store=store,
            profile=plan.hardware, max_tokens=plan.max_tokens, max_context=config.max_context,
            max_logits=plan.max_logits,
        )
        frontend = plan.model_pack.frontend(plan.model_config, plan.artifact.resources("text"))
    vocab_size = min(frontend.tokenizer.vocab_size, plan.operations["vocab_size"])
    judge = bind_judge(binder, vocab_size)
    return LoadedModel(
        model, frontend, store, vocab_size, weights.report, tuple(binder.choices), judge
    )


def bind_judge(binder: Binder, vocab_size: int) -> Judge:
    """What draws tokens of so many ids: the kernel of the op ``sampling``."""
    request = KernelRequest(
        JUDGES, binder.device, "float32", binder.capability, sizes={"vocab_size": vocab_size}
    )
    return cast(Judge, binder.bind(request))


def load_engine(plan: EnginePlan, progress: Progress | None = None) -> LoadedEngine:
    """An engine for a plan; raises as `load_model`."""
    config, loaded = plan.config, load_model(plan, progress)
    assert config.max_context is not None
    limits = Limits(
        config.max_context, config.max_concurrency, config.max_queue, config.prefill_chunk,
        config.queue_timeout_s, max_logits=plan.max_logits,
    )
    engine = Engine(
        loaded.model, loaded.frontend, loaded.store, limits, vocab_size=loaded.vocab_size,
        device=plan.hardware.device, cache=_cache(plan, loaded.store), judge=loaded.judge,
        speculator=_speculator(plan, limits, loaded), compiler=_compiler(plan, loaded),
    )
    if _wants_graphs(plan, loaded):
        engine.capture(progress)
    return LoadedEngine(
        engine, loaded.frontend, loaded.model, loaded.report, loaded.kernels
    )


def can_capture(kernels: Iterable[KernelChoice]) -> bool:
    """Whether steps of these kernels may be captured; of a judge's work, it says itself what is."""
    return all(each.spec.graph_safe for each in kernels if each.spec.op != JUDGES)


def _wants_graphs(plan: EnginePlan, loaded: LoadedModel) -> bool:
    is_safe = can_capture(loaded.kernels)
    return plan.hardware.device == "cuda" and is_safe and not plan.config.eager


def _weights(plan: EnginePlan, progress: Progress | None) -> WeightStore:
    registry = plan.registry
    return load_weights(
        plan.artifact, device=plan.hardware.device, progress=progress,
        formats={name: each.spec for name, each in registry.formats.items()},
        layouts={name: each.spec for name, each in registry.layouts.items()},
        budget_bytes=plan.ledger.budget_bytes, select=[p.name for p in plan.parameters],
        relay=plan.relay, on_host=[p.name for p in plan.parameters if p.on_host],
    )


def _cache(plan: EnginePlan, store: StateStore) -> PrefixCache | None:
    config = plan.config
    if not config.prefix_cache:
        return None
    num_pages = (config.host_capacity or 0) // store.page_bytes
    host = store.host_memory(num_pages) if num_pages else None
    if plan.state_tier is None:
        return PrefixCache(store, host=host)
    context = StateTierContext(
        location=str(config.disk_cache), max_bytes=config.disk_capacity,
        identity=_identity(plan, store), page_bytes=store.page_bytes,
    )
    with blame(plan.state_tier.provenance):
        tier: StateTier = plan.state_tier.spec.tier.load()(context)
        return PrefixCache(store, host=host, disk=tier)


def _identity(plan: EnginePlan, store: StateStore) -> bytes:
    """What makes states of equal tokens what they are."""
    resources = plan.artifact.resources("text")
    parts = (
        plan.artifact.artifact_id.bytes, str(plan.pack.provenance).encode(),
        str(plan.profile.provenance).encode(), repr(sorted(plan.config.kernels.items())).encode(),
        *(item for name in sorted(resources) for item in (name.encode(), resources[name])),
    )
    return b"".join(sha256(part).digest() for part in parts) + store.geometry.encode()


def _compiler(plan: EnginePlan, loaded: LoadedModel) -> ConstraintCompiler | None:
    if plan.constraints is None:
        return None
    frontend = loaded.frontend
    context = ConstraintContext(
        tokenizer=frontend.tokenizer, vocab_size=loaded.vocab_size,
        call_syntax=frontend.call_syntax,
    )
    with blame(plan.constraints.provenance):
        made: ConstraintCompiler = plan.constraints.spec.compiler.load()(context)
    return made


def _speculator(plan: EnginePlan, limits: Limits, loaded: LoadedModel) -> Speculator | None:
    if plan.speculator is None:
        return None
    context = SpeculatorContext(
        draft_tokens=plan.max_verify_rows - 1, vocab_size=loaded.vocab_size, model=loaded.model,
        max_sequences=limits.max_sequences, max_tokens=plan.max_tokens,
        max_context=limits.max_context, device=plan.hardware.device, judge=loaded.judge,
    )
    provenance = plan.registry.speculators[plan.speculator.name].provenance
    with blame(provenance):
        made: Speculator = plan.speculator.speculator.load()(context)
        most = made.max_drafts
    if most >= plan.max_verify_rows:
        why = f"up to {most}, and a step has room for {plan.max_verify_rows - 1}"
        raise PluginError("a speculator drafts too much", where=str(provenance), why=why)
    return made
