"""A converted model that reads token ids and gives logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from attrs import define, field, frozen
from torch import Tensor

from ninfer_convert.conversion import convert
from ninfer_core.artifact.container import open_artifact
from ninfer_core.artifact.store import WeightStore, load_weights
from ninfer_core.engine.batch import BatchBuilder, Row
from ninfer_core.engine.build import build_model
from ninfer_core.ops.binder import Binder
from ninfer_core.plugin_host import PluginReport, PluginSelection, load_plugins
from ninfer_core.state.store import SequenceState, StateStore
from ninfer_pack_smollm2.pack import LlamaPack

MAX_CONTEXT = 256


@pytest.fixture(scope="session")
def plugins() -> PluginReport:
    names = ("ninfer_convert", "ninfer_pack_smollm2", "ninfer_profile_cpu")
    modules = tuple(f"{name}.plugin" for name in names)
    return load_plugins(PluginSelection(modules=modules, names=()))


@define(eq=False)
class Reading:
    """A sequence as the batch builder wants it."""

    state: SequenceState
    frontier: int = 0
    id: int = field(factory=count().__next__)


@frozen(eq=False)
class Reader:
    """A built model and its state."""

    model: object
    store: StateStore
    batches: BatchBuilder

    @torch.inference_mode()
    def logits(self, tokens: Sequence[int]) -> Tensor:
        """fp32 ``[len(tokens), V]``, read in one step."""
        reading = Reading(self.store.open())
        self.store.grow(reading.state, len(tokens))
        batch = self.batches.fill([Row(reading, list(tokens), len(tokens))])
        logits: Tensor = self.model.forward(batch).clone()
        self.store.close(reading.state)
        return logits


@pytest.fixture(scope="session")
def load(plugins: PluginReport) -> Callable[[Path], WeightStore]:
    """Map the weights of an artifact."""
    formats = {name: each.spec for name, each in plugins.registry.formats.items()}
    layouts = {name: each.spec for name, each in plugins.registry.layouts.items()}
    return lambda path: load_weights(open_artifact(path), formats=formats, layouts=layouts)


@pytest.fixture(scope="session")
def read(plugins: PluginReport, load: Callable[[Path], WeightStore]) -> Callable[[Path], Reader]:
    """Build the model in an artifact, in fp32 on the CPU: on the core's own kernels, or on those
    of the CPU profile too."""

    def build(path: Path, *, profile: bool = False) -> Reader:
        registry, pack, weights = plugins.registry, LlamaPack(), load(path)
        config = pack.configure(weights.artifact.description())
        store = StateStore(
            pack.states(config), registry.kv_codecs["fp32"].spec, num_pages=8, max_sequences=2,
            max_context=MAX_CONTEXT, max_verify_rows=1,
        )
        sizes = {"max_tokens": MAX_CONTEXT, "max_logits": MAX_CONTEXT}
        kernels = {
            name: each for name, each in registry.kernels.items()
            if profile or name.startswith("reference.")
        }
        model = build_model(
            pack, config, weights=weights, store=store, binder=Binder(kernels, device="cpu"),
            profile=SimpleNamespace(device="cpu", compute_dtype="float32"),
            max_context=MAX_CONTEXT, **sizes,
        )
        return Reader(model, store, BatchBuilder(max_rows=1, max_pages=MAX_CONTEXT // 64, **sizes))

    return build


@pytest.fixture
def convert_to(plugins: PluginReport, tmp_path: Path) -> Callable[..., Path]:
    """Convert a checkpoint, by the pack's recipe or another; gives the artifact."""

    def run(source: Path, recipe=None) -> Path:
        path = tmp_path / "model.ninfer"
        convert(source, path, pack=LlamaPack(), registry=plugins.registry, recipe=recipe)
        return path

    return run
