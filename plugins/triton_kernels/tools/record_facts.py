"""Compile every kernel of the published models for a card that is not here, into ``facts.json``.

``python record_facts.py CAPABILITY`` replaces that capability's part of the table with what steps
of these models launch, ``python record_facts.py CAPABILITY MODEL ...`` adds to it: decode of one
sequence and of eight with drafts, a chunk of a prompt, and the same of the predictor. Some minutes
a card; Triton keeps what it has compiled.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from attrs import asdict, evolve, frozen

import ninfer_triton_kernels
from ninfer_core.api import KernelRequest
from ninfer_core.artifact.store import load_weights
from ninfer_core.cli.models import artifact_path, find_card, outline
from ninfer_core.config import EnginePlan, LaunchConfig, resolve
from ninfer_core.engine.build import build_model
from ninfer_core.ops.binder import Binder
from ninfer_core.plugin_host import PluginReport, PluginSelection, load_plugins
from ninfer_core.state.step import StepBatch
from ninfer_core.state.store import StateStore
from ninfer_triton_kernels.compiling import compiling_for, facts_of
from ninfer_triton_kernels.facts import key_of

TABLE = Path(ninfer_triton_kernels.__file__).with_name("facts.json")
PROFILES = {90: "hopper", 120: "rtx5090", 121: "dgx_spark"}
MODELS = ("qwen3.6-27b", "qwen3.6-27b-nvfp4", "qwen3.8-27b", "qwen3.8-27b-nvfp4",
          "qwen3.6-35b-a3b", "qwen3.8-flash-next-nvfp4", "glm-5.3-flash-nvfp4", "smollm2")
STEPS = ((1, 1), (8, 4), (1, 1024))
"""Rows and tokens of each."""
CONTEXT = 131_072


@frozen
class _Noted:
    """A bound op that notes what its calls compile."""

    call: Any
    compiled: dict[str, Any]
    launched: dict[str, Any]

    def __call__(self, *arguments: Any) -> Any:
        self.compiled.clear()
        result = self.call(*arguments)
        self.launched.update(self.compiled)
        return result


class NotingBinder(Binder):
    """Notes what each op launches, by the key of its request."""

    def __init__(self, *arguments: Any, compiled: dict[str, Any], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._compiled = compiled
        self.launched: dict[str, dict[str, Any]] = {}

    def bind(self, request: KernelRequest, **constants: Any) -> Callable[..., Any]:
        mine = self.launched.setdefault(key_of(request), {})
        return _Noted(super().bind(request, **constants), self._compiled, mine)


def plan_of(name: str, profile: str, report: PluginReport) -> EnginePlan:
    card = find_card(name, report.registry)
    config = LaunchConfig(model=name, profile=profile, max_context=CONTEXT if card else 2048,
                          max_concurrency=8, prefill_chunk=1024)
    if card:
        artifact = outline(card, report.registry)
        has_head = artifact.components["text"].proposal is not None
        config = evolve(config, spec="mtp", draft_tokens=3, lm_head_draft=has_head)
        return resolve(config, report, absent=True, artifact=artifact)
    path = artifact_path(name, report.registry, lambda *step: None)
    return resolve(evolve(config, model=str(path)), report, absent=True)


def compile_model(plan: EnginePlan, compiled: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Kernels by request, of a model without memory."""
    registry, config = plan.registry, plan.config
    weights = load_weights(
        plan.artifact, device="meta", select=[spec.name for spec in plan.parameters],
        formats={name: each.spec for name, each in registry.formats.items()},
        layouts={name: each.spec for name, each in registry.layouts.items()}, relay=plan.relay)
    store = StateStore(
        plan.states, plan.kv, num_pages=16, max_sequences=8, max_context=config.max_context or 1,
        max_verify_rows=plan.max_verify_rows, device="meta")
    binder = NotingBinder(
        plan.kernels, plan.registry.contracts, compiled=compiled, device="cuda",
        capability=plan.hardware.capability)
    nowhere: Any = SimpleNamespace(device="meta", compute_dtype=plan.hardware.compute_dtype)
    model: Any = build_model(
        plan.model_pack, plan.model_config, weights=weights, binder=binder, store=store,
        profile=nowhere, max_tokens=plan.max_tokens, max_logits=plan.max_logits,
        max_context=config.max_context or 1)
    for rows, width in STEPS:
        batch = StepBatch.allocate(
            max_tokens=rows * width, max_rows=rows, max_pages=-(-(config.max_context or 1) // 64),
            max_logits=8, device="meta")
        batch.num_rows, batch.num_tokens, batch.num_logits = rows, rows * width, min(rows, 8)
        model.forward(batch)
        if plan.speculator:
            model.predictor.forward(batch, model.hidden(rows * width))
    return binder.launched


def main(capability: int, names: list[str]) -> None:
    found: dict[str, list[dict[str, Any]]] = {}
    report = load_plugins(PluginSelection())
    with compiling_for(capability) as compiled, torch.inference_mode():
        for name in names or MODELS:
            launched = compile_model(plan_of(name, PROFILES[capability], report), compiled)
            for key, kernels in launched.items():
                rows = [facts_of(kernel) for kernel in kernels.values()]
                found[key] = [{**asdict(row), "programs": row.programs(capability)}
                              for row in rows]
            print(name, len(launched), "requests", len(found), "so far", file=sys.stderr)
    table = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    known = table.get(str(capability), {}) if names else {}
    table[str(capability)] = dict(sorted((known | found).items()))
    lines = [f"{json.dumps(capability)}: {{\n" + ",\n".join(
        f" {json.dumps(key)}: {json.dumps(rows)}" for key, rows in keys.items()) + "\n}"
        for capability, keys in sorted(table.items())]
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
