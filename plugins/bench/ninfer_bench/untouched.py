"""Memory that costs nothing until it is touched."""

from __future__ import annotations

import mmap
from tempfile import TemporaryFile

import torch
from torch import Tensor

from ninfer_core.api import CapacityError


def untouched(nbytes: int) -> Tensor:
    """Zeros on the CPU, uint8 ``[nbytes]``: a file without a name and without contents, mapped so
    that pages of it exist from when they are touched, and can be dropped again.

    :raises CapacityError: if the system has no such file or no addresses for it.
    """
    try:
        with TemporaryFile() as file:
            file.truncate(nbytes)
            return torch.frombuffer(mmap.mmap(file.fileno(), nbytes), dtype=torch.uint8)
    except (OSError, OverflowError) as error:
        raise CapacityError(
            "there is no room for a table that stays in host memory",
            why=f"a sparse file of {nbytes:,} bytes cannot be mapped: {error}",
            fix="raise the limits (ulimit -v, ulimit -f), or set TMPDIR to another file system",
        ) from error
