"""Weights in host memory that a card reads in place."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ninfer_core.api import UnsupportedError
from ninfer_core.artifact.weight import Weight
from ninfer_triton_kernels.bindings.launching import IS_INTERPRETED

PAGE = 4096
MAPPED, READ_ONLY = 2, 8
"""Flags of ``cudaHostRegister``."""

_locked: list[tuple[int, int]] = []
"""Ranges of addresses; a page can be locked once."""


def is_on_host(weight: Weight) -> bool:
    """Whether a weight is in the host's memory; for the interpreter, none is."""
    return not IS_INTERPRETED and any(plane.is_cpu for plane in weight.planes.values())


def lock(weight: Weight) -> None:
    """Keep a weight in host memory where a card can read it, as long as the process runs: a view
    of a file is read whole and locked.

    :raises UnsupportedError: if the system refuses.
    """
    planes = weight.planes.values()
    begin = min(plane.data_ptr() for plane in planes) // PAGE * PAGE
    end = -(-max(plane.data_ptr() + plane.nbytes for plane in planes) // PAGE) * PAGE
    for low, high in gaps(begin, end, _locked):
        error = int(torch.cuda.cudart().cudaHostRegister(low, high - low, MAPPED | READ_ONLY))
        if error:
            raise UnsupportedError(
                "a table cannot stay in host memory",
                why=f"{high - low:,} bytes cannot be locked there (CUDA error {error})",
                fix="raise the limit of locked memory (ulimit -l), or free memory",
            )
        _locked.append((low, high))


def gaps(begin: int, end: int, known: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """What of a range lies in none of the known ones."""
    left = [(begin, end)]
    for low, high in known:
        cut = ((a, b) for x, y in left for a, b in ((x, min(y, low)), (max(x, high), y)))
        left = [(a, b) for a, b in cut if a < b]
    return left
