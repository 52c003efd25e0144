"""Whole tiny models on these kernels, beside the references: both in bf16, which both must keep
as close to fp32."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from attrs import evolve

from ninfer_conformance.subject import find_subject
from ninfer_core.artifact.container import open_artifact
from ninfer_core.artifact.relay import relays
from ninfer_core.artifact.store import load_weights
from ninfer_core.engine.build import build_model
from ninfer_core.ops.binder import Binder
from ninfer_core.plugin_host import PluginSelection, load_plugins
from ninfer_core.state.batch import BatchBuilder, Row
from ninfer_core.state.store import StateStore
from ninfer_fixtures.tiny import TinyModel

PACKS = ("smollm2", "qwen_dense", "qwen_moe", "flash_next", "glm")
MODULES = tuple(f"ninfer_{name}.plugin" for name in
                ("triton_kernels", "ops", *(f"pack_{pack}" for pack in PACKS)))
FRAGMENTS = PACKS if torch.cuda.is_available() else ("qwen_moe",)
"""Packs with weights in 8 bits, which are laid in fragments; these are slow to interpret, and a
model with experts has all kinds of products. The others are in bf16."""
STEPS = (
    # tokens, whether certain, how many of an uncertain step's are accepted
    (4, True, 0), (2, False, 1), (2, False, 0), (1, True, 0),
)


@pytest.fixture(scope="module")
def report():
    return load_plugins(PluginSelection(modules=MODULES, names=()))


def kernels_for(registry, device, *, triton):
    """The references, and ours as if they were for this device."""
    found = {}
    for name, each in registry.kernels.items():
        if name.startswith("reference."):
            found[name] = each
        elif triton and name.startswith("triton."):
            found[name] = evolve(each, spec=evolve(each.spec, devices=(device,), capability=None))
    return found


@pytest.fixture(scope="module")
def run(report, tmp_path_factory):
    """``(pack, triton, dtype) -> (logits of all steps, names of kernels that were bound)``"""
    device = "cuda" if torch.cuda.is_available() else "cpu"

    def build(name, triton, dtype):
        subject, registry = find_subject(report, name), report.registry
        pack, config = subject.implementation, subject.config
        tiny = TinyModel(subject.model, pack.parameters(config), registry)
        path = tmp_path_factory.mktemp(name) / "m.ninfer"
        format = "q8_g32_fp16" if name in FRAGMENTS else "bf16"
        tiny.write(path, tiny.random_values(format), format=format)
        artifact = open_artifact(path)
        layouts = {name: each.spec for name, each in registry.layouts.items()}
        wanted = {"q8_g32_fp16": "fragments_m16_v1"} if triton else {}
        relay = relays(artifact, pack.parameters(config), wanted, layouts)
        assert bool(relay) == (triton and format in wanted)
        weights = load_weights(
            artifact, device=device, layouts=layouts, relay=relay,
            formats={name: each.spec for name, each in registry.formats.items()})
        store = StateStore(
            pack.states(config), registry.kv_codecs["bf16"].spec, num_pages=4, max_sequences=2,
            max_context=128, max_verify_rows=3, device=device)
        binder = Binder(
            kernels_for(registry, device, triton=triton), registry.contracts, device=device)
        sizes = {"max_tokens": 64, "max_logits": 64}
        model = build_model(
            pack, config, weights=weights, store=store, binder=binder, max_context=128,
            profile=SimpleNamespace(device=device, compute_dtype=dtype), **sizes)
        batches = BatchBuilder(max_rows=2, max_pages=2, device=device, **sizes)
        return model, store, batches, {choice.spec.name for choice in binder.choices}

    @torch.inference_mode()
    def run(name, triton, dtype="bfloat16"):
        model, store, batches, names = build(name, triton, dtype)
        state, frontier, logits = store.open(), 0, []
        for step, (count, certain, accepted) in enumerate(STEPS):
            store.grow(state, frontier + count)
            ids = [(7 * (frontier + i) + step) % 250 for i in range(count)]
            row = Row(1, state, frontier, ids, count, certain)
            logits.append(model.forward(batches.fill([row])).clone())
            if step == 1:
                model.forward(batches.pad(2, 1))  # as graphs are captured: it changes nothing
                model.forward(batches.pad(1, 20, certain=True))
            state.replay = 0 if certain else accepted
            frontier += count if certain else accepted
        return torch.cat(logits).double(), names

    return run


@pytest.mark.parametrize("pack", PACKS)
def test_tiny_models(pack, run):
    actual, names = run(pack, True)
    expected, exact = (run(pack, False, dtype)[0] for dtype in ("bfloat16", "float32"))
    assert not any(name.startswith("reference.") for name in names), names
    assert actual.isfinite().all()
    errors = [float((each - exact).norm() / exact.norm()) for each in (actual, expected)]
    assert errors[0] < 2 * errors[1] + 0.01, errors
