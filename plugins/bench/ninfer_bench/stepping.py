"""Steps of random sequences, and the time they take."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from statistics import median
from typing import TypeVar

import torch

from ninfer_bench.synthetic import Synthetic
from ninfer_core.config import EnginePlan
from ninfer_core.engine.graphs import CapturedForward
from ninfer_core.engine.load import can_capture
from ninfer_core.state.batch import BatchBuilder, Row
from ninfer_core.state.step import PAGE_TOKENS, StepBatch

T = TypeVar("T")

MIN_SECONDS, MIN_RUNS, WARM_UP = 0.3, 5, 2


def batch_builder(plan: EnginePlan, num_rows: int, num_tokens: int) -> BatchBuilder:
    """Of steps of at most so many rows and tokens."""
    assert plan.config.max_context is not None
    return BatchBuilder(
        max_rows=num_rows, max_tokens=num_tokens, max_logits=num_tokens,
        max_pages=-(-plan.config.max_context // PAGE_TOKENS), device=plan.hardware.device,
    )


class sequences:
    """Sequences with room for so many tokens: as callables that make their rows."""

    def __init__(self, synthetic: Synthetic, count: int, num_tokens: int) -> None:
        self._store, self._count, self._tokens = synthetic.store, count, num_tokens

    def __enter__(self) -> list[Callable[..., Row]]:
        self._states = [self._store.open() for _ in range(self._count)]
        for state in self._states:
            self._store.grow(state, self._tokens)
        return [self._row(index) for index in range(self._count)]

    def _row(self, index: int) -> Callable[..., Row]:
        def row(begin: int, count: int, num_logits: int | None = None) -> Row:
            ids = [(7 * index + i) % 1000 for i in range(count)]
            return Row(index, self._states[index], begin, ids, num_logits or count,
                       certain=num_logits is not None or count == 1)

        return row

    def __exit__(self, *error: object) -> None:
        for state in self._states:
            self._store.close(state)


def step_of(
    synthetic: Synthetic, batch: StepBatch, forward: Callable[[StepBatch], T],
) -> Callable[[], T]:
    """See `steps_of`, of one batch."""
    return partial(steps_of(synthetic, [lambda: batch], forward), batch)


def steps_of(
    synthetic: Synthetic, batches: Iterable[Callable[[], StepBatch]],
    forward: Callable[[StepBatch], T],
) -> Callable[[StepBatch], T]:
    """Steps as the engine would run them: of the sizes of these batches by captured graphs if all
    kernels may be in one, and none is asked for by ``--eager``."""
    plan, is_safe = synthetic.plan, can_capture(synthetic.kernels)
    if plan.hardware.device != "cuda" or not is_safe or plan.config.eager:
        return forward
    captured = CapturedForward(forward)
    for batch in batches:
        captured.capture(batch())
    return captured


def repeated(plan: EnginePlan, calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
    """All of them at once: on a GPU as a graph, so that launching takes no time of the host."""
    def all_of_them() -> None:
        for call in calls:
            call()

    if plan.hardware.device != "cuda":
        return all_of_them
    all_of_them()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        all_of_them()
    return graph.replay


def timed(
    plan: EnginePlan, call: Callable[[], object], min_seconds: float | None = None
) -> float:
    """Median seconds of a call."""
    for _ in range(WARM_UP):
        call()
    seconds: list[float] = []
    least = MIN_SECONDS if min_seconds is None else min_seconds
    while len(seconds) < MIN_RUNS or sum(seconds) < least:
        wait_for(plan)
        begin = time.perf_counter()
        call()
        wait_for(plan)
        seconds.append(time.perf_counter() - begin)
    return median(seconds)


def wait_for(plan: EnginePlan) -> None:
    """Let the device end what it has."""
    if plan.hardware.device == "cuda":
        torch.cuda.synchronize()
