"""Resident memory over time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from attrs import frozen

from ninfer_bench.report import quantile

STATUS = Path("/proc/self/status")
EVERY_S = 0.5
SLACK_BYTES, SLACK_SHARE = 8 << 20, 0.02
"""What memory may grow by between the second and the last quarter of a run."""


def resident_bytes() -> int | None:
    """Of this process, now; None where the system does not say."""
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return None
    sizes = (line.split()[1] for line in lines if line.startswith("VmRSS:"))
    return next((int(size) * 1024 for size in sizes), None)


@frozen
class Residents:
    """Medians of the quarters of a run, in bytes; 0 where the system says nothing."""

    quarters: tuple[float, ...]

    @classmethod
    def of(cls, samples: Sequence[int]) -> Residents:
        """From samples at regular times."""
        cuts = [len(samples) * part // 4 for part in range(5)]
        quarters = (samples[a:b] for a, b in pairwise(cuts))
        return cls(tuple(quantile(each, 0.5) for each in quarters))

    @property
    def growth(self) -> float:
        """From the second quarter, when all is warm, to the last."""
        return self.quarters[3] - self.quarters[1]

    @property
    def is_flat(self) -> bool:
        """Whether nothing seems to leak."""
        return self.growth <= max(SLACK_BYTES, SLACK_SHARE * self.quarters[1])


def sample_until(is_over: Callable[[], bool]) -> list[int]:
    """Samples until something is over."""
    samples = []
    while not is_over():
        samples.append(resident_bytes() or 0)
        time.sleep(EVERY_S)
    return samples
