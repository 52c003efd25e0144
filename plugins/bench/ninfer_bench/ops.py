"""``ninfer bench ops``: each op of a model's steps by itself, beside the machine's limits."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from attrs import asdict, frozen

from ninfer_bench.recording import Call, RecordingBinder, clocks
from ninfer_bench.report import Report
from ninfer_bench.stepping import batch_builder, repeated, sequences, timed
from ninfer_bench.synthetic import Sizes, Synthetic, build, make_plan
from ninfer_core.cli.console import Console
from ninfer_core.config import EnginePlan
from ninfer_core.state.step import StepBatch

SECONDS = 0.1
"""That calls of one kind are repeated for."""


@frozen
class Measured:
    """Calls of one kind in one kind of step, one after the other, each with memory of its own.

    :ivar step: ``decode 1 x 1 at 1024``. :ivar stored: formats and shapes of the weights.
    :ivar nbytes, flops: that one call must move and compute. :ivar seconds: of one call.
    """

    step: str
    op: str
    kernel: str
    stored: str
    calls: int
    seconds: float
    nbytes: int
    flops: int


@frozen
class WholeStep:
    """A step, and what its ops take by themselves."""

    step: str
    seconds: float
    ops_seconds: float


def run(arguments: Namespace) -> Report:
    """Every op of decode steps of every asked size, and of chunks."""
    with Console(arguments.log_level) as console, torch.inference_mode():
        width, deepest = max(arguments.widths), max(arguments.contexts)
        chunk = max(arguments.prefill, default=0)
        sizes = Sizes(max(arguments.rows), width, deepest + width, deepest + chunk, chunk)
        plan = make_plan(arguments, console.progress, sizes)
        synthetic = build(plan, max(arguments.widths), RecordingBinder)
        found = list(_measure(synthetic, arguments))
    return _report(arguments, plan, found)


def _measure(
    synthetic: Synthetic, arguments: Namespace
) -> Iterator[tuple[WholeStep, list[Measured]]]:
    plan, most = synthetic.plan, max(arguments.widths)
    for context in arguments.contexts:
        for num_rows in arguments.rows:
            for width in arguments.widths:
                batches = batch_builder(plan, num_rows, num_rows * most)
                with sequences(synthetic, num_rows, context + most) as rows:
                    batch = batches.fill([row(context, width) for row in rows])
                    name = f"decode {num_rows} x {width} at {context}"
                    yield _step(synthetic, batch, name, context)
        for chunk in arguments.prefill:
            with sequences(synthetic, 1, context + chunk) as rows:
                batch = batch_builder(plan, 1, chunk).fill([rows[0](context, chunk, num_logits=1)])
                yield _step(synthetic, batch, f"prefill {chunk} at {context}", context + chunk // 2)


def _step(
    synthetic: Synthetic, batch: StepBatch, name: str, context: int
) -> tuple[WholeStep, list[Measured]]:
    plan, binder = synthetic.plan, synthetic.binder
    assert isinstance(binder, RecordingBinder)
    synthetic.model.forward(batch)  # compiles
    with binder.recording() as calls:
        synthetic.model.forward(batch)
    whole = timed(plan, repeated(plan, [partial(synthetic.model.forward, batch)]), SECONDS)
    kinds: dict[tuple[object, ...], list[Call]] = {}
    for call in calls:
        kinds.setdefault(call.kind, []).append(call)
    measured = [_kind(plan, each, batch, name, context) for each in kinds.values()]
    in_ops = sum(each.calls * each.seconds for each in measured)
    return WholeStep(name, whole, in_ops), measured


def _kind(
    plan: EnginePlan, calls: list[Call], batch: StepBatch, step: str, context: int
) -> Measured:
    first, num_tokens = calls[0], batch.num_tokens
    seconds = timed(plan, repeated(plan, calls), SECONDS) / len(calls)
    stored = " ".join(f"{w.info.format.name} {list(w.info.shape)}" for w in first.weights)
    rows = first.arguments[0].shape[0] if first.request.op.startswith("linear") else num_tokens
    nbytes = first.activation_bytes() + first.state_bytes(batch.num_rows, context)
    nbytes += first.weight_bytes(num_tokens)
    return Measured(step, first.request.op, first.kernel, stored, len(calls), seconds, nbytes,
                    first.matrix_flops(rows))


def _report(
    arguments: Namespace, plan: EnginePlan, found: list[tuple[WholeStep, list[Measured]]]
) -> Report:
    figures = plan.hardware.figures()
    reading, computing = figures.read_bytes_per_s, figures.flops[plan.hardware.compute_dtype]
    tables = {}
    for whole, measured in found:
        rows: list[tuple[str, ...]] = [(
            "op", "kernel", "weights", "calls", "us", "ms a step", "of the step", "MB",
            "of the bandwidth", "of the matrix rate")]
        for each in sorted(measured, key=lambda each: -each.calls * each.seconds):
            total = each.calls * each.seconds
            rows.append((
                each.op, each.kernel, each.stored, str(each.calls), f"{each.seconds * 1e6:.1f}",
                f"{total * 1e3:.3f}", f"{100 * total / whole.seconds:.1f} %",
                f"{each.nbytes / 1e6:.2f}", f"{100 * each.nbytes / reading / each.seconds:.1f} %",
                f"{100 * each.flops / computing / each.seconds:.1f} %" if each.flops else ""))
        tables[f"{whole.step}: {whole.seconds * 1e3:.3f} ms, its ops alone "
               f"{whole.ops_seconds * 1e3:.3f} ms"] = rows
    values: dict[str, Any] = {
        "benchmark": "ops", "model": plan.config.model, "format": arguments.format,
        "profile": plan.config.profile, "kv_dtype": plan.config.kv_dtype,
        "read_bytes_per_s": reading, "flops": computing, **clocks(),
        "steps": [{**asdict(whole), "ops": [asdict(each) for each in measured]}
                  for whole, measured in found],
    }
    return Report(values, tables)
