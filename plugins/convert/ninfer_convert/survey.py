"""What is in a source checkpoint and what a conversion would write, from its headers."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ninfer_convert.conversion import expected_parameters
from ninfer_convert.coverage import check_parameters, check_tensors
from ninfer_convert.outline import outline
from ninfer_convert.source import open_source
from ninfer_core.api import ImportPlan, ModelPack, SourceTensor
from ninfer_core.artifact.container import Artifact
from ninfer_core.plugin_host import PluginReport, choose_pack

INTEGERS = re.compile(r"[IU]\d+|BOOL")
"""Types of tensors that are no parameters, unless scales make numbers of them."""


def survey(source: Path, report: PluginReport, pack: str | None = None) -> Artifact:
    """The artifact of a conversion by the pack's default recipe, without weights. Its provenance
    has an inventory of the checkpoint, see `_inventory`.

    :param pack: its name; the highest claim if None.
    :raises ArtifactError: as `convert_checkpoint` does, for whatever can be seen from headers.
    """
    checkpoint = open_source(source)
    chosen = choose_pack(report, checkpoint.description, pack).spec
    model_pack: ModelPack = chosen.pack.load()()
    plan = model_pack.import_source(checkpoint)
    expected = expected_parameters(model_pack, plan)
    check_parameters(plan, expected)
    check_tensors(plan, checkpoint)
    inventory = _inventory(checkpoint.stored, checkpoint.tensors, plan)
    return outline(plan, report.registry, expected=expected, provenance={"checkpoint": inventory})


def _inventory(
    stored: Mapping[str, SourceTensor], tensors: Mapping[str, SourceTensor], plan: ImportPlan
) -> dict[str, Any]:
    """Counts ``[tensors, elements]``: ``stored`` as the files have them, by type; of these
    ``whole``, each with its scales as one, that are ``used`` or ``ignored``, by reason."""
    types = sorted({tensor.dtype for tensor in stored.values()})
    used = {name for parameter in plan.parameters for name in parameter.sources}
    left = {name: why for name, why in plan.ignored.items() if name in tensors}
    return {
        "stored": {kind: _count(each for each in stored.values() if each.dtype == kind)
                   for kind in types},
        "whole": _parameters(tensors.values()),
        "used": _parameters(tensors[name] for name in used),
        "ignored": {why: _parameters(tensors[name] for name in left if left[name] == why)
                    for why in dict.fromkeys(left.values())},
    }


def _parameters(tensors: Iterable[SourceTensor]) -> list[int]:
    """How many tensors, and how many of their elements are parameters."""
    each = [*tensors]
    numbers = [tensor for tensor in each if tensor.format or not INTEGERS.fullmatch(tensor.dtype)]
    return [len(each), _count(numbers)[1]]


def _count(tensors: Iterable[SourceTensor]) -> list[int]:
    sizes = [math.prod(tensor.shape) for tensor in tensors]
    return [len(sizes), sum(sizes)]
