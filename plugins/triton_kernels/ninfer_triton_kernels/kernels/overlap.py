"""Beginning before the kernel before has ended (programmatic dependent launch).

A kernel that is launched so may start as soon as all programs of the one before have called
`release` or ended, and must call `wait` before it reads or writes anything that other kernels
write: then all of those before have ended. What it may read earlier are weights.

Every kernel calls `wait` before `release`: when one starts, all but the one before it have ended.
A product calls `release` when its own loop is through.
"""

import triton
import triton.language as tl

from ninfer_triton_kernels.kernels.products import INTERPRETED


@triton.jit
def wait():
    """For all kernels before."""
    if not INTERPRETED:
        tl.extra.cuda.gdc_wait()


@triton.jit
def release():
    """Let the next kernel start once all programs are here; it takes room on the processors then,
    so that work which needs theirs should lie behind."""
    if not INTERPRETED:
        tl.extra.cuda.gdc_launch_dependents()
