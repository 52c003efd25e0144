"""``ninfer bench step``: whole steps of a model of real dimensions with random weights."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from math import prod

import torch
from attrs import frozen

from ninfer_bench.report import Report
from ninfer_bench.stepping import batch_builder, sequences, timed, wait_for
from ninfer_bench.synthetic import Synthetic, build, make_plan, stored_tensors
from ninfer_core.api import SlotStateSpec
from ninfer_core.cli.console import Console
from ninfer_core.config import EnginePlan
from ninfer_core.engine.graphs import CapturedForward
from ninfer_core.state.layout import StateLayout
from ninfer_core.state.step import StepBatch


@frozen
class Measured:
    """One kind of step.

    :ivar kind: ``decode`` or ``prefill``. :ivar nbytes: that a decode step must read and write.
    :ivar flops: of matrix products, in a chunk of a prompt. :ivar seconds: median.
    """

    kind: str
    rows: int
    width: int
    context: int
    seconds: float
    nbytes: int = 0
    flops: int = 0


def run(arguments: Namespace) -> Report:
    """Decode and verify steps of every asked size, by graphs where there are any, and chunks."""
    with Console(arguments.log_level) as console, torch.inference_mode():
        plan = make_plan(arguments, console.progress)
        start = time.perf_counter()
        synthetic = build(plan, max(arguments.widths))
        wait_for(plan)
        build_s = time.perf_counter() - start
        measured = list(_measure(synthetic, arguments))
    return _report(arguments, synthetic, measured, build_s)


def _measure(synthetic: Synthetic, arguments: Namespace) -> Iterator[Measured]:
    plan, most = synthetic.plan, max(arguments.widths)
    for context in arguments.contexts:
        for num_rows in arguments.rows:
            batches = batch_builder(plan, num_rows, num_rows * most)
            for width in arguments.widths:
                with sequences(synthetic, num_rows, context + most) as rows:
                    batch = batches.fill([row(context, width) for row in rows])
                    seconds = timed(plan, _forward(synthetic, batch, arguments.eager_steps))
                nbytes = step_bytes(plan, num_rows, num_rows * width, context)
                yield Measured("decode", num_rows, width, context, seconds, nbytes)
        for chunk in filter(None, arguments.prefill):
            with sequences(synthetic, 1, context + chunk) as rows:
                batch = batch_builder(plan, 1, chunk).fill([rows[0](context, chunk, num_logits=1)])
                seconds = timed(plan, partial(synthetic.model.forward, batch))
            flops = chunk_flops(plan, chunk, context)
            yield Measured("prefill", 1, chunk, context, seconds, flops=flops)


def _forward(synthetic: Synthetic, batch: StepBatch, eager: bool) -> Callable[[], object]:
    """One step of the batch, as the engine would run it."""
    safe = all(choice.spec.graph_safe for choice in synthetic.kernels)
    if synthetic.plan.hardware.device != "cuda" or not safe or eager:
        return partial(synthetic.model.forward, batch)
    captured = CapturedForward(synthetic.model.forward)
    captured.capture(batch)
    return partial(captured, batch)


def step_bytes(plan: EnginePlan, num_rows: int, num_tokens: int, context: int) -> int:
    """Bytes that a decode step must move: weights once (of experts, those that so many random
    choices meet), slot states read and written, keys and values of the context."""
    names = [
        each.name for each in plan.parameters
        if each.kind != "table" and not each.name.startswith(("mtp/", "proposal/"))
    ]
    experts = plan.operations.get("num_experts", 0)
    met = 1.0
    if experts:
        met -= (1 - plan.operations["experts_per_token"] / experts) ** num_tokens
    routed = stored_tensors(plan.artifact, [name for name in names if "/experts/" in name])
    fixed = stored_tensors(plan.artifact, [name for name in names if "/experts/" not in name])
    weights = sum(each.bytes for each in fixed) + met * sum(each.bytes for each in routed)
    slots = sum(
        spec.layers * torch.Size(spec.shape).numel() * getattr(torch, spec.dtype).itemsize
        for spec in plan.states if isinstance(spec, SlotStateSpec)
    )
    per_token = kv_bytes_per_token(plan)
    return int(weights + num_rows * (2 * slots + context * per_token))


def chunk_flops(plan: EnginePlan, num_tokens: int, context: int) -> int:
    """Operations of a chunk of a prompt: products (of experts, those that are chosen), the head
    for one token, and attention to what is before each token."""
    sizes, total = plan.operations, 0.0
    for spec in plan.parameters:
        if spec.kind != "projection" or spec.name.startswith(("mtp/", "proposal/")):
            continue
        rows = 1 if spec.shape[0] == sizes["vocab_size"] else num_tokens
        if "/experts/" in spec.name:
            rows *= sizes["experts_per_token"] / sizes["num_experts"]
        total += 2 * rows * prod(spec.shape)
    attention = sizes["attention_flops_per_token"] * (context + num_tokens / 2)
    return round(total + num_tokens * attention)


def kv_bytes_per_token(plan: EnginePlan) -> int:
    """Of the model's own paged state."""
    own = [spec for spec in plan.states if not spec.name.startswith("mtp_")]
    return StateLayout(own, plan.kv, max_verify_rows=1).bytes_per_token


def _report(
    arguments: Namespace, synthetic: Synthetic, measured: list[Measured], build_s: float
) -> Report:
    plan = synthetic.plan
    figures = plan.hardware.figures()
    rate = figures.read_bytes_per_s
    computing = figures.flops[plan.hardware.compute_dtype]
    rows = [("step", "rows", "width", "context", "ms", "tok/s", "GB", "of the read bandwidth",
             "of the matrix rate")]
    for each in measured:
        share = each.nbytes / rate / each.seconds
        rows.append((
            each.kind, str(each.rows), str(each.width), str(each.context),
            f"{each.seconds * 1e3:.3f}", f"{each.rows * each.width / each.seconds:,.1f}",
            f"{each.nbytes / 1e9:.2f}" if each.nbytes else "",
            f"{100 * share:.1f} %" if each.nbytes else "",
            f"{100 * each.flops / computing / each.seconds:.1f} %" if each.flops else "",
        ))
    values = {
        "benchmark": "step", "model": plan.config.model, "format": arguments.format,
        "profile": plan.config.profile, "kv_dtype": plan.config.kv_dtype, "build_s": build_s,
        "read_bytes_per_s": rate,
        "kernels": sorted({choice.spec.name for choice in synthetic.kernels}),
        "steps": [
            {"kind": each.kind, "rows": each.rows, "width": each.width, "context": each.context,
             "seconds": each.seconds, "bytes": each.nbytes, "flops": each.flops}
            for each in measured
        ],
    }
    heading = (f"{plan.config.model} {arguments.format or ''}, KV {plan.config.kv_dtype}, on "
               f"{figures.name} ({rate / 1e12:.2f} TB/s); built in {build_s:.1f} s")
    return Report(values, {heading: rows})
