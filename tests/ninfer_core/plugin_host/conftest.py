"""Plugins as real distributions: a package and its dist-info in a directory on ``sys.path``."""

from __future__ import annotations

import importlib
import sys
import textwrap
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from ninfer_core.plugin_host import PluginRecord, PluginReport, PluginSelection
from ninfer_core.plugin_host.scan import GROUPS

HEADER = "from ninfer_core.api import *\nNINFER_API = (1, 0)\n"
PACK = """
    @hookimpl
    def ninfer_model_packs():
        return [ModelPackSpec(name="{name}", pack="{name}.pack:Pack", claim="{name}.pack:claim")]
"""
PROFILE = """
    @hookimpl
    def ninfer_hardware_profiles():
        return [HardwareProfileSpec(
            name="{name}", detect="{name}.machine:detect", profile="{name}.machine:Profile")]
"""


class Site:
    """A directory of installed distributions; everything else that is installed is left out."""

    def __init__(self, path: Path, others: tuple[str, ...]) -> None:
        self.path, self._others = path, others

    def write(self, module: str, source: str) -> None:
        """Write a module, and empty packages above it."""
        file = self.path.joinpath(*module.split(".")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        for package in file.parents:
            if package != self.path and self.path in package.parents:
                (package / "__init__.py").touch()
        file.write_text(textwrap.dedent(source))
        importlib.invalidate_caches()

    def install(
        self, name: str, source: str, group: str = "ninfer.plugins", *,
        distribution: str = "", header: str = HEADER,
    ) -> None:
        """A distribution ``<name>-dist`` 1.0 whose entry point ``name`` is ``<name>.plugin``."""
        distribution = distribution or f"{name}-dist"
        package = name if distribution == f"{name}-dist" else distribution
        self.write(f"{package}.plugin", header + textwrap.dedent(source.format(name=name)))
        info = self.path / f"{distribution.replace('-', '_')}-1.0.dist-info"
        info.mkdir(exist_ok=True)
        metadata_lines = ("Metadata-Version: 2.1", f"Name: {distribution}", "Version: 1.0", "")
        (info / "METADATA").write_text("\n".join(metadata_lines))
        with (info / "entry_points.txt").open("a") as file:
            file.write(f"[{group}]\n{name} = {package}.plugin\n")

    def pack(self, name: str, body: str) -> None:
        """A model pack whose claim has this body."""
        self.install(name, PACK, "ninfer.model_packs")
        self.write(f"{name}.pack", f"from ninfer_core.api import Claim\nPack = object\n"
                                   f"def claim(model):\n    {body}\n")

    def profile(self, name: str, body: str) -> None:
        """A hardware profile whose detection has this body."""
        self.install(name, PROFILE, "ninfer.hardware_profiles")
        self.write(f"{name}.machine", f"from ninfer_core.api import Detection\nProfile = object\n"
                                      f"def detect():\n    {body}\n")

    def selection(self, **options: object) -> PluginSelection:
        blocked = (*self._others, *options.pop("blocked", ()))
        return PluginSelection(blocked=blocked, **options)


@pytest.fixture
def find() -> Callable[[PluginReport, str], PluginRecord]:
    """The record of a plugin by name."""
    return lambda report, name: next(r for r in report.records if r.name == name)


@pytest.fixture
def site(tmp_path, monkeypatch):
    others = {entry.value for group in GROUPS for entry in metadata.entry_points(group=group)}
    monkeypatch.syspath_prepend(tmp_path)
    yield Site(tmp_path, tuple(others))
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]
