"""``ninfer conformance``: run the kit on one plugin and print its table."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from ninfer_core.cli.console import table
from ninfer_core.cli.options import ranged
from ninfer_core.cli.plugins import find_plugins


def options(parser: ArgumentParser) -> None:
    """What is checked, and how far."""
    parser.add_argument("name", metavar="NAME", help="of a model pack, profile or plugin")
    parser.add_argument("--level", type=ranged(int, 0, 4), default=4,
                        help="highest level to run, 0..4 (default: 4)")


def run(arguments: Namespace) -> int:
    """Exit code 1 if a check fails."""
    from ninfer_conformance.levels import run_conformance  # brings torch; options must not

    levels = [f"L{level}" for level in range(arguments.level + 1)]
    results = run_conformance(arguments.name, find_plugins(arguments), levels)
    print(table(("LEVEL", "CHECK", "STATUS", "SECONDS", "DETAIL"), *(
        (r.level, r.check, r.status, f"{r.seconds:.2f}", r.detail) for r in results
    )))
    return 1 if any(result.status == "failed" for result in results) else 0
