"""Figures of two DGX Sparks that share every step, for `ninfer plan` alone: no engine of this
project shares a step between machines yet.

Each has the figures of one. Of their link others report:

Rate
    196 Gbit/s over both PCIe lanes of one QSFP port (107.6 over one).
Exchanges
    41 us for a sum in a captured step, staged in host memory, since this chip has no GPUDirect RDMA
    (four machines; 2.5 us is the latency of two bytes, 91 us a small all-gather of NCCL).
"""

from __future__ import annotations

from attrs import evolve, frozen

from ninfer_core.api import Detection, UnsupportedError
from ninfer_nvidia.card import NvidiaCard
from ninfer_profile_dgx_spark.profile import CARD, FIGURES, RESERVE_BYTES

DUAL_FIGURES = evolve(
    FIGURES, name="two DGX Sparks, each", ranks=2, link_bytes_per_s=196e9 / 8, exchange_s=41e-6
)


@frozen
class PlannedCard(NvidiaCard):
    """A card that is only planned for."""

    def prepare(self, num_threads: int | None) -> None:
        raise _planned_only()

    def memory_budget(self) -> int:
        raise _planned_only()


def detect() -> Detection:
    """Never: nothing runs on it."""
    return Detection(None, "for `ninfer plan` alone: no engine shares a step between machines")


def profile() -> PlannedCard:
    return PlannedCard(
        "dual_spark", (CARD,), capability=121, default_kv_dtype="fp8", card=DUAL_FIGURES,
        reserve_bytes=RESERVE_BYTES, shares_memory=True,
    )


def _planned_only() -> UnsupportedError:
    return UnsupportedError(
        "profile dual_spark cannot run", why="no engine of this project shares a step yet",
        fix="use --profile dgx_spark; `ninfer plan MODEL --profile dual_spark` works anywhere",
    )
