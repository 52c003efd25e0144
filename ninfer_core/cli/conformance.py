"""``ninfer conformance``: run the kit on one plugin and print its table."""

from __future__ import annotations

from argparse import Namespace

from ninfer_core.cli.console import table
from ninfer_core.cli.plugins import find_plugins
from ninfer_core.testing.levels import run_conformance


def run(arguments: Namespace) -> int:
    """Exit code 1 if a check fails."""
    levels = [f"L{level}" for level in range(arguments.level + 1)]
    results = run_conformance(arguments.name, find_plugins(arguments), levels)
    print(table(("LEVEL", "CHECK", "STATUS", "SECONDS", "DETAIL"), *(
        (r.level, r.check, r.status, f"{r.seconds:.2f}", r.detail) for r in results
    )))
    return 1 if any(result.status == "failed" for result in results) else 0
