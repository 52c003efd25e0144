"""What the kernels need to know about the processor they are compiled for.

Everything here is read once, from LLVM's detection of the host or from Numba's settings
(``NUMBA_CPU_FEATURES``), which native code is compiled by. A vector has ``LANES`` fp32 lanes, and
all reductions of all kernels are carried out in this many partial sums, so ``LANES`` (and
``HAS_FMA``) are part of the arithmetic: two machines with equal values give equal bits.
"""

from __future__ import annotations

import llvmlite.binding as llvm
from numba.core import config


def _features() -> set[str]:
    if config.CPU_FEATURES is None:
        return {name for name, present in llvm.get_host_cpu_features().items() if present}
    return {name[1:] for name in config.CPU_FEATURES.split(",") if name.startswith("+")}


_FEATURES = _features()
_ARCH = llvm.get_process_triple().split("-")[0]
_IS_ARM = _ARCH.startswith(("aarch64", "arm64"))

IS_X86 = _ARCH in ("x86_64", "i386", "i686", "amd64")

HAS_AVX512 = {"avx512f", "avx512bw", "avx512vl"} <= _FEATURES
"""512-bit registers and a 16-entry fp32 table look-up in one instruction."""

HAS_FMA = _IS_ARM or "fma" in _FEATURES
"""Fused multiply-add in hardware; without it the kernels multiply, then add."""

HAS_FP16_CONVERT = _IS_ARM or "f16c" in _FEATURES
"""fp16 to fp32 conversion in hardware; without it the kernels convert with integer arithmetic."""

LANES = 16 if HAS_AVX512 else 8 if "avx2" in _FEATURES else 4
"""fp32 lanes of one vector."""

TILE_ROWS, TILE_TOKENS = (4, 6) if HAS_AVX512 or _IS_ARM else (2, 6)
"""Largest register tile of a product: accumulators and operands fit in 32 or 16 registers."""
