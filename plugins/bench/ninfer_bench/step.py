"""``ninfer bench step``: whole steps of a model of real dimensions with random weights."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, cast

import torch
from attrs import asdict, evolve, field, frozen

from ninfer_bench.device_time import launches
from ninfer_bench.limits import matrix_rates
from ninfer_bench.report import Report
from ninfer_bench.step_work import chunk_flops, draft_bytes, kv_bytes_per_token, step_bytes
from ninfer_bench.stepping import batch_builder, sequences, step_of, steps_of, timed, wait_for
from ninfer_bench.synthetic import Sizes, Synthetic, build, make_plan, titled
from ninfer_core.api import ConfigError, PredictingModel
from ninfer_core.cli.console import Console
from ninfer_core.config import EnginePlan
from ninfer_core.engine.load import bind_judge
from ninfer_core.state.batch import Row
from ninfer_core.state.step import StepBatch


@frozen
class Measured:
    """One kind of step.

    :ivar kind: ``decode``; ``draft`` of the model's own predictor; ``prefill`` of a chunk behind a
        context; ``prompt``, whole, from its begin.
    :ivar width: tokens of a row or chunk. :ivar context: tokens before the step.
    :ivar tokens: of all that was timed. :ivar seconds: median.
    :ivar nbytes: that a decode step must read and write. :ivar flops: of matrix products.
    :ivar launches: of one step, kernels to how often they run and seconds of it, if asked for.
    """

    kind: str
    rows: int
    width: int
    context: int
    tokens: int
    seconds: float = 0.0
    nbytes: int = 0
    flops: int = 0
    launches: dict[str, tuple[int, float]] = field(factory=dict)


Look = Callable[[EnginePlan, Callable[[], object]], dict[str, Any]]
"""At a step: what of `Measured` is known by it."""


def run(arguments: Namespace) -> Report:
    """Decode and verify steps of every asked size, and drafts where a predictor makes some, by
    graphs where there are any; then contexts one by one, chunks, and whole prompts.

    :raises ConfigError: for a prompt without the size of its chunks, launches without a GPU.
    """
    if arguments.prompt and not arguments.prefill:
        raise ConfigError("--prompt needs --prefill", why="a prompt is read in chunks of that size",
                          fix="give --prefill 512 too")
    with Console(arguments.log_level) as console, torch.inference_mode():
        plan = make_plan(arguments, console.progress, _sizes(arguments))
        if arguments.launches and plan.hardware.device != "cuda":
            raise ConfigError(
                "--launches needs a GPU", where=f"profile {plan.config.profile}",
                why="kernels are clocked by the driver of a GPU", fix="leave --launches out")
        start = time.perf_counter()
        synthetic = build(plan, max(arguments.widths))
        wait_for(plan)
        build_s = time.perf_counter() - start
        measured = list(_measure(synthetic, arguments, _timed))
        if arguments.launches:  # once a trace was taken, the host is slower for good
            traced = _measure(synthetic, arguments, _traced)
            measured = [evolve(each, launches=other.launches)
                        for each, other in zip(measured, traced, strict=True)]
        reads = any(each.flops for each in measured)
        rates = matrix_rates(plan) if reads else {}
    return _report(arguments, synthetic, measured, rates, build_s)


def _sizes(arguments: Namespace) -> Sizes:
    width, deepest = max(arguments.widths), max(arguments.contexts)
    chunk = max(arguments.prefill, default=0)
    alone = [deepest + chunk, arguments.prompt, *(n + 1 for n in arguments.sweep)]
    return Sizes(max(arguments.rows), width, deepest + width, max(alone), chunk)


def _timed(plan: EnginePlan, step: Callable[[], object]) -> dict[str, Any]:
    return {"seconds": timed(plan, step)}


def _traced(plan: EnginePlan, step: Callable[[], object]) -> dict[str, Any]:
    return {"launches": launches(plan.hardware.device, step)}


def _measure(synthetic: Synthetic, arguments: Namespace, look: Look) -> Iterator[Measured]:
    for context in arguments.contexts:
        for num_rows in arguments.rows:
            for width in arguments.widths:
                yield _decode(synthetic, num_rows, width, context, look)
            if synthetic.plan.speculator and getattr(synthetic.model, "predictor", None):
                yield _draft(synthetic, num_rows, context, look)
        for chunk in arguments.prefill:
            yield _prefill(synthetic, chunk, context, look)
    for context in arguments.sweep:
        yield _decode(synthetic, 1, 1, context, look)
    if arguments.prompt:
        for chunk in arguments.prefill:
            yield _prompt(synthetic, chunk, arguments.prompt, look)


def _decode(
    synthetic: Synthetic, num_rows: int, width: int, context: int, look: Look
) -> Measured:
    plan, tokens = synthetic.plan, num_rows * width
    batches = batch_builder(plan, num_rows, tokens)
    with sequences(synthetic, num_rows, context + width) as rows:
        batch = batches.fill([row(context, width) for row in rows])
        seen = look(plan, step_of(synthetic, batch, synthetic.model.forward))
    nbytes = step_bytes(plan, num_rows, tokens, context)
    return Measured("decode", num_rows, width, context, tokens, nbytes=nbytes, **seen)


def _draft(synthetic: Synthetic, num_rows: int, context: int, look: Look) -> Measured:
    """A token of each sequence through the model's own predictor, and the likeliest that follow."""
    plan, model = synthetic.plan, cast(PredictingModel, synthetic.model)
    judge = bind_judge(synthetic.binder, plan.operations["vocab_size"])
    hidden, predictor = model.hidden(num_rows), model.predictor

    def draft(batch: StepBatch) -> object:
        logits, own = predictor.forward(batch, hidden)
        return own, judge.likeliest(logits, predictor.token_ids)

    with sequences(synthetic, num_rows, context + 1) as rows:
        batch = batch_builder(plan, num_rows, num_rows).fill([row(context, 1) for row in rows])
        seen = look(plan, step_of(synthetic, batch, draft))
    nbytes = draft_bytes(plan, num_rows, context)
    return Measured("draft", num_rows, 1, context, num_rows, nbytes=nbytes, **seen)


