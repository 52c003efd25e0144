"""The model of a launch: its artifact, its pack, and what the pack says of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from attrs import evolve, frozen

from ninfer_core import api
from ninfer_core.artifact.container import Artifact, open_artifact
from ninfer_core.config.components import describe
from ninfer_core.config.launch import LaunchConfig
from ninfer_core.plugin_host import Choice, PluginReport, Provenance, choose_pack, require


@frozen(eq=False, kw_only=True)
class ModelPlan:
    """An artifact and the pack that runs it.

    :ivar speculator: that was asked for; its component of the artifact is in use.
    :ivar model_pack: implementation of the chosen pack. :ivar model_config: the pack's own.
    :ivar operations: sizes for predictions, see `ModelPack.operations`.
    """

    artifact: Artifact
    speculator: api.SpeculatorSpec | None
    pack: Choice[api.ModelPackSpec]
    model_pack: api.ModelPack
    model_config: Any
    operations: Mapping[str, Any]
    parameters: tuple[api.ParameterSpec, ...]
    states: tuple[api.StateSpec, ...]


def resolve_model(
    config: LaunchConfig, report: PluginReport, artifact: Artifact | None = None
) -> ModelPlan:
    """Open the artifact, choose its pack and ask it about the model; no weight is read.

    :param artifact: opened already, or an outline; else ``config.model`` is opened.
    """
    if artifact is None:
        if config.model is None:
            raise api.ConfigError("no model is given", fix="give the path of a .ninfer file")
        artifact = open_artifact(config.model)
    speculator = find_speculator(config, report)
    description = describe(artifact, config, speculator)
    pack = choose_pack(report, description, config.pack)
    with blame(pack.provenance):
        model_pack: api.ModelPack = pack.spec.pack.load()()
        own = model_pack.configure(description)
        parameters = model_pack.parameters(own)
        if config.tables_on_device:
            if not any(spec.on_host for spec in parameters):
                raise api.ConfigError("--tables-on-device is of no use", fix="leave it out",
                                      why="the model leaves no table in host memory or files")
            parameters = tuple(evolve(spec, on_host=False) for spec in parameters)
        return ModelPlan(
            artifact=artifact, speculator=speculator, pack=pack, model_pack=model_pack,
            model_config=own, operations=model_pack.operations(own),
            parameters=parameters, states=model_pack.states(own),
        )


def find_speculator(config: LaunchConfig, report: PluginReport) -> api.SpeculatorSpec | None:
    """The one that is asked for by name."""
    if config.spec is None:
        return None
    found: api.SpeculatorSpec = require(report, "speculators", config.spec, "--spec").spec
    return found


@contextmanager
def blame(plugin: Provenance) -> Iterator[None]:
    """Turn what a plugin raises, if it is no error for users, into one that names the plugin."""
    try:
        yield
    except api.NInferError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise api.PluginError("a plugin failed", where=str(plugin), why=why) from error
