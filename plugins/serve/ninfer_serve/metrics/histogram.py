"""How often a measure fell where."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from ninfer_serve.metrics.exposition import Family, Sample, labels_of

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000)
SHORT_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1, 2.5)
TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144)


class Histogram:
    """A Prometheus histogram. Belongs to one thread.

    :param bounds: upper ends of its buckets, ascending; another bucket takes the rest.
    """

    def __init__(self, name: str, about: str, bounds: Sequence[float]) -> None:
        self._name, self._about, self._bounds = name, about, bounds
        self._labels = [labels_of({"le": each}) for each in (*map(float, bounds), "+Inf")]
        self._counts, self._sum = [0] * len(self._labels), 0.0

    def observe(self, value: float) -> None:
        """Count one more."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def family(self) -> Family:
        """As Prometheus takes it: each bucket counts what is below it, too."""
        totals = [*accumulate(self._counts)]
        return Family(self._name, self._about, "histogram", [
            *(Sample(*each, "_bucket") for each in zip(totals, self._labels, strict=True)),
            Sample(totals[-1], suffix="_count"), Sample(self._sum, suffix="_sum"),
        ])
