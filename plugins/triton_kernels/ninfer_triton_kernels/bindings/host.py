"""Weights in host memory that a card reads in place."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from attrs import evolve
from torch import Tensor

from ninfer_core.api import UnsupportedError
from ninfer_core.artifact.weight import Weight
from ninfer_triton_kernels.bindings.launching import IS_INTERPRETED

PAGE = 4096
MAPPED, READ_ONLY = 2, 8
"""Flags of ``cudaHostRegister``."""

OWN_BYTES = 64 << 20
"""Memory of that size has pages of its own, be it a view of a file or an allocation."""

_locked: list[tuple[int, int, Tensor]] = []
"""Ranges of addresses, of which a page can be locked once, and what keeps them: memory that is
freed while it is locked would be somebody else's next."""


def is_on_host(weight: Weight) -> bool:
    """Whether a weight is in the host's memory; for the interpreter, none is."""
    return not IS_INTERPRETED and any(plane.is_cpu for plane in weight.planes.values())


def locked(weight: Weight) -> Weight:
    """The weight in host memory where a card can read it: large planes, views of a file, are read
    whole and locked where they are, as long as the process runs. Small ones, whose pages have other
    things as well, are copied.

    :raises UnsupportedError: if the system refuses.
    """
    return evolve(weight, planes={name: _locked_plane(p) for name, p in weight.planes.items()})


def _locked_plane(plane: Tensor) -> Tensor:
    if plane.nbytes < OWN_BYTES:
        return torch.empty(plane.shape, dtype=plane.dtype, pin_memory=True).copy_(plane)
    begin = plane.data_ptr() // PAGE * PAGE
    end = -(-(plane.data_ptr() + plane.nbytes) // PAGE) * PAGE
    for low, high in gaps(begin, end, [(low, high) for low, high, _ in _locked]):
        error = int(torch.cuda.cudart().cudaHostRegister(low, high - low, MAPPED | READ_ONLY))
        if error:
            raise UnsupportedError(
                "a table cannot stay in host memory",
                why=f"{high - low:,} bytes cannot be locked there (CUDA error {error})",
                fix="raise the limit of locked memory (ulimit -l), or free memory",
            )
        _locked.append((low, high, plane))
    return plane


def gaps(begin: int, end: int, known: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """What of a range lies in none of the known ones."""
    left = [(begin, end)]
    for low, high in known:
        cut = ((a, b) for x, y in left for a, b in ((x, min(y, low)), (max(x, high), y)))
        left = [(a, b) for a, b in cut if a < b]
    return left
