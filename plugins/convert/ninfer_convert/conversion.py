"""A source checkpoint to a published `.ninfer` set."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ninfer_convert.coverage import check_parameters, check_tensors
from ninfer_convert.objects import StoredObject
from ninfer_convert.report import ConversionReport, summarize
from ninfer_convert.source import open_source
from ninfer_convert.storage import plan_objects
from ninfer_core.api import (
    CheckpointSource,
    ImportPlan,
    ModelDescription,
    ModelPack,
    ParameterSpec,
    Progress,
    StorageChoice,
)
from ninfer_core.artifact.catalogue import Part
from ninfer_core.artifact.writer import MAX_FILE_BYTES, ArtifactWriter


def convert(
    source: Path, destination: Path, *, pack: ModelPack, registry: Any,
    recipe: Sequence[StorageChoice] | None = None, progress: Progress | None = None,
) -> ConversionReport:
    """Convert a safetensors directory or a GGUF file; see `convert_checkpoint`."""
    return convert_checkpoint(
        open_source(source), destination, pack=pack, registry=registry, recipe=recipe,
        progress=progress, provenance={"source": source.name},
    )


def convert_checkpoint(
    checkpoint: CheckpointSource, destination: Path, *, pack: ModelPack, registry: Any,
    recipe: Sequence[StorageChoice] | None = None, progress: Progress | None = None,
    name: str = "", provenance: Mapping[str, Any] | None = None,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> ConversionReport:
    """Convert an opened checkpoint.

    Tensors are read, converted and written one object at a time. Nothing appears at the
    destination before all of it is written; an existing file is never replaced.

    :param registry: has ``formats`` and ``layouts``: name -> object with a ``spec``.
    :param recipe: the pack's default if None.
    :param name: public name of the model, stored in the artifact.
    :raises ArtifactError: naming tensors or parameters that are missing, left over or damaged.
    :raises ConfigError: if the recipe does not fit the model or the registry.
    """
    plan = pack.import_source(checkpoint)
    expected = _expected(pack, plan)
    check_parameters(plan, expected)
    check_tensors(plan, checkpoint)
    objects = plan_objects(plan, plan.recipe if recipe is None else recipe, registry)
    with ArtifactWriter(
        destination, components=plan.components, metadata={"name": name} if name else {},
        provenance=provenance, max_file_bytes=max_file_bytes, progress=progress,
    ) as writer:
        for stored in objects:
            _add(writer, stored)
        for role, content in plan.resources.items():
            writer.add_resource(role, content)
        _bind(writer, objects, expected)
    return summarize(checkpoint, plan, objects)


def _expected(pack: ModelPack, plan: ImportPlan) -> tuple[ParameterSpec, ...]:
    """What the pack will ask of the artifact, by the config that the artifact will have."""
    configs = {name: component["config"] for name, component in plan.components.items()}
    text = configs["text"]
    model = ModelDescription("artifact", tuple(text.get("architectures", ())), text, configs)
    return pack.parameters(pack.configure(model))


def _add(writer: ArtifactWriter, stored: StoredObject) -> None:
    writer.add_tensor(
        stored.object_id, stored.shape, stored.format.name, stored.layout.name,
        stored.image, nbytes=stored.nbytes, alignment=stored.layout.alignment,
    )


def _bind(
    writer: ArtifactWriter, objects: Iterable[StoredObject], expected: Iterable[ParameterSpec]
) -> None:
    places = dict(place for stored in objects for place in _places(stored))
    for spec in expected:
        writer.bind(spec.name, places[spec.tied_to or spec.name])


def _places(stored: StoredObject) -> Iterator[tuple[str, str | list[Part]]]:
    """Where each member is: the whole object, or a range of its elements."""
    object_id, begin = stored.object_id, 0
    for member in stored.members:
        end = begin + math.prod(member.spec.shape)
        alone = len(stored.members) == 1
        yield member.spec.name, object_id if alone else [Part(object_id, (begin, end))]
        begin = end
