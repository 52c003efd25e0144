"""``ninfer plugins`` and ``ninfer conformance``: tables on stdout."""

from __future__ import annotations

from argparse import Namespace

from ninfer_core.cli.console import Console, table
from ninfer_core.cli.selection import find_plugins
from ninfer_core.plugin_host import PluginRecord


def plugins(arguments: Namespace) -> int:
    """Every plugin that was found, with its state and why."""
    with Console(arguments.log_level):
        records = find_plugins(arguments).records
    rows = ((r.name, r.distribution, r.version, r.state, r.reason or _contents(r)) for r in records)
    print(table(("NAME", "DISTRIBUTION", "VERSION", "STATE", "REASON"), *rows))
    return 0


def _contents(record: PluginRecord) -> str:
    """What it registered, by name where that is short."""
    names = {kind: [spec.name for spec in specs] for kind, specs in record.specs.items() if specs}
    return "; ".join(
        f"{kind.replace('_', ' ')}: {', '.join(each) if len(each) < 4 else len(each)}"
        for kind, each in names.items()
    )


def conformance(arguments: Namespace) -> int:
    """Run the conformance kit on one plugin; exit code 1 if a check fails."""
    from ninfer_core.testing.levels import run_conformance

    with Console(arguments.log_level):
        levels = [f"L{level}" for level in range(arguments.level + 1)]
        results = run_conformance(arguments.name, find_plugins(arguments), levels)
    print(table(("LEVEL", "CHECK", "STATUS", "SECONDS", "DETAIL"), *(
        (r.level, r.check, r.status, f"{r.seconds:.2f}", r.detail) for r in results
    )))
    return 1 if any(result.status == "failed" for result in results) else 0
