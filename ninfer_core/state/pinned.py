"""Host memory that a GPU reads and writes by itself."""

from __future__ import annotations

import logging
from weakref import finalize

import torch
from torch import Tensor

_log = logging.getLogger(__name__)


def pinned_empty(num_rows: int, row_bytes: int) -> Tensor:
    """uint8 ``[num_rows, row_bytes]`` of any content, page-locked as long as it lives.

    Torch's own pinned memory is not used: it takes the next power of two. If the system refuses,
    the memory is as any other, and copies wait for each other.
    """
    memory = torch.empty((num_rows, row_bytes), dtype=torch.uint8, device="cpu")
    runtime, address = torch.cuda.cudart(), memory.data_ptr()
    error = int(runtime.cudaHostRegister(address, memory.nbytes, 0))
    if error:
        _log.warning("%d bytes of host memory cannot be pinned (error %d)", memory.nbytes, error)
    else:
        finalize(memory, runtime.cudaHostUnregister, address).atexit = False
    return memory
