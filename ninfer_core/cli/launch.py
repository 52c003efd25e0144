"""From parsed arguments to launch options and plugins, ready for `resolve`."""

from __future__ import annotations

from argparse import Namespace

from attrs import evolve, fields_dict

from ninfer_core.api import Progress
from ninfer_core.cli.models import artifact_path
from ninfer_core.cli.plugins import find_plugins
from ninfer_core.config import LaunchConfig, load_config
from ninfer_core.plugin_host import PluginReport


def prepare(arguments: Namespace, progress: Progress) -> tuple[LaunchConfig, PluginReport]:
    """Launch options whose model is a path, and the plugins they select."""
    known = fields_dict(LaunchConfig)
    given = {name: value for name, value in vars(arguments).items() if name in known}
    config = load_config(arguments.config, {**given, "kernels": dict(arguments.kernels) or None})
    report = find_plugins(arguments, config.profile)
    path = artifact_path(config.model, report.registry, progress)
    return evolve(config, model=str(path)), report
