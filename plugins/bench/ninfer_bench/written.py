"""An artifact of real dimensions with random weights, as a file."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from attrs import asdict
from torch import Tensor

from ninfer_artifact_writer.writer import ArtifactWriter
from ninfer_bench.synthetic import random_object
from ninfer_core.api import Progress, StorageLayout
from ninfer_core.artifact.catalogue import Component, TensorObject
from ninfer_core.artifact.container import Artifact
from ninfer_core.plugin_host import Registry
from ninfer_fixtures.tiny import tiny_resources

READ_BYTES = 1 << 26


def write_random(
    artifact: Artifact, path: Path, registry: Registry, device: str, progress: Progress
) -> None:
    """Write what a catalogue declares, its weights random and its text byte by byte."""
    generator = torch.Generator(device).manual_seed(1)
    components = {name: _declared(each) for name, each in artifact.components.items()}
    with ArtifactWriter(path, components=components, progress=progress) as writer:
        for tensor in artifact.objects.values():
            if isinstance(tensor, TensorObject):
                layout = registry.layouts[tensor.layout].spec.layout.load()()
                writer.add_tensor(
                    tensor.id, tensor.shape, tensor.format, tensor.layout,
                    partial(_image, tensor, layout, generator), nbytes=tensor.bytes)
        for name, binding in artifact.bindings.items():
            writer.bind(name, binding.object or [*(binding.parts or ())])
        for use in artifact.uses:
            auxiliaries = {
                role: each.object or [*(each.parts or ())] for role, each in use.auxiliaries.items()
            }
            writer.use(use.parameter, use.input, use.activation_policy, auxiliaries)
        for role, content in tiny_resources().items():
            writer.add_resource(role, content)


def read_through(path: Path) -> None:
    """Read a set, so that it is in the page cache as far as that has room."""
    for file in sorted(path.parent.glob(f"{path.name}*")):
        with file.open("rb", buffering=0) as stream:
            while stream.read(READ_BYTES):
                pass


def _declared(component: Component) -> dict[str, Any]:
    """A component as a catalogue has it, without resources."""
    optional: dict[str, Any] = {"target": component.target, "proposal": None}
    if component.proposal is not None:
        optional["proposal"] = asdict(component.proposal, filter=lambda _, value: value is not None)
    return {"config": component.config,
            **{name: value for name, value in optional.items() if value is not None}}


def _image(
    tensor: TensorObject, layout: StorageLayout, generator: torch.Generator
) -> Iterator[tuple[int, Tensor]]:
    yield 0, random_object(tensor, layout, generator)[0].cpu()

