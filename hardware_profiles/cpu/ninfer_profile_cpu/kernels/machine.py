"""What the kernels need to know about the processor they are compiled for.

Everything here is read once from LLVM's host detection. A vector has ``LANES`` fp32 lanes; all
reductions of all kernels are carried out in this many partial sums, so ``LANES`` (and ``HAS_FMA``)
are part of the arithmetic: two machines with equal values give equal bits.
"""

import llvmlite.binding as llvm

_FEATURES = llvm.get_host_cpu_features()
_ARCH = llvm.get_process_triple().split("-")[0]
IS_X86 = _ARCH in ("x86_64", "i386", "i686", "amd64")
_IS_ARM = _ARCH.startswith(("aarch64", "arm64"))


def _has(name: str) -> bool:
    return bool(_FEATURES.get(name, False))


HAS_AVX512 = _has("avx512f") and _has("avx512bw") and _has("avx512vl")
"""512-bit registers and a 16-entry fp32 table look-up in one instruction."""

HAS_FMA = _IS_ARM or _has("fma")
"""Fused multiply-add in hardware; without it the kernels multiply, then add."""

HAS_FP16_CONVERT = _IS_ARM or _has("f16c")
"""fp16 to fp32 conversion in hardware; without it the kernels convert with integer arithmetic."""

LANES = 16 if HAS_AVX512 else 8 if _has("avx") else 4
"""fp32 lanes of one vector."""

TILE_ROWS, TILE_TOKENS = (4, 6) if HAS_AVX512 or _IS_ARM else (2, 4)
"""Largest register tile of a product: accumulators and operands fit in 32 or 16 registers."""