def _prefill(synthetic: Synthetic, chunk: int, context: int, look: Look) -> Measured:
    plan = synthetic.plan
    with sequences(synthetic, 1, context + chunk) as rows:
        batch = batch_builder(plan, 1, chunk).fill([rows[0](context, chunk, num_logits=1)])
        seen = look(plan, step_of(synthetic, batch, synthetic.model.forward))
    flops = chunk_flops(plan, chunk, context)
    return Measured("prefill", 1, chunk, context, chunk, flops=flops, **seen)


def _prompt(synthetic: Synthetic, chunk: int, length: int, look: Look) -> Measured:
    """A prompt chunk by chunk, without waiting between them."""
    plan = synthetic.plan
    spans = [(begin, min(chunk, length - begin)) for begin in range(0, length, chunk)]
    with sequences(synthetic, 1, length) as rows:
        read = _reader(synthetic, chunk, [rows[0](*span, num_logits=1) for span in spans])
        seen = look(plan, read)
    flops = sum(chunk_flops(plan, count, begin) for begin, count in spans)
    return Measured("prompt", 1, chunk, 0, length, flops=flops, **seen)


def _reader(synthetic: Synthetic, chunk: int, rows: Sequence[Row]) -> Callable[[], object]:
    batches = batch_builder(synthetic.plan, 1, chunk)
    pad = partial(batches.pad, 1, chunk, certain=True)
    wholes = [partial(pad, num_pages=bound) for bound in batches.page_bounds]
    forward = steps_of(synthetic, wholes, synthetic.model.forward)

    def read() -> None:
        for row in rows:
            forward(batches.fill([row]))

    return read


def added_ratio(
    plan: EnginePlan, each: Measured, measured: Sequence[Measured], bytes_per_s: float
) -> float | None:
    """What a decode step takes more than the one of the same size and the shortest context, over
    the time that reading the keys and values of the difference takes; None for that one itself."""
    alike = [other for other in measured if (other.kind, other.rows, other.width) == (
        each.kind, each.rows, each.width)]
    first = min(alike, key=lambda other: other.context)
    more = each.rows * (each.context - first.context) * kv_bytes_per_token(plan)
    if each.kind != "decode" or not more:
        return None
    return (each.seconds - first.seconds) * bytes_per_s / more


def _report(
    arguments: Namespace, synthetic: Synthetic, measured: list[Measured],
    rates: dict[str, float], build_s: float,
) -> Report:
    plan = synthetic.plan
    figures = plan.hardware.figures()
    rate = figures.read_bytes_per_s
    added = [added_ratio(plan, each, measured, rate) for each in measured]
    rows = [("step", "rows", "width", "context", "ms", "tok/s", "GB", "of the read bandwidth",
             "added over KV bytes", *(f"of {name}" for name in rates))]
    for each, more in zip(measured, added, strict=True):
        share = each.nbytes / rate / each.seconds
        rows.append((
            each.kind, str(each.rows), str(each.width), str(each.context),
            f"{each.seconds * 1e3:.3f}", f"{each.tokens / each.seconds:,.1f}",
            f"{each.nbytes / 1e9:.2f}" if each.nbytes else "",
            f"{100 * share:.1f} %" if each.nbytes else "",
            "" if more is None else f"{more:.2f}",
            *(f"{100 * each.flops / most / each.seconds:.1f} %" if each.flops else ""
              for most in rates.values()),
        ))
    values = {
        "benchmark": "step", "model": plan.config.model, "format": arguments.format,
        "layers": arguments.layers, "profile": plan.config.profile,
        "kv_dtype": plan.config.kv_dtype, "build_s": build_s, "read_bytes_per_s": rate,
        "flops": rates, "kernels": sorted({choice.spec.name for choice in synthetic.kernels}),
        "steps": [{**asdict(each), "added_over_kv": more}
                  for each, more in zip(measured, added, strict=True)],
    }
    measured_rates = ", ".join(f"{name} {most / 1e12:.2f} TFLOP/s" for name, most in rates.items())
    heading = (f"{titled(arguments, plan)}, KV {plan.config.kv_dtype}, on "
               f"{figures.name} ({rate / 1e9:,.1f} GB/s); built in {build_s:.1f} s"
               + (f"; products of large matrices: {measured_rates}" if rates else ""))
    return Report(values, {heading: rows, **_launch_tables(measured)})


def _launch_tables(measured: Sequence[Measured]) -> dict[str, list[tuple[str, ...]]]:
    """One for each step whose launches were counted."""
    return {
        f"{each.kind} {each.rows} x {each.width} at {each.context}: "
        f"{sum(count for count, _ in each.launches.values())} launches, "
        f"{1e3 * sum(seconds for _, seconds in each.launches.values()):.3f} ms": [
            ("kernel", "launches", "us", "us in all"),
            *((name[:60], str(count), f"{1e6 * seconds / count:.2f}", f"{1e6 * seconds:.1f}")
              for name, (count, seconds) in each.launches.items()),
        ]
        for each in measured if each.launches
    }
