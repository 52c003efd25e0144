"""What this distribution registers: one command. Imports no torch."""

from __future__ import annotations

from ninfer_core.api import CommandSpec, hookimpl

NINFER_API = (1, 0)


@hookimpl
def ninfer_commands() -> list[CommandSpec]:
    return [
        CommandSpec("bench", "Measure the engine.",
                    "ninfer_bench.command:run", "ninfer_bench.options:declare"),
    ]
