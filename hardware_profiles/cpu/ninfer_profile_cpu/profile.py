"""Facts and choices of an ordinary CPU. Importing this imports neither torch nor numba."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from ninfer_core.api import Detection, KernelWork, MachineFigures

RESERVE_BYTES = 1 << 30
"""Left to the operating system and to everything else in the process."""

LAUNCH_S = 1e-6
"""Fork and join of two awake threads, Python's call included (measured on Zen 4)."""

_MEMINFO = Path("/proc/meminfo")


def detect() -> Detection:
    """Every machine has a CPU; a profile of an accelerator scores higher."""
    return Detection(10, f"{num_cores()} cores of {platform.machine()}: the CPU always works")


class CpuProfile:
    """Any CPU that LLVM compiles for. Weights stay quantised, activations are fp32."""

    name = "cpu"
    device = "cpu"
    capability = 0
    compute_dtype = "float32"
    default_kv_dtype = "fp32"
    layouts: Mapping[str, str] = MappingProxyType({})  # its kernels read all as it is stored

    def figures(self) -> MachineFigures:
        """Measured in a tenth of a second, with torch on all cores of this process."""
        import torch

        before = torch.get_num_threads()
        torch.set_num_threads(num_cores())
        try:
            data = torch.ones(1 << 24)  # 64 MiB, beyond most caches
            a, b = torch.ones(512, 1024), torch.ones(1024, 1024)
            read_s, product_s = _fastest(data.sum), _fastest(lambda: a @ b)
        finally:
            torch.set_num_threads(before)
        return MachineFigures(
            name=platform.processor() or platform.machine(),
            memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
            read_bytes_per_s=data.nbytes / read_s,
            flops={"float32": 2 * a.numel() * b.shape[1] / product_s},
            launch_s=LAUNCH_S,
            source=f"measured now, with torch on {num_cores()} cores",
        )

    def scratch_bytes(self, work: KernelWork) -> int:
        """Threads keep a few tiles each, on their stacks and in caches."""
        return 0

    def prepare(self, num_threads: int | None) -> None:
        """Start the kernels' threads: as many as asked for, else one for each core."""
        from .kernels.pool import pool

        pool().set_num_threads(num_threads or num_cores())

    def memory_budget(self) -> int:
        """What programs could get now, page cache included, less a reserve."""
        return max(0, _available_bytes() - RESERVE_BYTES)


def num_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _available_bytes() -> int:
    if _MEMINFO.exists():
        fields = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
        return int(fields["MemAvailable"].split()[0]) << 10  # in KiB
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _fastest(call: Callable[[], object], runs: int = 4) -> float:
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)
