"""``ninfer plugins``, and the plugins of every other command. Imports no torch: lists are quick."""

from __future__ import annotations

from argparse import Namespace
from functools import cache

from ninfer_core.cli.console import table
from ninfer_core.plugin_host import PluginRecord, PluginReport, PluginSelection, load_plugins


@cache
def _load(selection: PluginSelection) -> PluginReport:
    """A selection is loaded, and its broken plugins are warned of, once."""
    return load_plugins(selection)


def find_plugins(arguments: Namespace, profile: str | None = None) -> PluginReport:
    """Load the plugins that the options, the launch's profile and the environment select."""
    return _load(PluginSelection.from_environment(
        modules=tuple(arguments.plugin), blocked=tuple(arguments.no_plugin), profile=profile,
    ))


def run(arguments: Namespace) -> int:
    """Every plugin that was found, with its state and why."""
    records = find_plugins(arguments).records
    print(table(("NAME", "DISTRIBUTION", "VERSION", "STATE", "REASON"), *(
        (r.name, r.distribution, r.version, r.state, r.reason or _contents(r)) for r in records
    )))
    return 0


def _contents(record: PluginRecord) -> str:
    """What it registered, by name where that is short."""
    names = {kind: [spec.name for spec in specs] for kind, specs in record.specs.items() if specs}
    return "; ".join(
        f"{kind.replace('_', ' ')}: {', '.join(each) if len(each) < 4 else len(each)}"
        for kind, each in names.items()
    )
