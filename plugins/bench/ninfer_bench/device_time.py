"""How long a device computes, and how long it waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

from ninfer_bench.stopwatch import Stopwatch
from ninfer_core.engine.graphs import CapturedForward

Span = tuple[float, float]
Mark = tuple[Any, Any, Any]
"""What was captured, and events of the device before and behind a step of it."""


@contextmanager
def marked_steps() -> Iterator[list[Mark]]:
    """Captured steps on a GPU meanwhile, in order."""
    marks: list[Mark] = []
    replay = CapturedForward.__call__

    def marked(self: CapturedForward[Any], batch: Any) -> Any:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        result = replay(self, batch)
        end.record()
        marks.append((self, begin, end))
        return result

    with mock.patch.object(CapturedForward, "__call__", marked):
        yield marks


@contextmanager
def clocked_steps(device: str, models: Sequence[Any]) -> Iterator[Callable[[], float]]:
    """Seconds that steps take meanwhile: on a GPU captured ones, by its own clock, else the
    ``forward`` of these models; to be asked for once, behind the last of them."""
    if device != "cuda":
        watch = Stopwatch()
        with watch.watching([("steps", model, "forward") for model in models]):
            yield lambda: watch.spent["steps"] / 1e9
        return
    with marked_steps() as marks:
        yield lambda: sum(took_s(marks).values())


def took_s(marks: Sequence[Mark]) -> dict[Any, float]:
    """Seconds of all steps of each that was captured; waits for the last."""
    torch.cuda.synchronize()
    found: dict[Any, float] = {}
    for captured, begin, end in marks:
        found[captured] = found.get(captured, 0.0) + begin.elapsed_time(end) / 1e3
    return found


def idle_share(device: str, run: Callable[[], object]) -> float | None:
    """Of the time from the first to the last thing that a GPU does in a run: how much of it it does
    nothing. Being watched costs the host some time, so that it is less when nobody watches."""
    if device != "cuda":
        run()
        return None
    return share_between([(begin, end) for _, begin, end in _watched(run)])


def launches(device: str, run: Callable[[], object]) -> dict[str, tuple[int, float]]:
    """How often a GPU runs each kernel in a run, and seconds of all that; {} without a GPU."""
    found: dict[str, tuple[int, float]] = {}
    for name, begin, end in _watched(run) if device == "cuda" else ():
        count, seconds = found.get(name, (0, 0.0))
        found[name] = count + 1, seconds + (end - begin) / 1e6
    return dict(sorted(found.items(), key=lambda item: -item[1][1]))


def _watched(run: Callable[[], object]) -> list[tuple[str, float, float]]:
    """Names, begins and ends (us) of what a GPU does."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as watched:
        run()
        torch.cuda.synchronize()
    return [
        (each.name, each.time_range.start, each.time_range.end) for each in watched.events()
        if each.device_type == DeviceType.CUDA
    ]


def share_between(spans: Sequence[Span]) -> float:
    """Of the time from the first begin to the last end, what is in no span; 0 without any."""
    ordered, covered, reached = sorted(spans), 0.0, -torch.inf
    for begin, end in ordered:
        covered += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    whole = reached - ordered[0][0] if ordered else 0.0
    return 1 - covered / whole if whole else 0.0
