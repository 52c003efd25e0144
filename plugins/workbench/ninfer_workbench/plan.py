"""``ninfer plan``: memory ledger and predicted speed, every number with its arithmetic, and what is
known of the kernels' code."""

from __future__ import annotations

from argparse import Namespace

from ninfer_core.cli.console import Console, table
from ninfer_core.cli.launch import prepare_catalogue
from ninfer_core.config import resolve
from ninfer_workbench.kernels import dry_build, fact_rows
from ninfer_workbench.memory import memory_rows
from ninfer_workbench.placement import placement_of
from ninfer_workbench.speed import speed_rows


def run(arguments: Namespace) -> int:
    """Print the plan for the profile's machine, which need not be this one; of the model, the
    catalogue is enough."""
    with Console(arguments.log_level) as console:
        config, report, artifact = prepare_catalogue(arguments, console.progress)
        plan = resolve(config, report, absent=True, artifact=artifact)
    figures = plan.hardware.figures()
    placement = placement_of(plan, figures, experts_on_host=arguments.experts_on_host)
    speed = f"predicted speed on {figures.name} ({figures.source})"
    print("choices", table(*plan.reasons), "", "memory", table(*memory_rows(plan, placement)), "",
          speed, table(*speed_rows(plan, figures, placement)), sep="\n")
    if rows := [*fact_rows(dry_build(plan))]:
        print("", f"code on {figures.name}", table(*rows), sep="\n")
    return 0
