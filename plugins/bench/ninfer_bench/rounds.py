"""``ninfer bench engine rounds``: cycles of a whole engine on a model with random weights."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterator
from functools import partial

import torch
from attrs import asdict, frozen

from ninfer_bench.device_time import clocked_steps, idle_share
from ninfer_bench.forced import ForcedJudge
from ninfer_bench.report import Report, percent
from ninfer_bench.step_work import draft_bytes, step_bytes
from ninfer_bench.stepping import wait_for
from ninfer_bench.synthetic import Sizes, Synthetic, build, make_plan, titled
from ninfer_bench.synthetic_engine import engine_on
from ninfer_core.api import PreparedPrompt, SamplingParams
from ninfer_core.cli.console import Console
from ninfer_core.config import EnginePlan, LaunchConfig
from ninfer_core.engine.engine import Engine
from ninfer_core.engine.request import GenerationRequest

WARM_UP, WATCHED = 4, 16
"""Cycles before those that are timed, and after them, for the time that the device waits."""

MOST_WIDTH = 16
"""Tokens of a decode row."""

BYTES = 250
"""Ids of prompts are below it."""


@frozen
class Measured:
    """Cycles of requests that decode.

    :ivar drafts: whether each is a round with drafts. :ivar seconds: of a cycle, on average.
    :ivar tokens: that a request gets in a cycle, on average.
    :ivar step_seconds: of it, those of the model's steps and the predictor's.
    :ivar idle: share of the time that the device did nothing, where that can be watched.
    """

    drafts: bool
    rows: int
    seconds: float
    tokens: float
    step_seconds: float
    idle: float | None

    @property
    def rate(self) -> float:
        """Tokens a second of all requests."""
        return self.rows * self.tokens / self.seconds


def run(arguments: Namespace) -> Report:
    """Plain cycles, and with a speculator rounds whose drafts are accepted as chance has it."""
    chunk = getattr(arguments, "prefill_chunk", LaunchConfig().prefill_chunk)
    reading = max(arguments.rows) * -(-arguments.context // chunk)  # while the first decode
    cycles = reading + WARM_UP + arguments.cycles + WATCHED + 4
    longest = arguments.context + MOST_WIDTH * cycles
    with Console(arguments.log_level) as console, torch.inference_mode():
        plan = make_plan(
            arguments, console.progress, Sizes(max(arguments.rows), 1, longest))
        synthetic = build(plan, plan.max_verify_rows)
        kinds = [False, True] if plan.speculator else [False]
        measured = [each for drafts in kinds for each in _measure(synthetic, arguments, drafts)]
    return _report(arguments, plan, measured)


def _measure(synthetic: Synthetic, arguments: Namespace, drafts: bool) -> Iterator[Measured]:
    most = max(arguments.rows)
    forced = partial(ForcedJudge, chance=arguments.acceptance)
    engine = engine_on(synthetic, most, drafts=drafts, judged=forced)
    for rows in arguments.rows:
        ids = [_submit(engine, arguments, row) for row in range(rows)]
        while engine.status().reading or engine.status().waiting:
            engine.step()
        _cycles(engine, WARM_UP)
        yield _timed(synthetic, engine, drafts, rows, arguments.cycles)
        for id in ids:
            engine.cancel(id)
        engine.run_until_idle()
    engine.close()
    engine.audit()


def _submit(engine: Engine, arguments: Namespace, row: int) -> int:
    prompt = tuple((7 * row + 3 * i) % BYTES for i in range(arguments.context))
    room = engine.limits.max_context - arguments.context
    drawn = SamplingParams(temperature=1.0, top_k=20, top_p=0.95, seed=row)
    sampling = drawn if arguments.sampled else SamplingParams()
    request = GenerationRequest(
        PreparedPrompt(prompt, ""), sampling, room, ignore_eos=True, use_cache=False)
    return engine.submit(request, lambda event: None)


def _cycles(engine: Engine, count: int) -> None:
    for _ in range(count):
        engine.step()


def _timed(
    synthetic: Synthetic, engine: Engine, drafts: bool, rows: int, cycles: int
) -> Measured:
    plan, device = synthetic.plan, synthetic.plan.hardware.device
    models = [synthetic.model]
    if drafts and hasattr(synthetic.model, "predictor"):
        models.append(synthetic.model.predictor)
    wait_for(plan)
    before, begin = engine.status().tokens.output, time.perf_counter()
    with clocked_steps(device, models) as in_steps:
        _cycles(engine, cycles)
        wait_for(plan)
        seconds = time.perf_counter() - begin
        tokens = engine.status().tokens.output - before
        step_seconds = in_steps()
    idle = idle_share(device, partial(_cycles, engine, WATCHED))
    return Measured(
        drafts, rows, seconds / cycles, tokens / cycles / rows, step_seconds / cycles, idle)


def predicted_gain(plan: EnginePlan, rows: int, context: int, chance: float) -> float:
    """How many times as many tokens a second rounds give, by the bytes that they and plain steps
    must move: the model's of all drafts at once, and the predictor's of each."""
    width = plan.max_verify_rows
    tokens = sum(chance**position for position in range(width))
    plain = step_bytes(plan, rows, rows, context)
    verify = step_bytes(plan, rows, rows * width, context)
    return tokens * plain / (verify + (width - 1) * draft_bytes(plan, rows, context))


def _report(arguments: Namespace, plan: EnginePlan, measured: list[Measured]) -> Report:
    plain = {each.rows: each for each in measured if not each.drafts}
    rows = [("cycles", "requests", "ms", "tok/s", "tokens a request", "in steps ms",
             "beside them us", "share", "device idle", "gain", "predicted", "of it")]
    found = []
    for each in measured:
        gain = each.rate / plain[each.rows].rate if each.drafts else None
        predicted = predicted_gain(
            plan, each.rows, arguments.context, arguments.acceptance) if each.drafts else None
        beside = each.seconds - each.step_seconds
        rows.append((
            "with drafts" if each.drafts else "plain", str(each.rows),
            f"{each.seconds * 1e3:.3f}", f"{each.rate:,.1f}", f"{each.tokens:.2f}",
            f"{each.step_seconds * 1e3:.3f}", f"{beside * 1e6:.0f}",
            percent(beside, each.seconds),
            "" if each.idle is None else f"{100 * each.idle:.1f} %",
            f"{gain:.2f}" if gain else "", f"{predicted:.2f}" if predicted else "",
            percent(gain, predicted) if gain and predicted else "",
        ))
        found.append({**asdict(each), "tokens_per_s": each.rate, "gain": gain,
                      "predicted_gain": predicted})
    values = {
        "benchmark": "engine rounds", "model": plan.config.model, "format": arguments.format,
        "layers": arguments.layers, "profile": plan.config.profile,
        "kv_dtype": plan.config.kv_dtype, "spec": plan.config.spec,
        "drafts": plan.max_verify_rows - 1, "acceptance": arguments.acceptance,
        "sampled": arguments.sampled, "context": arguments.context, "runs": found,
    }
    heading = (f"{titled(arguments, plan)}, KV {plan.config.kv_dtype}, "
               f"{arguments.cycles} cycles behind {arguments.context} tokens"
               + (f"; {plan.max_verify_rows - 1} drafts of {plan.config.spec}, each accepted with "
                  f"{arguments.acceptance:g} behind those before it" if plan.speculator else ""))
    return Report(values, {heading: rows})
