"""A pack's tiny model with random weights, through a real artifact."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from ninfer_core.api import ParameterSpec
from ninfer_core.artifact.catalogue import Part
from ninfer_core.artifact.container import open_artifact
from ninfer_core.artifact.store import WeightStore, load_weights
from ninfer_core.artifact.writer import ArtifactWriter
from ninfer_core.testing.subject import Subject

Values = Mapping[str, Tensor]


def random_values(subject: Subject, format: str = "fp32") -> dict[str, Tensor]:
    """fp32 values of every parameter that is not tied, always the same; those of matrices are
    numbers of ``format``."""
    codec, values = subject.report.registry.formats[format].spec.codec.load()(), {}
    for spec in subject.implementation.parameters(subject.config):
        if not spec.tied_to:
            values[spec.name] = _random(spec)
            if len(spec.shape) == 2:
                values[spec.name] = codec.dequantize(codec.quantize(values[spec.name]))
    return values


def stored(
    subject: Subject, values: Values, format: str = "fp32",
    stacks: Iterable[tuple[str, ...]] = (),
) -> WeightStore:
    """Write the values, open the artifact and load it.

    :param format: of all matrices; vectors are fp32.
    :param stacks: parameters that are rows of one object.
    """
    registry = subject.report.registry
    with TemporaryDirectory() as folder:
        path = Path(folder) / "tiny.ninfer"
        _write(subject, path, values, format, {name: stack for stack in stacks for name in stack})
        return load_weights(
            open_artifact(path), formats={n: each.spec for n, each in registry.formats.items()},
            layouts={n: each.spec for n, each in registry.layouts.items()},
        )


def _random(spec: ParameterSpec) -> Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(spec.name.encode()))
    values = torch.randn(spec.shape, generator=generator)
    return 1 + values / 8 if spec.kind == "direct" else values / spec.shape[-1] ** 0.5


def _write(
    subject: Subject, path: Path, values: Values, format: str, stacks: Mapping[str, tuple[str, ...]]
) -> None:
    components, parts = {n: {"config": c} for n, c in subject.model.components.items()}, {}
    with ArtifactWriter(path, components=components) as writer:
        for stack in dict.fromkeys(stacks.get(name, (name,)) for name in values):
            object_id, end = "+".join(stack), 0
            _add(writer, subject, object_id, torch.cat([values[name] for name in stack]), format)
            for name in stack:
                begin, end = end, end + values[name].numel()
                parts[name] = [Part(object_id, (begin, end))]
        for spec in subject.implementation.parameters(subject.config):
            if found := parts.get(spec.tied_to or spec.name):
                writer.bind(spec.name, found)


def _add(writer: ArtifactWriter, subject: Subject, name: str, values: Tensor, format: str) -> None:
    registry, format = subject.report.registry, format if values.ndim == 2 else "fp32"
    layouts = (each.spec for each in registry.layouts.values() if format in each.spec.formats)
    layout, codec = next(layouts), registry.formats[format].spec.codec.load()()
    image = layout.layout.load()().pack(format, codec.quantize(values))
    writer.add_tensor(name, values.shape, format, layout.name, image, alignment=layout.alignment)
