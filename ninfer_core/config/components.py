"""Which components of an artifact a launch uses; the others are as if they were not there."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from attrs import asdict, evolve

from ninfer_core import api
from ninfer_core.artifact.container import Artifact
from ninfer_core.config.launch import LaunchConfig


def describe(
    artifact: Artifact, config: LaunchConfig, speculator: api.SpeculatorSpec | None
) -> api.ModelDescription:
    """The model with its text, what the speculator needs, and the draft head if it is asked for.

    :raises ArtifactError: if a component is missing.
    :raises ConfigError: for a draft head that nothing drafts with.
    """
    whole = artifact.description()
    used: dict[str, Mapping[str, Any]] = {"text": whole.components["text"]}
    require_component(speculator, whole.components, str(artifact.path))
    if speculator and (name := speculator.component):
        used[name] = whole.components[name]
    if config.lm_head_draft:
        used["proposal"] = _draft_head(artifact, speculator)
    return evolve(whole, components=used)


def require_component(
    speculator: api.SpeculatorSpec | None, components: Collection[str], where: str
) -> None:
    """Raise `ArtifactError` if a speculator needs a component that is not there."""
    name = speculator.component if speculator else ""
    if speculator and name and name not in components:
        raise api.ArtifactError(
            f"the artifact has no component {name!r}", where=where,
            why=f"--spec {speculator.name} needs it; there are {', '.join(components)}",
            fix=f"convert the model again from a checkpoint with {name} weights, or choose "
            "another --spec",
        )


def _draft_head(
    artifact: Artifact, speculator: api.SpeculatorSpec | None
) -> Mapping[str, Any]:
    if speculator is None or not speculator.component:
        name = speculator.name if speculator else "nothing"
        raise api.ConfigError(
            "--lm-head-draft is of no use", why=f"--spec {name} does not draft with a head",
            fix="leave it out, or choose a --spec that is part of the model",
        )
    proposal = artifact.components["text"].proposal
    if proposal is None:
        raise api.ArtifactError(
            "the artifact has no draft head", where=str(artifact.path),
            why="--lm-head-draft needs it",
            fix="make one with `ninfer-convert --proposal`, or leave the option out",
        )
    return asdict(proposal, filter=lambda _, value: value is not None)
