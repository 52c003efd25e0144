"""A pack's tiny model with random weights, through a real artifact."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from ninfer_conformance.subject import Subject
from ninfer_core.api import ParameterSpec
from ninfer_core.artifact.catalogue import Part
from ninfer_core.artifact.container import open_artifact
from ninfer_core.artifact.store import WeightStore, load_weights
from ninfer_core.artifact.writer import ArtifactWriter

Values = Mapping[str, Tensor]


def random_values(subject: Subject, format: str = "fp32") -> dict[str, Tensor]:
    """fp32 values of every parameter that is not tied, always the same; those that may be quantised
    are numbers of ``format``."""
    codec, values = subject.report.registry.formats[format].spec.codec.load()(), {}
    for spec in _parameters(subject):
        if not spec.tied_to:
            exact = _random(spec)
            rounded = exact if spec.kind == "direct" else codec.dequantize(codec.quantize(exact))
            values[spec.name] = rounded
    return values


def stored(
    subject: Subject, values: Values, format: str = "fp32",
    stacks: Iterable[tuple[str, ...]] = (),
) -> WeightStore:
    """Write the values, open the artifact and load it.

    :param format: of all that may be quantised; the rest is fp32.
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


def stacked(values: Values, names: tuple[str, ...]) -> Tensor:
    """Parameters one below the other."""
    rows = [values[name] for name in names]
    return rows[0] if len(rows) == 1 else torch.cat(rows)


def _parameters(subject: Subject) -> tuple[ParameterSpec, ...]:
    parameters: tuple[ParameterSpec, ...] = subject.implementation.parameters(subject.config)
    return parameters


def _random(spec: ParameterSpec) -> Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(spec.name.encode()))
    values = torch.randn(spec.shape, generator=generator)
    return 1 + values / 8 if spec.kind == "direct" else values / spec.shape[-1] ** 0.5


def _write(
    subject: Subject, path: Path, values: Values, format: str, stacks: Mapping[str, tuple[str, ...]]
) -> None:
    components, parts = {n: {"config": c} for n, c in subject.model.components.items()}, {}
    direct = {spec.name for spec in _parameters(subject) if spec.kind == "direct"}
    with ArtifactWriter(path, components=components) as writer:
        for stack in dict.fromkeys(stacks.get(name, (name,)) for name in values):
            object_id, end, stored_as = "+".join(stack), 0, "fp32" if {*stack} & direct else format
            _add(writer, subject, object_id, stacked(values, stack), stored_as)
            for name in stack:
                begin, end = end, end + values[name].numel()
                parts[name] = [Part(object_id, (begin, end))]
        for spec in _parameters(subject):
            if found := parts.get(spec.tied_to or spec.name):
                writer.bind(spec.name, found)


def _add(writer: ArtifactWriter, subject: Subject, name: str, values: Tensor, format: str) -> None:
    registry = subject.report.registry
    layouts = (each.spec for each in registry.layouts.values() if format in each.spec.formats)
    layout, codec = next(layouts), registry.formats[format].spec.codec.load()()
    image = layout.layout.load()().pack(format, codec.quantize(values))
    writer.add_tensor(name, values.shape, format, layout.name, image, alignment=layout.alignment)
