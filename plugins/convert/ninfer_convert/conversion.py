"""A source checkpoint to a published `.ninfer` set."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import evolve

from ninfer_artifact_writer.writer import MAX_FILE_BYTES, ArtifactWriter
from ninfer_convert.components import keep_components
from ninfer_convert.coverage import check_parameters, check_tensors
from ninfer_convert.declaration import declare
from ninfer_convert.draft_head import DraftHead, add_draft_head
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

log = logging.getLogger(__name__)
TOKENIZER = "tokenizer.json"


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
    max_file_bytes: int = MAX_FILE_BYTES, components: Collection[str] | None = None,
    draft_head: DraftHead | None = None,
) -> ConversionReport:
    """Convert an opened checkpoint.

    Tensors are read, converted and written one object at a time. Nothing appears at the
    destination before all of it is written; an existing file is never replaced.

    :param registry: has ``formats`` and ``layouts``: name -> object with a ``spec``.
    :param recipe: the pack's default if None.
    :param name: public name of the model, stored in the artifact.
    :param components: those to convert; None for all.
    :param draft_head: what to make a draft head of; None for none.
    :raises ArtifactError: naming tensors or parameters that are missing, left over or damaged.
    :raises ConfigError: if the recipe does not fit the model or the registry, or the model has no
        such component or draft head.
    """
    plan = pack.import_source(checkpoint)
    if recipe is not None:
        plan = evolve(plan, recipe=tuple(recipe))
    if components is not None:
        plan = keep_components(plan, components)
    expected = expected_parameters(pack, plan, draft_head)
    if draft_head is not None:
        plan = add_draft_head(plan, expected, draft_head)
    check_parameters(plan, expected)
    check_tensors(plan, checkpoint)
    objects = plan_objects(plan, registry)
    if TOKENIZER not in plan.resources:
        log.warning("the checkpoint has no %s: its model will not answer prompts", TOKENIZER)
    with ArtifactWriter(
        destination, components=plan.components, metadata={"name": name} if name else {},
        provenance=provenance, max_file_bytes=max_file_bytes, progress=progress,
    ) as writer:
        declare(writer, objects, expected, plan.recipe)
        for role, content in plan.resources.items():
            writer.add_resource(role, content)
    return summarize(checkpoint, plan, objects)


def expected_parameters(
    pack: ModelPack, plan: ImportPlan, draft_head: DraftHead | None = None
) -> tuple[ParameterSpec, ...]:
    """What the pack will ask of the artifact, by the config that the artifact will have."""
    configs = {name: component["config"] for name, component in plan.components.items()}
    text = configs["text"]
    if draft_head is not None:
        configs["proposal"] = draft_head.component(plan)
    model = ModelDescription("artifact", tuple(text.get("architectures", ())), text, configs)
    return pack.parameters(pack.configure(model))
