"""Figures of the DGX Spark (GB10, sm_121). Nothing here was measured by this project.

Memory
    CPU and GPU share it. About 121 GiB are usable, of which the reference engine's port leaves
    6 GiB to the system.
Reading
    246 GB/s measured by others, of the data sheet's 273.
Matrix rates
    62, 125 and 500 TFLOP/s for bf16, FP8 and FP4: a fourth of what the 5090 has, unverified. With
    Triton 3.6 only bf16 is native there. A clock that is capped at 2.2 GHz costs 15 to 35 %.
Launches
    3 us beside the bytes of a kernel: inferred from the ramp of the same kernels on an H200.
KV
    FP8: memory is plenty and bandwidth is not.
"""

from __future__ import annotations

from ninfer_core.api import Detection, MachineFigures
from ninfer_nvidia.card import NvidiaCard, detect_card

CARD = "NVIDIA GB10"
TOTAL_BYTES = 121 << 30
RESERVE_BYTES = 6 << 30

FIGURES = MachineFigures(
    name=f"DGX Spark ({CARD})",
    memory_bytes=TOTAL_BYTES - RESERVE_BYTES,
    read_bytes_per_s=246e9,
    flops={"bfloat16": 62e12, "float8_e4m3fn": 125e12, "float4_e2m1fn_x2": 500e12},
    launch_s=3e-6,
    source="published measurements of others, unverified matrix rates; predictions",
)


def detect() -> Detection:
    """Any machine with this chip."""
    return detect_card((CARD,))


def profile() -> NvidiaCard:
    return NvidiaCard(
        "dgx_spark", (CARD,), capability=121, default_kv_dtype="fp8", card=FIGURES,
        reserve_bytes=RESERVE_BYTES, shares_memory=True,
    )
