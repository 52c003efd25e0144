"""What this distribution registers. Imports no torch."""

from __future__ import annotations

from ninfer_core.api import CommandSpec, hookimpl

NINFER_API = (1, 0)


@hookimpl
def ninfer_commands() -> list[CommandSpec]:
    return [
        CommandSpec("conformance", "Run the conformance kit on one plugin.",
                    "ninfer_conformance.command:run", "ninfer_conformance.command:options"),
    ]
