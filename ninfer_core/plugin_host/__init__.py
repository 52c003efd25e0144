"""Finds plugins, loads them under guard and chooses among what they register."""

from ninfer_core.plugin_host.choices import (
    Choice,
    choose_only,
    choose_pack,
    choose_profile,
    find_embedded,
    kernels_of,
    require,
)
from ninfer_core.plugin_host.load import load_plugins
from ninfer_core.plugin_host.records import (
    PluginRecord,
    PluginReport,
    Provenance,
    Registered,
    Registry,
)
from ninfer_core.plugin_host.selection import PluginSelection

__all__ = [
    "Choice", "PluginRecord", "PluginReport", "PluginSelection", "Provenance", "Registered",
    "Registry", "choose_only", "choose_pack", "choose_profile", "find_embedded",
    "kernels_of", "load_plugins", "require",
]
