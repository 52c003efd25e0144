"""Formats and layouts of the core by name, and small sets to read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ninfer_artifact_writer.writer import ArtifactWriter
from ninfer_core.artifact.catalogue import Part
from ninfer_core.artifact.container import Artifact, open_artifact
from ninfer_core.artifact.store import WeightStore, load_weights
from ninfer_core.plugin_host.builtin import ninfer_weight_formats, ninfer_weight_layouts

FORMATS = {spec.name: spec for spec in ninfer_weight_formats()}
LAYOUTS = {spec.name: spec for spec in ninfer_weight_layouts()}
COMPONENTS = {"text": {"config": {"architectures": ["ToyForCausalLM"]}}}


@pytest.fixture(scope="session")
def formats() -> dict[str, Any]:
    return FORMATS


@pytest.fixture(scope="session")
def layouts() -> dict[str, Any]:
    return LAYOUTS


@pytest.fixture(scope="session")
def codec() -> Callable[[str], Any]:
    return lambda name: FORMATS[name].codec.load()()


@pytest.fixture(scope="session")
def layout() -> Callable[[str], Any]:
    return lambda name: LAYOUTS[name].layout.load()()


@pytest.fixture(scope="session")
def image(codec, layout) -> Callable[..., Tensor]:
    """The image of quantised values."""

    def make(values: Tensor, format_name: str = "fp32", layout_name: str = "") -> Tensor:
        name = layout_name or next(n for n, s in LAYOUTS.items() if format_name in s.formats)
        return layout(name).pack(format_name, codec(format_name).quantize(values))

    return make


@pytest.fixture
def write(image) -> Callable[..., Path]:
    """Write a set of tensors ``name -> values`` or ``name -> (values, format)``."""

    def make(path: Path, tensors: dict[str, Any], **options: Any) -> Path:
        bind = options.pop("bind", {})
        resources = options.pop("resources", {})
        options.setdefault("components", COMPONENTS)
        with ArtifactWriter(path, **options) as writer:
            for name, given in tensors.items():
                values, format_name = given if isinstance(given, tuple) else (given, "fp32")
                layout_name = next(n for n, s in LAYOUTS.items() if format_name in s.formats)
                data = image(values, format_name, layout_name)
                writer.add_tensor(name, values.shape, format_name, layout_name, data)
                writer.bind(name, name)
            for role, content in resources.items():
                writer.add_resource(role, content)
            for name, parts in bind.items():
                writer.bind(name, [Part(*part) for part in parts])
        return path

    return make


@pytest.fixture
def opened(tmp_path, write) -> Callable[..., Artifact]:
    """Write a set and open it."""
    return lambda tensors, **options: open_artifact(
        write(tmp_path / "m.ninfer", tensors, **options)
    )


@pytest.fixture
def loaded(opened) -> Callable[..., WeightStore]:
    """Write a set and load all of it."""

    def make(tensors: dict[str, Any], **options: Any) -> WeightStore:
        return load_weights(opened(tensors, **options), formats=FORMATS, layouts=LAYOUTS)

    return make


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
