"""Groups of warps of kernels in Gluon, for compute capability 90."""

from triton.experimental.gluon import language as gl

WARPS = gl.constexpr(4)
"""Of a group: those that multiply, or ask, together."""

GROUP_REGISTERS, ASKING_REGISTERS = gl.constexpr(240), gl.constexpr(24)
"""Of a thread of a group that multiplies, and of the one warp that asks for what it does."""

meet = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier
"""Of the warps of a group; Triton 3.7 has another name for it."""
