"""What this distribution registers: one command. Imports no torch."""

from __future__ import annotations

from ninfer_core.api import CommandSpec, hookimpl

NINFER_API = (1, 0)

COMMAND = CommandSpec(
    "perplexity", "Measure the perplexity of a model on texts.",
    "ninfer_perplexity.command:run", "ninfer_perplexity.options:declare",
)


@hookimpl
def ninfer_commands() -> list[CommandSpec]:
    return [COMMAND]
