"""From parsed arguments to launch options and plugins, ready for `resolve`."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from attrs import evolve, fields_dict

from ninfer_core.api import Progress
from ninfer_core.artifact.container import Artifact, open_artifact
from ninfer_core.cli.models import artifact_path, find_card, find_source, outline, survey
from ninfer_core.cli.plugins import find_plugins
from ninfer_core.config import LaunchConfig, load_config
from ninfer_core.config.model import find_speculator
from ninfer_core.plugin_host import PluginReport


def prepare(arguments: Namespace, progress: Progress) -> tuple[LaunchConfig, PluginReport]:
    """Launch options whose model is a path, and the plugins they select."""
    config, report = _options(arguments)
    path = _artifact(config, report, progress)
    return evolve(config, model=str(path)), report


def prepare_catalogue(
    arguments: Namespace, progress: Progress
) -> tuple[LaunchConfig, PluginReport, Artifact]:
    """As `prepare`, for commands that read no weights: the model may be a card, or a source
    checkpoint."""
    config, report = _options(arguments)
    if card := find_card(config.model, report.registry):
        return config, report, outline(card, report.registry)
    if source := find_source(config.model, report.registry):
        return config, report, survey(source, report, config.pack)
    path = _artifact(config, report, progress)
    return evolve(config, model=str(path)), report, open_artifact(path)


def _artifact(config: LaunchConfig, report: PluginReport, progress: Progress) -> Path:
    speculator = find_speculator(config, report)
    return artifact_path(config.model, report.registry, progress, speculator)


def _options(arguments: Namespace) -> tuple[LaunchConfig, PluginReport]:
    known = fields_dict(LaunchConfig)
    given = {name: value for name, value in vars(arguments).items() if name in known}
    config = load_config(arguments.config, {**given, "kernels": dict(arguments.kernels) or None})
    return config, find_plugins(arguments, config.profile)
