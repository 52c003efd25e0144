"""From parsed arguments to plugins. Imports no torch, so that lists are quick."""

from __future__ import annotations

from argparse import Namespace

from ninfer_core.plugin_host import PluginReport, PluginSelection, load_plugins


def find_plugins(arguments: Namespace, profile: str | None = None) -> PluginReport:
    """Load the plugins that the options, the launch's profile and the environment select."""
    return load_plugins(PluginSelection.from_environment(
        modules=tuple(arguments.plugin), blocked=tuple(arguments.no_plugin), profile=profile,
    ))
