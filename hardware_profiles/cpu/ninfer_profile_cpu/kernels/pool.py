"""The threads and scratch memory that all kernels of a process share.

Launches hold the GIL, so two threads of Python never use the pool at once.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
import time

import numpy as np
import torch

from .compile import compile_native
from .launch import (
    CONDITION,
    ENDED,
    LOCK,
    MAX_WORKERS,
    MUTEX,
    NUM_FIELDS,
    NUM_THREADS,
    SCRATCH,
    SCRATCH_STRIDE,
    SLEEPERS,
    SPINS,
    UNLOCK,
    WAIT,
    WAKE_ALL,
    YIELD,
    end_helpers,
    helper,
)
from .threads import pause

SPIN_S = 200e-6
"""How long a helper waits for the next job before it sleeps: longer than the gap between two ops
or two steps, so that decoding never pays for a wake-up."""

_FUNCTIONS = {
    LOCK: "pthread_mutex_lock", UNLOCK: "pthread_mutex_unlock", WAIT: "pthread_cond_wait",
    WAKE_ALL: "pthread_cond_broadcast", YIELD: "sched_yield",
}


class Pool:
    """Owner of the pool block, whose address is the first argument of every launch.

    Scratch memory grows while ops are bound, never in a step. Without POSIX threads there is one
    thread only.
    """

    def __init__(self, num_threads: int) -> None:
        self._fields = _aligned(8 * NUM_FIELDS).view(np.int64)
        self._shared = np.zeros(0, dtype=np.uint8)
        self._helpers: list[threading.Thread] = []
        self.address = self._fields.ctypes.data
        self._has_threads = os.name == "posix"
        if self._has_threads:
            self._prepare_threads()
        self.set_num_threads(num_threads)

    @property
    def num_threads(self) -> int:
        return int(self._fields[NUM_THREADS])

    def set_num_threads(self, num_threads: int) -> None:
        """Threads of every launch from now on, the caller included."""
        num_threads = min(num_threads, MAX_WORKERS) if self._has_threads else 1
        self._fields[NUM_THREADS] = num_threads
        self._allocate(int(self._fields[SCRATCH_STRIDE]))
        while len(self._helpers) < num_threads - 1:
            self._start_helper()

    def reserve(self, nbytes: int) -> None:
        """See to it that every thread has at least ``nbytes`` of scratch memory."""
        if nbytes > self._fields[SCRATCH_STRIDE]:
            self._allocate(-(-nbytes // 4096) * 4096)

    def shared(self, nbytes: int) -> np.ndarray:
        """Memory for what one launch passes between its threads; the same for all who ask."""
        if self._shared.nbytes < nbytes:
            self._shared = np.zeros(nbytes, dtype=np.uint8)
        return self._shared

    def close(self) -> None:
        """End the helpers; their memory may go only when they have returned."""
        end_helpers(self.address)
        for thread in self._helpers:
            thread.join()
        self._helpers = []
        self._fields[NUM_THREADS], self._fields[ENDED] = 1, 0

    def _prepare_threads(self) -> None:
        library = ctypes.CDLL(None)
        for field, name in _FUNCTIONS.items():
            self._fields[field] = ctypes.cast(library[name], ctypes.c_void_p).value or 0
        # More than any pthread_mutex_t or pthread_cond_t.
        self._mutex, self._condition = np.zeros(32, np.int64), np.zeros(32, np.int64)
        self._fields[MUTEX] = self._mutex.ctypes.data
        self._fields[CONDITION] = self._condition.ctypes.data
        library.pthread_mutex_init(ctypes.c_void_p(self._mutex.ctypes.data), None)
        library.pthread_cond_init(ctypes.c_void_p(self._condition.ctypes.data), None)
        self._fields[SPINS] = _pauses_in(SPIN_S)
        os.register_at_fork(after_in_child=self._lose_helpers)

    def _start_helper(self) -> None:
        number = len(self._helpers) + 1
        thread = threading.Thread(
            target=self._help, args=(number,), name=f"ninfer-cpu-{number}", daemon=True
        )
        self._helpers.append(thread)
        thread.start()

    def _help(self, number: int) -> None:
        # A method, so that the thread keeps the pool; ctypes releases the GIL meanwhile.
        run = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(_helper_address())
        run(self.address, number)

    def _lose_helpers(self) -> None:
        # Threads do not survive a fork; the child works alone until it asks for threads again.
        self._helpers = []
        self._fields[NUM_THREADS], self._fields[SLEEPERS] = 1, 0

    def _allocate(self, stride: int) -> None:
        self._scratch = _aligned(stride * self.num_threads)
        self._fields[SCRATCH] = self._scratch.ctypes.data
        self._fields[SCRATCH_STRIDE] = stride


def _aligned(nbytes: int) -> np.ndarray:
    """Zeroed bytes at the begin of a page."""
    memory = np.zeros(nbytes + 4096, dtype=np.uint8)
    start = -memory.ctypes.data % 4096
    return memory[start : start + nbytes]


@functools.cache
def _helper_address() -> int:
    return compile_native(helper)


def _pause_often(count):
    for _ in range(count):
        pause()


def _pauses_in(seconds: float) -> int:
    """How many pauses of a waiting loop take so long on this processor."""
    run, count = ctypes.CFUNCTYPE(None, ctypes.c_int64)(compile_native(_pause_often)), 20_000
    times = []
    for _ in range(3):
        start = time.perf_counter()
        run(count)
        times.append(time.perf_counter() - start)
    return max(1, int(count * seconds / min(times)))


@functools.cache
def pool() -> Pool:
    """The pool of this process, with the number of threads that torch had; torch keeps one.

    Torch's OpenMP threads spin for a millisecond after each of its operations, on the very cores
    that the next kernel needs: with them, decoding is half as fast.
    """
    made = Pool(torch.get_num_threads())
    torch.set_num_threads(1)
    return made
