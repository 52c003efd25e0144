"""Beginning before the kernel before has ended (programmatic dependent launch).

A kernel that is launched so may start as soon as all programs of the one before have called
`release` or ended, and must call `wait` before it reads or writes anything that other kernels
write: then all of those before have ended. What it may read earlier are weights.

Every kernel calls `wait` before `release`: when one starts, all but the one before it have ended.
Only an *early* norm calls `release` first: nothing but constants is read early by what follows it.
An early product calls `release` as soon as it has waited, so that where programs end the next
kernel's take their room and ask for their weights; else it does when its own loop is through.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ninfer_triton_kernels.kernels.products import INTERPRETED


@triton.jit
def wait():
    """For all kernels before."""
    if not INTERPRETED:
        gdc_wait()


@triton.jit
def release_if(now: tl.constexpr):
    """`release`, in one of two places."""
    if now:
        release()


@triton.jit
def release():
    """Let the next kernel start once all programs are here; it takes room on the processors then,
    so that work which needs theirs should lie behind."""
    if not INTERPRETED:
        gdc_launch_dependents()
