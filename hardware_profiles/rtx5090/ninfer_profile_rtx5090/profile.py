"""Figures of the GeForce RTX 5090 (GB202, sm_120). Nothing here was measured by this project.

Memory
    32 GiB less 2.4 GiB. The reference engine leaves 1 GiB free, and its automatic KV pools of two
    artifacts on one card (Qwen3.8-27B: weights 16.67 and 19.73 GiB, 319K and 225K tokens of FP8
    KV, 16 state slots) both end at 29.6 GiB: driver, context and graphs have the rest.
Reading
    0.92 of the data sheet's 1,792 GB/s, which the fastest published engine reaches over whole
    decode steps of 19.1 GB (84.9 tok/s; its head's format is assumed). The copy ceiling that
    another engine's profile gives is 1.51 TB/s.
Matrix rates
    bf16 with fp32 accumulation: data sheet, dense. FP8: the data sheet's 419 TFLOP/s times 1.55,
    which the block-scaled instruction was measured to gain at equal bits. FP4: 874 TFLOP/s, the
    most that Triton 3.6 reached (of 1,676).
Launches
    2 us beside the bytes of a kernel, the lower end of the 2 to 3 us that are inferred from the
    ramp of the same kernels on an H200.
Host
    55 GB/s over PCIe 5.0 x16: an expert of 2.76 MB is reported to take 50 us.
KV
    FP8: at 32 GiB the cache decides how long a context is, and the published figures use it.
"""

from __future__ import annotations

from ninfer_core.api import Detection, MachineFigures
from ninfer_nvidia.card import NvidiaCard, detect_card

CARD = "NVIDIA GeForce RTX 5090"
TOTAL_BYTES = 32 << 30
RESERVE_BYTES = int(2.4 * (1 << 30))

FIGURES = MachineFigures(
    name=CARD,
    memory_bytes=TOTAL_BYTES - RESERVE_BYTES,
    read_bytes_per_s=0.92 * 1792e9,
    flops={"bfloat16": 209.5e12, "float8_e4m3fn": 1.55 * 419e12, "float4_e2m1fn_x2": 874e12},
    launch_s=2e-6,
    source="data sheet and published measurements of others; predictions",
    host_bytes_per_s=55e9,
)


def detect() -> Detection:
    """The desktop card only: the laptop's of like name is another."""
    return detect_card((CARD,))


def profile() -> NvidiaCard:
    return NvidiaCard(
        "rtx5090", (CARD,), capability=120, default_kv_dtype="fp8", card=FIGURES,
        reserve_bytes=RESERVE_BYTES,
    )
