"""The thread pool and scratch memory that all kernels of a process share.

Entries hold the GIL while they run, so two threads of Python never use the pool at once.
"""

import ctypes
import functools
import glob
import os

import numpy as np
import torch
from numba import types

from .compile import compile_body
from .launch import NUM_THREADS, PARALLEL, SCRATCH, SCRATCH_STRIDE, WORKER, worker


class Pool:
    """Owner of the pool block that launchers read; its address is the first argument of entries.

    The number of threads is torch's when the pool is made, since these are torch's threads.
    Scratch memory grows while ops are bound, never in a step.
    """

    def __init__(self):
        self._block = np.zeros(5, dtype=np.int64)
        self._block[PARALLEL] = parallel_address()
        self._block[WORKER] = compile_body(worker, signature=types.void(types.int64))
        self._shared = np.zeros(0, dtype=np.uint8)
        self.address = self._block.ctypes.data
        self.set_num_threads(torch.get_num_threads())

    @property
    def num_threads(self) -> int:
        return int(self._block[NUM_THREADS])

    def set_num_threads(self, num_threads: int):
        """Threads of every launch from now on."""
        self._block[NUM_THREADS] = num_threads
        self._allocate(int(self._block[SCRATCH_STRIDE]))

    def reserve(self, nbytes: int):
        """See to it that every thread has at least ``nbytes`` of scratch memory."""
        if nbytes > self._block[SCRATCH_STRIDE]:
            self._allocate(-(-nbytes // 4096) * 4096)

    def shared(self, nbytes: int) -> np.ndarray:
        """Memory for what one call passes between its threads; the same for all who ask."""
        if self._shared.nbytes < nbytes:
            self._shared = np.zeros(nbytes, dtype=np.uint8)
        return self._shared

    def _allocate(self, stride: int):
        self._memory = np.zeros(stride * self.num_threads + 4096, dtype=np.uint8)
        self._block[SCRATCH] = -(-self._memory.ctypes.data // 4096) * 4096
        self._block[SCRATCH_STRIDE] = stride


def parallel_address() -> int:
    """Address of ``GOMP_parallel`` of the OpenMP runtime that torch runs on, or of a stand-in."""
    bundled = glob.glob(os.path.join(os.path.dirname(torch.__file__), "lib", "libgomp*"))
    for name in (None, *bundled, "libgomp.so.1"):  # None: whatever the process has loaded
        try:
            return ctypes.cast(ctypes.CDLL(name).GOMP_parallel, ctypes.c_void_p).value
        except (OSError, AttributeError, TypeError):
            continue
    from .launch_portable import fork

    return fork()


@functools.cache
def pool() -> Pool:
    """The pool of this process."""
    return Pool()
