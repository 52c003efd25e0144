"""What this distribution registers. Imports no torch."""

from __future__ import annotations

from ninfer_core.api import CommandSpec, hookimpl

NINFER_API = (1, 0)
_MODEL = "ninfer_core.cli.options:model_and_launch"


@hookimpl
def ninfer_commands() -> list[CommandSpec]:
    return [
        CommandSpec("kernels", "List all kernels, or those a MODEL gets.",
                    "ninfer_workbench.kernels:run", _MODEL),
        CommandSpec("doctor", "Check a model without loading it.",
                    "ninfer_workbench.doctor:run", _MODEL),
        CommandSpec("plan", "Memory ledger and predicted speed, with arithmetic.",
                    "ninfer_workbench.plan:run", "ninfer_workbench.options:plan"),
        CommandSpec("fetch", "Install the weights of an embedded model.",
                    "ninfer_workbench.fetch:run", "ninfer_core.cli.options:model"),
        CommandSpec("new", "Write a skeleton distribution.",
                    "ninfer_workbench.new:run", "ninfer_workbench.options:skeleton"),
    ]
