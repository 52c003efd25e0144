"""Beginning before the kernel before has ended (programmatic dependent launch).

A kernel that is launched so may start as soon as all programs of the one before have called
`release` or ended, and must call `wait` before it reads or writes anything that other kernels
write: then all of those before have ended. What it may read earlier are weights.

Every kernel calls `wait` before `release`: when one starts, all but the one before it have ended.
So products of one input that run right after one another can overlap: the first, which *leads*,
calls `release` as soon as it has waited, and those that *follow* read the input without waiting,
past the caches of their processors, and wait before they write.
"""

import triton
import triton.language as tl  # noqa: F401 - the interpreter looks for it in each module
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ninfer_triton_kernels.kernels.products import INTERPRETED


@triton.jit
def wait():
    """For all kernels before."""
    if not INTERPRETED:
        gdc_wait()


@triton.jit
def release():
    """Let the next kernel start once all programs are here; it takes room on the processors then,
    so that work which needs theirs should lie behind."""
    if not INTERPRETED:
        gdc_launch_dependents()
