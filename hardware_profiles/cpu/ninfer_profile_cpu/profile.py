"""Facts and choices of an ordinary CPU. Importing this imports neither torch nor numba."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable

from ninfer_core.api import Detection, MachineFigures

RESERVE_BYTES = 1 << 30
"""Left to the operating system and to everything else in the process."""


def detect() -> Detection:
    """Every machine has a CPU; a profile of an accelerator scores higher."""
    return Detection(10, f"{os.cpu_count()} cores of {platform.machine()}: the CPU always works")


class CpuProfile:
    """Any CPU that LLVM compiles for. Weights stay quantised, activations are fp32."""

    name = "cpu"
    device = "cpu"
    capability = 0
    compute_dtype = "float32"
    default_kv_dtype = "fp32"

    def figures(self) -> MachineFigures:
        """Measured in a tenth of a second, with torch on all cores of this process."""
        import torch

        before = torch.get_num_threads()
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        data = torch.ones(1 << 24)  # 64 MiB, beyond most caches
        a, b = torch.ones(512, 1024), torch.ones(1024, 1024)
        read_s, product_s = _fastest(data.sum), _fastest(lambda: a @ b)
        torch.set_num_threads(before)
        return MachineFigures(
            name=platform.processor() or platform.machine(),
            memory_bytes=_memory_bytes("SC_PHYS_PAGES"),
            read_bytes_per_s=data.nbytes / _fastest(data.sum),
            flops={"float32": 2 * a.numel() * b.shape[1] / product_s},
            launch_s=2e-6,
            source=f"measured now with torch on {torch.get_num_threads()} threads",
        )

    def prepare(self) -> None:
        """Nothing to do: any machine will do, and threads are claimed by the first kernel."""

    def memory_budget(self) -> int:
        """What is free now, less a reserve."""
        return max(0, _memory_bytes("SC_AVPHYS_PAGES") - RESERVE_BYTES)


def _memory_bytes(pages: str) -> int:
    return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")


def _fastest(call: Callable[[], object], runs: int = 4) -> float:
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)
