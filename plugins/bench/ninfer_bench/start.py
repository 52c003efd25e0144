"""``ninfer bench start``: from files of a model of real dimensions to an engine that answers."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Self

import torch
from attrs import evolve, frozen

from ninfer_bench.device_time import Mark, marked_steps, took_s
from ninfer_bench.report import Report, percent
from ninfer_bench.written import read_through, write_random
from ninfer_core.api import ConfigError, PreparedPrompt, Progress, SamplingParams
from ninfer_core.artifact.container import open_artifact
from ninfer_core.cli.console import Console
from ninfer_core.cli.launch import prepare_catalogue
from ninfer_core.config import EnginePlan, resolve
from ninfer_core.engine.load import LoadedEngine, load_engine
from ninfer_core.engine.request import Event, Finished, GenerationRequest

LEDGER_TOLERANCE = 0.02
"""Of the ledger: what may be allocated beyond it."""


@frozen(eq=False)
class Started:
    """An engine, and how it came to be. :ivar phases: seconds by phase, all of ``seconds`` in sum.
    """

    plan: EnginePlan
    loaded: LoadedEngine
    seconds: float
    phases: dict[str, float]


@frozen
class OnDevice:
    """Of a decode cycle, on average: seconds of the model's step, of the predictor's, and between
    them, when the device has neither."""

    model: float = 0.0
    predictor: float = 0.0
    gap: float = 0.0

    @classmethod
    def of(cls, marks: Sequence[Mark], model: Any) -> Self:
        """From what was captured, from the model's first step on."""
        first = next((i for i, (each, *_) in enumerate(marks) if each is model), len(marks))
        marks = marks[first:]
        if not marks:
            return cls()
        seconds, count = took_s(marks), sum(each is model for each, *_ in marks)
        own, between = seconds.pop(model), pairwise(marks)
        gaps = sum(end.elapsed_time(begin) for (*_, end), (_, begin, _) in between) / 1e3
        return cls(own / count, sum(seconds.values()) / count, gaps / count)


@frozen(eq=False)
class Answered:
    """One request. :ivar cycles: seconds of each cycle. :ivar device: on a GPU."""

    end: Finished
    cycles: list[float]
    device: OnDevice


def run(arguments: Namespace) -> Report:
    """Write the weights if the file is not there, start, read a prompt, decode. What cannot be
    started is refused before anything is written."""
    with Console(arguments.log_level) as console:
        started = _start(arguments, console.progress)
        loaded = _peak()
        answered = _answer(started, arguments.prompt_tokens, arguments.output_tokens)
        running = _peak()
    return _report(arguments, started, answered, loaded, running)


def _start(arguments: Namespace, progress: Progress) -> Started:
    config, report, artifact = prepare_catalogue(arguments, progress)
    path: Path = arguments.weights
    room = arguments.prompt_tokens + arguments.output_tokens
    config = evolve(config, model=str(path), max_context=config.max_context or room + 64)
    planned = _within(resolve(config, report, absent=True, artifact=artifact), arguments)
    if not path.exists():
        write_random(artifact, path, report.registry, planned.hardware.device, progress)
    read_through(path)
    plan = _within(resolve(config, report, artifact=open_artifact(path)), arguments)
    if plan.hardware.device == "cuda":
        if arguments.memory:
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, arguments.memory / total))
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    phases: dict[str, float] = {}
    begin = last = time.perf_counter()

    def clocked(phase: str, done: int, total: int) -> None:
        nonlocal last
        now = time.perf_counter()
        phases[phase] = phases.get(phase, 0.0) + now - last
        last = now
        progress(phase, done, total)

    loaded = load_engine(plan, clocked)
    seconds = time.perf_counter() - begin
    return Started(plan, loaded, seconds, phases)


def _within(plan: EnginePlan, arguments: Namespace) -> EnginePlan:
    """A plan that has no more memory than was asked for.

    :raises CapacityError: if it needs more. :raises ConfigError: if the prompt is too long for it.
    """
    longest = plan.config.max_context
    assert longest is not None
    if arguments.prompt_tokens >= longest:
        raise ConfigError(
            f"a prompt of {arguments.prompt_tokens} tokens is too long", where="--prompt-tokens",
            why=f"with an answer it does not go into a sequence of {longest}",
            fix="ask for fewer, or raise --max-context")
    if not arguments.memory:
        return plan
    ledger = evolve(plan.ledger, budget_bytes=min(arguments.memory, plan.ledger.budget_bytes),
                    budget_source="asked for by --memory")
    ledger.check()
    return evolve(plan, ledger=ledger)


