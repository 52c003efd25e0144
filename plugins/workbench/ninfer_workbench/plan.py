"""``ninfer plan``: memory ledger and predicted speed, every number with its arithmetic."""

from __future__ import annotations

from argparse import Namespace

from ninfer_core.cli.console import Console, table
from ninfer_core.cli.launch import prepare_catalogue
from ninfer_core.config import resolve
from ninfer_workbench.memory import memory_rows
from ninfer_workbench.speed import speed_rows


def run(arguments: Namespace) -> int:
    """Print the plan for the profile's machine, which need not be this one; of the model, the
    catalogue is enough."""
    with Console(arguments.log_level) as console:
        config, report, artifact = prepare_catalogue(arguments, console.progress)
        plan = resolve(config, report, absent=True, artifact=artifact)
    figures = plan.hardware.figures()
    speed = f"predicted speed on {figures.name} ({figures.source})"
    print("choices", table(*plan.reasons), "", "memory", table(*memory_rows(plan)), "",
          speed, table(*speed_rows(plan, figures)), sep="\n")
    return 0
