"""Which plugins may load, and which must."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from attrs import evolve, frozen

from ninfer_core.api import ConfigError, PluginError
from ninfer_core.plugin_host.records import PluginRecord, log
from ninfer_core.plugin_host.scan import CORE, PROFILES, installed


@frozen
class PluginSelection:
    """Restrictions of one run. A plugin goes by its entry point, distribution or module.

    :ivar modules: plugin modules to load, installed or not (``-p``).
    :ivar names: the only installed plugins that may load (``NINFER_PLUGINS``); None = all.
    :ivar blocked: plugins that may not load (``--no-plugin``).
    :ivar profile: the only hardware profile that may load (``--profile``); None = all.
    :ivar import_limit_s: a plugin that takes longer to import is refused.
    """

    modules: tuple[str, ...] = ()
    names: tuple[str, ...] | None = None
    blocked: tuple[str, ...] = ()
    profile: str | None = None
    import_limit_s: float = 2.0

    @classmethod
    def from_environment(
        cls, environ: Mapping[str, str] = os.environ, **options: Any
    ) -> PluginSelection:
        """``options`` over ``NINFER_PLUGINS`` (names by commas; empty: none) and
        ``NINFER_IMPORT_LIMIT_S``."""
        text = environ.get("NINFER_PLUGINS")
        names = None if text is None else tuple(text.replace(",", " ").split())
        try:
            limit = float(environ.get("NINFER_IMPORT_LIMIT_S", "2"))
        except ValueError as error:
            raise ConfigError("NINFER_IMPORT_LIMIT_S is no number", why=str(error)) from error
        return cls(**({"names": names, "import_limit_s": limit} | options))

    def scan(self) -> tuple[PluginRecord, ...]:
        """The core, the installed plugins and those of ``-p``, with the state this gives them.
        A blocked name that is none of them is warned of.

        :raises PluginError: if ``NINFER_PLUGINS`` names a plugin that is not installed.
        """
        found = list(installed())
        for name in self.names or ():
            if not any(record.goes_by(name) for record in found):
                raise PluginError(f"NINFER_PLUGINS: no plugin {name!r} is installed")
        modules = set(self.modules) - {record.module for record in found}
        if modules and (here := os.getcwd()) not in sys.path:
            sys.path.append(here)  # as for python -m, but last: it must hide nothing installed
        loose = [PluginRecord(m, "-p", m, "uninstalled", m) for m in sorted(modules)]
        _warn_of_strangers(self.blocked, found + loose)
        return (CORE, *map(self._apply, found + loose))

    def _apply(self, record: PluginRecord) -> PluginRecord:
        wanted = record.group == PROFILES and record.name == self.profile
        if record.goes_by(*self.blocked):
            return evolve(record, state="blocked", reason="--no-plugin")
        if record.module in self.modules:
            return evolve(record, asked=True)
        if self.names is not None and not record.goes_by(*self.names):
            return evolve(record, state="not-selected", reason="not in NINFER_PLUGINS")
        if record.group == PROFILES and self.profile and not wanted:
            return evolve(record, state="not-selected", reason=f"--profile {self.profile}")
        return evolve(record, asked=wanted or self.names is not None)


def _warn_of_strangers(names: Iterable[str], records: Iterable[PluginRecord]) -> None:
    known = {name for each in records for name in (each.name, each.distribution, each.module)}
    for name in set(names) - known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        log.warning("--no-plugin %s leaves nothing out: no plugin has that name%s", name, hint)
