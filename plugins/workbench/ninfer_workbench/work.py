"""What a step asks of a machine, and how long a perfect one takes for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from attrs import field, frozen

from ninfer_core.api import MachineFigures


@frozen(eq=False)
class Work:
    """One step.

    :ivar nbytes: that it reads and writes. :ivar flops: by activation dtype.
    """

    nbytes: int = 0
    flops: Mapping[str, int] = field(factory=dict)
    launches: int = 0

    def __add__(self, other: Work) -> Work:
        """Both in one step."""
        flops = Counter(self.flops) + Counter(other.flops)
        return Work(self.nbytes + other.nbytes, flops, self.launches + other.launches)

    def seconds(self, figures: MachineFigures) -> float:
        """Reading and computing overlap, launches do not."""
        computing = sum(flops / figures.flops[dtype] for dtype, flops in self.flops.items())
        reading = self.nbytes / figures.read_bytes_per_s
        return max(reading, computing) + self.launches * figures.launch_s

    def arithmetic(self, figures: MachineFigures) -> str:
        """How `seconds` comes about."""
        computing = " + ".join(
            f"{flops:,} FLOP / {figures.flops[dtype] / 1e9:,.1f} GFLOP/s"
            for dtype, flops in self.flops.items()
        )
        return (f"max({self.nbytes:,} B / {figures.read_bytes_per_s / 1e9:,.1f} GB/s, {computing}) "
                f"+ {self.launches} x {figures.launch_s * 1e6:.2f} us")
