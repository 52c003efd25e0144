"""A tiny model with experts, slots and a predictor, whose every size can be checked by hand."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

import pytest
import torch

from ninfer_artifact_writer.writer import ArtifactWriter
from ninfer_core import api
from ninfer_core.artifact.catalogue import Part
from ninfer_core.artifact.container import Artifact, open_artifact
from ninfer_core.config import EnginePlan, LaunchConfig, resolve
from ninfer_core.plugin_host import PluginRecord, PluginReport, PluginSelection, load_plugins

VOCAB, HIDDEN, INNER, EXPERTS, CHOSEN = 256, 64, 32, 4, 2
LAYER, EXPERT = "text/layers/0", "text/layers/1/moe/experts"
POLICY = "AllowA4"
"""Of the attention's query alone."""


class MiniPack:
    """One layer of attention, one of experts and slots; the draft head has half of the tokens."""

    def configure(self, model):
        return frozenset(model.components) & {"mtp", "proposal"}

    def parameters(self, config):
        spec, square = api.ParameterSpec, (HIDDEN, HIDDEN)
        experts = [
            spec(f"{EXPERT}/{e}/{name}", (INNER, HIDDEN) if name != "down" else (HIDDEN, INNER))
            for e in range(EXPERTS) for name in ("gate", "up", "down")
        ]
        text = [
            spec("text/token_embedding", (VOCAB, HIDDEN), "table"),
            spec(f"{LAYER}/input_norm", (HIDDEN,), "direct"),
            spec(f"{LAYER}/attention/query", square), spec(f"{LAYER}/attention/output", square),
            spec("text/layers/1/moe/router", (EXPERTS, HIDDEN)), *experts,
            spec("text/output_head", (VOCAB, HIDDEN)),
        ]
        mtp = [spec("mtp/input_projection", (HIDDEN, 2 * HIDDEN)),
               spec("mtp/layers/0/attention/query", square)]
        proposal = [spec("proposal/head", (VOCAB // 2, HIDDEN))]
        return (*text, *(mtp if "mtp" in config else ()),
                *(proposal if "proposal" in config else ()))

    def states(self, config):
        planes = (api.StatePlane("key", (1, 16)), api.StatePlane("value", (1, 16)))
        own = [api.PagedStateSpec("mtp_kv", 1, planes)] if "mtp" in config else []
        slots = api.SlotStateSpec("memory", 1, (32,), (16,))
        return (api.PagedStateSpec("kv", 2, planes), *own, slots)

    def operations(self, config):
        return {
            "vocab_size": VOCAB, "max_context": 4096, "attention_flops_per_token": 128,
            "launches_per_step": 20, "launches_per_draft": 5, "num_experts": EXPERTS,
            "experts_per_token": CHOSEN,
        }


class MiniProfile:
    name, device, capability = "box", "cuda", 120
    compute_dtype, default_kv_dtype, layouts = "bfloat16", "bf16", {}

    def scratch_bytes(self, work):
        return 0

    def figures(self):
        flops = {"bfloat16": 1e12, "float8_e4m3fn": 2e12}
        return api.MachineFigures("Box 9", 4_000_000, 1e9, flops, 1e-6, "guessed")


@pytest.fixture
def mini_report(monkeypatch) -> PluginReport:
    """The core, the mini pack, its profile, and speculators with and without a component."""
    module = ModuleType("mini_parts")
    module.Pack, module.Profile, module.Speculator = MiniPack, MiniProfile, object
    module.claim = lambda model: api.Claim(50, "mini")
    module.detect = lambda: api.Detection(50, "a box")
    monkeypatch.setitem(sys.modules, "mini_parts", module)
    core = load_plugins(PluginSelection(names=())).records[0]
    mini = PluginRecord(
        "mini", "ninfer.plugins", "mini-dist", "1.0", "mini.plugin", "active",
        specs={
            "packs": (api.ModelPackSpec("mini", "mini_parts:Pack", "mini_parts:claim"),),
            "profiles": (
                api.HardwareProfileSpec("box", "mini_parts:detect", "mini_parts:Profile"),),
            "speculators": (
                api.SpeculatorSpec("mini.mtp", "mini_parts:Speculator", "mtp"),
                api.SpeculatorSpec("mini.lookup", "mini_parts:Speculator")),
            "state_tiers": (api.StateTierSpec("shelf", "mini_parts:Pack"),),
        },
    )
    return PluginReport((core, mini))


@pytest.fixture(scope="session")
def mini_artifact(tmp_path_factory) -> Artifact:
    """All parameters in bf16; gates and ups of all experts are one object, downs another."""
    path = tmp_path_factory.mktemp("mini") / "mini.ninfer"
    pack = MiniPack()
    text = {"config": {"architectures": ["Mini"]}, "proposal": {"domain": "full", "rows": 128}}
    components = {"text": text, "mtp": {"config": {}, "target": "text"}}
    with ArtifactWriter(path, components=components) as writer:
        objects: dict[str, list[api.ParameterSpec]] = {}
        for spec in pack.parameters({"mtp", "proposal"}):
            objects.setdefault(_parent(spec.name), []).append(spec)
        for name, specs in objects.items():
            rows, width = sum(spec.shape[0] for spec in specs), specs[0].shape[1:]
            shape = (rows, *width)
            image = torch.zeros(shape, dtype=torch.bfloat16).view(torch.uint8).flatten()
            writer.add_tensor(name, shape, "bf16", "contiguous_le_v1", image)
            end = 0
            for spec in specs:
                begin, end = end, end + torch.Size(spec.shape).numel()
                writer.bind(spec.name, [Part(name, (begin, end))])
                policy = POLICY if spec.name == f"{LAYER}/attention/query" else None
                writer.use(spec.name, "input", policy)
    return open_artifact(path)


def _parent(name: str) -> str:
    if name.startswith(EXPERT):
        return f"{EXPERT}/{'down' if name.endswith('down') else 'gate_up'}"
    return name


@pytest.fixture
def mini(mini_report, mini_artifact) -> Callable[..., EnginePlan]:
    """``(**launch options) -> plan`` of the mini model for a box that is not here."""

    def plan(**options):
        given = {"max_context": 1024, "prefill_chunk": 64, "prefix_cache": False} | options
        config = LaunchConfig(**given)
        return resolve(config, mini_report, absent=True, artifact=mini_artifact)

    return plan
