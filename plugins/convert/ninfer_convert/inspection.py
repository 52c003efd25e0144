"""What is in an artifact, as text."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

from ninfer_core.artifact.catalogue import TensorObject
from ninfer_core.artifact.container import Artifact
from ninfer_core.cli.console import table


def describe(artifact: Artifact) -> str:
    """The catalogue: components, objects, parameters, and bytes by format."""
    name = artifact.metadata.get("name", artifact.path.name)
    sections = [
        f"{name}: set {artifact.artifact_id}, {artifact.nbytes:,} bytes of tensors",
        *_components(artifact),
        table(("OBJECT", "SHAPE", "FORMAT", "LAYOUT", "OFFSET", "BYTES"), *_objects(artifact)),
        table(("PARAMETER", "STORED IN"), *_parameters(artifact)),
        table(("FORMAT", "OBJECTS", "BYTES"), *_formats(artifact)),
    ]
    return "\n\n".join(sections)


def _components(artifact: Artifact) -> Iterator[str]:
    for name, component in artifact.components.items():
        resources = ", ".join(component.resources) or "none"
        yield f"component {name}, resources: {resources}\n{json.dumps(component.config, indent=2)}"


def _objects(artifact: Artifact) -> Iterator[tuple[object, ...]]:
    for each in artifact.objects.values():
        shape, format_name, layout = "-", "(file)", "-"
        if isinstance(each, TensorObject):
            shape, format_name, layout = str([*each.shape]), each.format, each.layout
        yield each.id, shape, format_name, layout, each.offset, each.bytes


def _parameters(artifact: Artifact) -> Iterator[tuple[str, str]]:
    """Where elements of parameters are; ranges count elements."""
    for name in artifact.bindings:
        places = [
            each.id if end - begin == each.num_elements else f"{each.id}[{begin}:{end}]"
            for each, begin, end in artifact.parts(name)
        ]
        yield name, " + ".join(places)


def _formats(artifact: Artifact) -> Iterator[tuple[str, int, int]]:
    tensors = [each for each in artifact.objects.values() if isinstance(each, TensorObject)]
    counts, sizes = Counter[str](), Counter[str]()
    for tensor in tensors:
        counts[tensor.format] += 1
        sizes[tensor.format] += tensor.bytes
    return ((name, count, sizes[name]) for name, count in counts.items())
