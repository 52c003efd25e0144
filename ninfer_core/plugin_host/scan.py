"""Which plugins are installed; none is imported here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata

from ninfer_core import __version__
from ninfer_core.plugin_host.records import PluginRecord

PROFILES = "ninfer.hardware_profiles"
GROUPS = ("ninfer.model_packs", PROFILES, "ninfer.plugins")
CORE = PluginRecord(
    "core", "core", "ninfer-core", __version__, "ninfer_core.plugin_host.builtin", asked=True
)


def installed() -> Iterator[PluginRecord]:
    """A record of every entry point in the groups of the project."""
    entries = metadata.entry_points()
    for group in GROUPS:
        for entry in entries.select(group=group):
            yield PluginRecord(entry.name, group, *_identity(entry.dist), entry.value)


def _identity(distribution: metadata.Distribution | None) -> tuple[str, str]:
    name = version = ""
    with suppress(Exception):  # damaged metadata raises anything, and says nothing of the plugin
        name, version = distribution.name, distribution.version  # type: ignore[union-attr]
    return name or "unnamed", version or "unknown"
