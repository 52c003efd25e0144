"""From launch options and plugins to a plan in which every choice has its reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from attrs import asdict, evolve, frozen

from ninfer_core import api
from ninfer_core.artifact.container import Artifact
from ninfer_core.artifact.relay import relays
from ninfer_core.config.capacity import Pool, size_pool
from ninfer_core.config.coverage import require_weights
from ninfer_core.config.launch import LaunchConfig
from ninfer_core.config.ledger import Ledger, draw_up
from ninfer_core.config.model import ModelPlan, blame, resolve_model
from ninfer_core.plugin_host import (
    Choice,
    PluginReport,
    Registered,
    Registry,
    choose_only,
    choose_profile,
    kernels_of,
    require,
)
from ninfer_core.state.layout import StateLayout

DEFAULT_CONTEXT, DEFAULT_DRAFTS = 2048, 3


@frozen(eq=False, kw_only=True)
class EnginePlan(ModelPlan):
    """All that is decided before weights are read.

    :ivar config: the launch options with every choice filled in.
    :ivar hardware: implementation of the chosen profile.
    :ivar kernels: candidates for binding, those of other profiles left out.
    :ivar constraints: engine of grammars, if there is one.
    :ivar state_tier: where states outlive the process, if they are to.
    :ivar max_verify_rows: tokens of a sequence in one decode step.
    :ivar max_tokens: most tokens of one step. :ivar max_logits: most rows of logits of one.
    :ivar num_pages: usable pages of the pool.
    :ivar reasons: ``(option, value, why)`` of every choice.
    """

    config: LaunchConfig
    registry: Registry
    profile: Choice[api.HardwareProfileSpec]
    hardware: api.HardwareProfile
    kernels: Mapping[str, Registered[api.KernelSpec]]
    kv: api.KVCodecSpec
    constraints: Registered[api.ConstraintSpec] | None
    state_tier: Registered[api.StateTierSpec] | None
    max_verify_rows: int
    max_tokens: int
    max_logits: int
    num_pages: int
    ledger: Ledger
    reasons: tuple[tuple[str, str, str], ...]

    @property
    def relay(self) -> dict[str, str]:
        """Objects, by id, to the layouts in which they are laid out anew when they are loaded."""
        layouts = {name: each.spec for name, each in self.registry.layouts.items()}
        return relays(self.artifact, self.parameters, self.hardware.layouts, layouts)


def resolve(
    config: LaunchConfig, report: PluginReport, *, absent: bool = False,
    artifact: Artifact | None = None, max_logits: int = 1,
) -> EnginePlan:
    """Open the artifact and choose everything; no weight is read and nothing allocated.

    :param config: its ``model`` must be a path, unless ``artifact`` is given.
    :param absent: plan from the figures of the profile's machine, which may be another one;
        whether the plan fits is then said by its ledger only.
    :param max_logits: rows of logits that a step must have room for, besides those of decoding.
    :raises NInferError: of the class that fits what cannot be had.
    :raises CapacityError: if the ledger exceeds the budget of this machine.
    """
    model = resolve_model(config, report, artifact)
    require_weights(model.artifact, model.parameters)
    profile = choose_profile(report, config.profile)
    with blame(profile.provenance):
        hardware: api.HardwareProfile = profile.spec.profile.load()()
        budget = _budget(hardware, absent)
    full = _fill_in(config, model, profile.spec.name, hardware)
    codec = require(report, "kv_codecs", str(full.kv_dtype), "--kv-dtype")
    kv: api.KVCodecSpec = codec.spec
    with blame(codec.provenance):
        layout = StateLayout(model.states, kv, max_verify_rows=full.max_verify_rows)
    most = max(max_logits, full.max_concurrency * full.max_verify_rows)
    draw = partial(draw_up, full, model, hardware, layout, most)
    pool = size_pool(full, layout, budget[0], sum(line.nbytes for line in draw(Pool(0))))
    full = evolve(full, context_capacity=pool.num_pages * layout.page_bytes)
    ledger = Ledger(draw(pool), *budget)
    if not absent:
        ledger.check()
    return EnginePlan(
        **asdict(model, recurse=False), config=full, registry=report.registry, profile=profile,
        hardware=hardware, kernels=kernels_of(report.registry, profile.provenance), kv=kv,
        constraints=choose_only(report, "constraints", "--constraints", config.constraints),
        state_tier=_state_tier(config, report) if config.disk_cache else None,
        max_verify_rows=full.max_verify_rows, max_tokens=full.step_tokens, max_logits=most,
        num_pages=pool.num_pages, ledger=ledger,
        reasons=tuple(_reasons(config, full, model.pack, profile, pool)),
    )


def _budget(hardware: api.HardwareProfile, absent: bool) -> tuple[int, str]:
    if absent:
        figures = hardware.figures()
        return figures.memory_bytes, f"memory of {figures.name}, {figures.source}"
    return hardware.memory_budget(), f"free on this machine, says profile {hardware.name}"


def _fill_in(
    config: LaunchConfig, model: ModelPlan, profile: str, hardware: api.HardwareProfile
) -> LaunchConfig:
    longest = model.operations["max_context"]
    context = config.max_context or min(DEFAULT_CONTEXT, longest)
    if context > longest:
        why = f"{context} > {longest}, the model's own"
        what = f"a context of {context} tokens is too long for the model"
        raise api.ConfigError(what, why=why, fix=f"ask for {longest} or fewer")
    return evolve(
        config, pack=model.pack.spec.name, profile=profile, max_context=context,
        kv_dtype=config.kv_dtype or hardware.default_kv_dtype,
        draft_tokens=_draft_tokens(config, model.speculator) if model.speculator else None,
    )


def _draft_tokens(config: LaunchConfig, speculator: api.SpeculatorSpec) -> int:
    most = speculator.max_drafts
    drafts = config.draft_tokens or min(DEFAULT_DRAFTS, most)
    if drafts > most:
        why = f"{drafts} are asked for, and --spec {speculator.name} takes 1 to {most}"
        raise api.ConfigError("too many --draft-tokens", why=why)
    return drafts


def _state_tier(
    config: LaunchConfig, report: PluginReport
) -> Registered[api.StateTierSpec]:
    tier = choose_only(report, "state_tiers", "--state-tier", config.state_tier)
    if tier is None:
        raise api.UnsupportedError(
            "--disk-cache cannot be had", why="no plugin that keeps states is active",
            fix="install the distribution ninfer-disk-tier, or leave the option out",
        )
    return tier


def _reasons(
    given: LaunchConfig, full: LaunchConfig, pack: Choice[Any], profile: Choice[Any], pool: Pool
) -> Iterator[tuple[str, str, str]]:
    yield "pack", pack.spec.name, pack.reason
    yield "profile", profile.spec.name, profile.reason
    defaults = {
        "max_context": f"default: {DEFAULT_CONTEXT}, or the model's own",
        "kv_dtype": f"default of profile {full.profile}",
    }
    yield "context_capacity", str(full.context_capacity), pool.reason
    if full.spec:
        yield "spec", full.spec, "asked for"
        defaults["draft_tokens"] = "default"
    for option, default in defaults.items():
        why = default if getattr(given, option) is None else "asked for"
        yield option, str(getattr(full, option)), why
