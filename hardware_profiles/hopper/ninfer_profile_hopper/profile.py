"""Figures of one H200 (sm_90), measured with torch 2.11, Triton 3.6 and driver 580.159.

Memory
    150,109,880,320 B as the driver reports, less 2 GiB: a bare context has 0.5 GiB, graphs and
    headroom the rest.
Reading
    4.62 to 4.67 TB/s: a Triton kernel that sums 4 and 6 GiB of integers, `do_bench` median (the
    data sheet has 4.8).
Matrix rates
    bf16: 769 to 798 TFLOP/s for a product of 8192^3 (684 when it is repeated for half a second);
    FP8: 1,230 by `torch._scaled_mm` of the same size. There is no FP4.
Launches
    2.6 us: what the best FP8 products of 1 to 8 rows take beside their bytes (4-bit ones 3.2 to
    4.7; an empty kernel of a captured graph 0.5 to 0.9).
Host
    55 GB/s over PCIe 5.0 x16, not measured: what others report of such a link.
KV
    bf16: memory is plenty, and it is exact.
"""

from __future__ import annotations

from ninfer_core.api import Detection, MachineFigures
from ninfer_nvidia.card import NvidiaCard, detect_card

CARD = "NVIDIA H200"
TOTAL_BYTES = 150_109_880_320
RESERVE_BYTES = 2 << 30

FIGURES = MachineFigures(
    name=CARD,
    memory_bytes=TOTAL_BYTES - RESERVE_BYTES,
    read_bytes_per_s=4.62e12,
    flops={"bfloat16": 770e12, "float8_e4m3fn": 1230e12},
    launch_s=2.6e-6,
    source="measured on one card",
    host_bytes_per_s=55e9,
)


def detect() -> Detection:
    """The H200 alone: other cards of the generation have other memory."""
    return detect_card((CARD,))


def profile() -> NvidiaCard:
    return NvidiaCard(
        "hopper", (CARD,), capability=90, default_kv_dtype="bf16", card=FIGURES,
        reserve_bytes=RESERVE_BYTES,
    )
