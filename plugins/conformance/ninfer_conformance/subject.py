"""What is under test: a model pack, a hardware profile or a bare plugin."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from attrs import field, frozen

from ninfer_core.api import Frontend, UnsupportedError
from ninfer_core.plugin_host import PluginRecord, PluginReport
from ninfer_fixtures.tiny import tiny_resources


@frozen(eq=False)
class Subject:
    """One subject of the checks.

    :ivar kind: ``packs``, ``profiles`` or ``plugins``.
    :ivar implementation: the `ModelPack` or `HardwareProfile`; None for a bare plugin.
    :ivar model: description of the model that a pack is tried with: its tiny one.
    :ivar resources: of that model's frontend, by role.
    """

    name: str
    kind: str
    record: PluginRecord
    report: PluginReport
    spec: Any = None
    implementation: Any = None
    model: Any = None
    resources: Mapping[str, bytes] = field(factory=tiny_resources)

    @cached_property
    def config(self) -> Any:
        """The pack's own config of the model."""
        return self.implementation.configure(self.model)

    @cached_property
    def frontend(self) -> Frontend:
        """The text side of the model."""
        frontend: Frontend = self.implementation.frontend(self.config, self.resources)
        return frontend


def find_subject(report: PluginReport, name: str) -> Subject:
    """The pack, profile or plugin of this name, sought in this order.

    :raises UnsupportedError: if there is none.
    """
    if found := report.registry.packs.get(name):
        pack, record = found.spec.pack.load()(), report.find(found.provenance)
        return Subject(name, "packs", record, report, found.spec, pack, pack.tiny())
    if profile := report.registry.profiles.get(name):
        made, record = profile.spec.profile.load()(), report.find(profile.provenance)
        return Subject(name, "profiles", record, report, profile.spec, made)
    for record in report.records:
        if name in (record.name, record.distribution, record.module):
            return Subject(name, "plugins", record, report)
    raise UnsupportedError(f"nothing is named {name!r}", fix="see 'ninfer plugins' for the names")
