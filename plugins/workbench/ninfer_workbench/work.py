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
    :ivar host_bytes: that come from host memory.
    :ivar exchanges: with other machines, of ``link_bytes`` altogether that each sends.
    """

    nbytes: int = 0
    flops: Mapping[str, int] = field(factory=dict)
    launches: int = 0
    host_bytes: int = 0
    exchanges: int = 0
    link_bytes: int = 0

    def __add__(self, other: Work) -> Work:
        """Both in one step."""
        flops = Counter(self.flops) + Counter(other.flops)
        return Work(
            self.nbytes + other.nbytes, flops, self.launches + other.launches,
            self.host_bytes + other.host_bytes, self.exchanges + other.exchanges,
            self.link_bytes + other.link_bytes,
        )

    def seconds(self, figures: MachineFigures) -> float:
        """Reading, copying from the host and computing overlap; launches and exchanges do not."""
        computing = sum(flops / figures.flops[dtype] for dtype, flops in self.flops.items())
        reading = self.nbytes / figures.read_bytes_per_s
        copying = self.host_bytes / figures.host_bytes_per_s if self.host_bytes else 0.0
        seconds = max(reading, computing, copying) + self.launches * figures.launch_s
        if not self.exchanges:
            return seconds
        exchanging = self.link_bytes / figures.link_bytes_per_s
        return seconds + self.exchanges * figures.exchange_s + exchanging

    def arithmetic(self, figures: MachineFigures) -> str:
        """How `seconds` comes about."""
        computing = " + ".join(
            f"{flops:,} FLOP / {figures.flops[dtype] / 1e9:,.1f} GFLOP/s"
            for dtype, flops in self.flops.items()
        )
        reading = f"{self.nbytes:,} B / {figures.read_bytes_per_s / 1e9:,.1f} GB/s"
        host, link = figures.host_bytes_per_s / 1e9, figures.link_bytes_per_s / 1e9
        copying = f", {self.host_bytes:,} B / {host:,.1f} GB/s" if self.host_bytes else ""
        exchanging = (
            f" + {self.exchanges} x {figures.exchange_s * 1e6:.2f} us"
            f" + {self.link_bytes:,} B / {link:,.1f} GB/s" if self.exchanges else ""
        )
        return (f"max({reading}, {computing}{copying}) "
                f"+ {self.launches} x {figures.launch_s * 1e6:.2f} us{exchanging}")
