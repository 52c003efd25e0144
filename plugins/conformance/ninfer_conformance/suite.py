"""The checks as pytest suites, one test each; pytest itself is not imported."""

from __future__ import annotations

from functools import cache
from typing import Any

from ninfer_conformance.levels import CHECKS, Check
from ninfer_conformance.subject import Subject, find_subject
from ninfer_core.plugin_host import PluginSelection, load_plugins


class PackConformance:
    """The suite of a model pack. Subclass it as ``Test...`` and say what to test.

    :cvar plugin: module of the plugin, installed or importable.
    :cvar name: of the pack.
    :cvar levels: of the checks to run.
    """

    kind = "packs"
    plugin: str
    name: str
    levels = ("L0", "L1", "L2", "L3", "L4")

    @classmethod
    @cache
    def subject(cls) -> Subject:
        """What is tested; override it to change the model or its resources."""
        return find_subject(load_plugins(PluginSelection(modules=(cls.plugin,))), cls.name)

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """One test for each check."""
        if "check" not in metafunc.fixturenames:
            return
        checks = [check for check in CHECKS[self.kind] if check.level in self.levels]
        ids = [f"{check.level}-{check.name}" for check in checks]
        metafunc.parametrize("check", checks, ids=ids)

    def test_conformance(self, check: Check) -> None:
        check(self.subject())


class ProfileConformance(PackConformance):
    """The suite of a hardware profile."""

    kind = "profiles"
