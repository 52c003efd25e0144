"""``ninfer plan``: memory ledger and predicted speed, every number with its arithmetic."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from math import prod

from ninfer_core.api import MachineFigures, UnsupportedError
from ninfer_core.cli.console import Console, table
from ninfer_core.cli.launch import prepare
from ninfer_core.config import EnginePlan, resolve
from ninfer_core.state.layout import StateLayout

Row = tuple[str, str, str]


def run(arguments: Namespace) -> int:
    """Print the plan for the profile's machine, which need not be this one."""
    with Console(arguments.log_level) as console:
        plan = resolve(*prepare(arguments, console.progress), absent=True)
    figures = plan.hardware.figures()
    speed = f"speed on {figures.name} ({figures.source})"
    print("choices", table(*plan.reasons), "", "memory", table(*memory_rows(plan)), "",
          speed, table(*speed_rows(plan, figures)), sep="\n")
    return 0


def memory_rows(plan: EnginePlan) -> Iterator[Row]:
    """Claims, their sum, and the budget they must fit in."""
    ledger = plan.ledger
    for line in ledger.lines:
        yield line.name, f"{line.nbytes:,} B", line.arithmetic
    yield "total", f"{ledger.total_bytes:,} B", "fits" if ledger.fits else "DOES NOT FIT"
    yield "budget", f"{ledger.budget_bytes:,} B", ledger.budget_source


def speed_rows(plan: EnginePlan, figures: MachineFigures) -> Iterator[Row]:
    """What one sequence asks of the machine, then decode and prefill at either end of the context.

    A step reads all weights but tables, of which it gathers rows; it reads the KV cache of its
    context, and reads and writes the slot state.
    """
    streamed = [spec for spec in plan.parameters if spec.kind != "table"]
    stored = {tensor.id: tensor.bytes for spec in streamed
              for tensor, _, _ in plan.artifact.parts(spec.tied_to or spec.name)}
    layout = StateLayout(plan.states, plan.kv, max_verify_rows=plan.max_verify_rows)
    kv, slot = layout.bytes_per_token, 2 * layout.committed_bytes
    step_bytes = sum(stored.values()) + slot
    products = [spec.shape for spec in streamed if spec.kind == "projection"]
    head = sum(2 * prod(n) for n in products if n[0] == plan.operations["vocab_size"])
    body = sum(2 * prod(n) for n in products) - head
    attention = plan.operations["attention_flops_per_token"]
    yield ("bytes", f"{step_bytes:,} B", f"weights {step_bytes - slot:,} + slot state read and "
           f"written {slot:,} a step; KV {kv:,} a token of context")
    yield ("operations", f"{body + head:,} FLOP", f"layers {body:,} + head {head:,} a token; "
           f"attention {attention:,} a token and token of context")
    chunk, longest = plan.config.prefill_chunk, plan.config.max_context or 0
    for context in (0, longest - 1):
        flops = body + head + context * attention
        yield _speed(f"decode at {context}", 1, step_bytes + context * kv, flops, plan, figures)
    for context in (0, max(longest - chunk, 0)):
        flops = chunk * body + head + chunk * (context + chunk // 2) * attention
        yield _speed(
            f"prefill at {context}", chunk, step_bytes + context * kv, flops, plan, figures
        )


def _speed(
    name: str, tokens: int, nbytes: int, flops: int, plan: EnginePlan, figures: MachineFigures
) -> Row:
    """Reading and computing overlap, launches do not."""
    dtype, launches = plan.hardware.compute_dtype, plan.operations["launches_per_step"]
    if dtype not in figures.flops:
        raise UnsupportedError("cannot predict", where=figures.name, why=f"no rate of {dtype}")
    bandwidth, rate = figures.read_bytes_per_s, figures.flops[dtype]
    seconds = max(nbytes / bandwidth, flops / rate) + launches * figures.launch_s
    return name, f"{tokens / seconds:,.1f} tok/s", (
        f"{tokens} / (max({nbytes:,} B / {bandwidth / 1e9:,.1f} GB/s, {flops:,} FLOP / "
        f"{rate / 1e9:,.1f} GFLOP/s) + {launches} x {figures.launch_s * 1e6:.2f} us)"
    )