def _answer(started: Started, prompt_tokens: int, output_tokens: int) -> Answered:
    """A prompt of random bytes, and greedy tokens after it."""
    engine, vocab_size = started.loaded.engine, 250
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, vocab_size, (prompt_tokens,), generator=generator).tolist()
    prompt = PreparedPrompt(tuple(ids), text="")
    events: list[Event] = []
    request = GenerationRequest(prompt, SamplingParams(), output_tokens, ignore_eos=True)
    engine.submit(request, events.append)
    cycles: list[float] = []
    with _marks(started) as marks:
        begin, goes_on = time.perf_counter(), True
        while goes_on:
            goes_on = engine.step()
            now = time.perf_counter()
            cycles.append(now - begin)
            begin = now
    end = events[-1]
    assert isinstance(end, Finished)
    device = OnDevice.of(marks, engine._execution._runner._forward)
    return Answered(end, cycles[-_decode_cycles(end):], device)


def _decode_cycles(end: Finished) -> int:
    """Cycles that gave all tokens but the first."""
    usage = end.usage
    return max(1, usage.output_tokens - 1 - usage.accepted_tokens)


@contextmanager
def _marks(started: Started) -> Iterator[list[Mark]]:
    """Of captured steps, if there are any."""
    if started.plan.hardware.device != "cuda":
        yield []
        return
    with marked_steps() as marks:
        yield marks


def _peak() -> int:
    """Most bytes of tensors on the device so far; 0 without one."""
    return torch.cuda.max_memory_allocated() if torch.cuda.is_initialized() else 0


def _report(
    arguments: Namespace, started: Started, answered: Answered, loaded: int, running: int
) -> Report:
    plan, end = started.plan, answered.end
    ledger, times = plan.ledger.total_bytes, end.timings
    cycle, device = median(answered.cycles[1:] or answered.cycles), answered.device
    beyond = running / ledger - 1
    lines = {line.name: line.nbytes for line in plan.ledger.lines}
    values: dict[str, Any] = {
        "benchmark": "start", "model": plan.config.model, "profile": plan.config.profile,
        "kv_dtype": plan.config.kv_dtype, "max_context": plan.config.max_context,
        "spec": plan.config.spec, "start_s": started.seconds, "phases_s": started.phases,
        "ledger_bytes": ledger, "ledger": lines, "peak_loading_bytes": loaded,
        "peak_bytes": running, "prompt_tokens": times.prefill_tokens,
        "prefill_s": times.prefill_s, "output_tokens": end.usage.output_tokens,
        "decode_s": times.decode_s, "cycle_s": cycle, "model_s": device.model,
        "predictor_s": device.predictor, "gap_s": device.gap,
        "rounds": end.usage.rounds, "accepted": end.usage.accepted_tokens,
    }
    phases = ", ".join(f"{name} {seconds:.1f}" for name, seconds in started.phases.items())
    rows = [
        ("start", f"{started.seconds:.1f} s", phases),
        ("ledger", f"{ledger:,} B", ", ".join(f"{name} {n:,}" for name, n in lines.items())),
        ("allocated at most", f"{running:,} B",
         f"{100 * beyond:+.2f} % of the ledger; while loading {loaded:,}" if running else "no GPU"),
        ("prompt", f"{times.prefill_tokens} tokens in {times.prefill_s:.2f} s",
         f"{times.prefill_tokens / max(times.prefill_s, 1e-9):,.0f} tok/s"),
        ("decode", f"{end.usage.output_tokens} tokens in {times.decode_s:.2f} s",
         f"a cycle takes {cycle * 1e3:.2f} ms, of which the model {device.model * 1e3:.2f} and "
         f"drafts {device.predictor * 1e3:.2f}"),
        ("device without either", f"{device.gap * 1e6:.0f} us a cycle",
         percent(device.gap, cycle)),
    ]
    problems = [str(end.cause)] if end.cause else []
    if beyond > LEDGER_TOLERANCE:
        problems.append(f"{running:,} B were allocated, and the ledger has {ledger:,}")
    config, model = plan.config, arguments.model or "the default model"
    heading = f"{model} on profile {config.profile}, KV {config.kv_dtype}"
    return Report(values, {heading: rows}, tuple(problems))
