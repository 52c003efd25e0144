"""``ninfer bench engine host``: what a step of decoding requests costs beside the model."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from time import perf_counter_ns

from attrs import frozen

from ninfer_bench.report import Report, percent, quantile
from ninfer_bench.stopwatch import Site, Stopwatch
from ninfer_bench.stub import stub_engine, submit_all
from ninfer_core.engine import commit
from ninfer_core.engine.engine import Engine
from ninfer_core.engine.request import Finished

MODEL, REST = "model", "rest"
WARM_UP = 200
"""Steps before anything is measured."""


@frozen(eq=False)
class Steps:
    """What steps took, in microseconds without the model.

    :ivar phases: with clocks around them: of each phase, one figure a step.
    """

    whole: list[float]
    phases: dict[str, list[float]]


def run(arguments: Namespace) -> Report:
    """Measure steps as they are, then again with clocks in between."""
    sizes = arguments.rows, arguments.context, arguments.steps
    plain, watched = _measure(*sizes, phases=False), _measure(*sizes, phases=True)
    median, p99 = quantile(plain.whole, 0.5), quantile(plain.whole, 0.99)
    phases = {name: (quantile(each, 0.5), quantile(each, 0.99))
              for name, each in watched.phases.items()}
    total = sum(middle for middle, _ in phases.values())
    rows = [("", "median us", "p99 us", "share"),
            ("step without the model", f"{median:.1f}", f"{p99:.1f}", ""),
            *((f"- {name}", f"{middle:.1f}", f"{last:.1f}", percent(middle, total))
              for name, (middle, last) in phases.items())]
    problems = [f"the median is {median:.1f} us, and {arguments.limit:g} are allowed"]
    values = {
        "benchmark": "engine host", "rows": sizes[0], "context": sizes[1], "steps": sizes[2],
        "median_us": median, "p99_us": p99,
        "phases_us": {name: {"median": m, "p99": p} for name, (m, p) in phases.items()},
    }
    heading = (f"{sizes[0]} requests decode at {sizes[1]} tokens of context, {sizes[2]} steps; "
               "phases are of a second run, with clocks in between")
    return Report(values, {heading: rows}, tuple(problems * (median > arguments.limit)))


def _measure(rows: int, context: int, steps: int, *, phases: bool) -> Steps:
    engine, model = stub_engine(rows, context, WARM_UP + steps + 2)
    sinks = submit_all(engine, rows, context, WARM_UP + steps + 2)
    watch = Stopwatch()
    sites = _sites(engine) if phases else []
    names = dict.fromkeys(phase for phase, _, _ in sites)
    with watch.watching([(MODEL, model, "forward"), *sites]):
        step = watch.timed(REST, engine.step)
        while not all(sinks):
            step()
        for _ in range(WARM_UP):
            step()
        measured = Steps([], {phase: [] for phase in (*names, REST)})
        for _ in range(steps):
            _take(measured, watch, step)
    engine.run_until_idle()
    engine.audit()
    ends = [sink[-1] for sink in sinks]
    assert all(isinstance(end, Finished) and not end.cause for end in ends)
    return measured


def _take(measured: Steps, watch: Stopwatch, step: Callable[[], bool]) -> None:
    """Measure a step."""
    watch.spent.clear()
    begin = perf_counter_ns()
    step()
    measured.whole.append((perf_counter_ns() - begin - watch.spent[MODEL]) / 1000)
    for name, found in measured.phases.items():
        found.append(watch.spent[name] / 1000)


def _sites(engine: Engine) -> list[Site]:
    """What a step of the engine consists of."""
    execution = engine._execution
    return [
        ("look for ends and cancels", engine, "_end_early"),
        ("plan", engine, "_arrange"),
        ("grant pages", engine, "_grant"),
        ("say how to sample", execution, "_propose"),
        ("build the batch", execution._runner, "decode"),
        ("sample and verify", execution._judge, "verify"),
        ("settle", execution, "_settle"),
        ("preview: text, stops, limits", commit, "preview"),
        ("accept", commit, "accept"),
        ("publish", commit, "publish"),
    ]
