"""Views of mapped files: one of the bytes of several, and advice to the system."""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

_PAGE = mmap.PAGESIZE
_MAY_MOVE, _FIXED = 1, 2
"""Flags of ``mremap``."""


def joined(pieces: Sequence[Tensor]) -> Tensor | None:
    """Views of mapped files, uint8 ``[n]`` each, as one view of all.

    :return: None where the pieces do not meet at the ends of pages, or the system does not map
        files twice.
    """
    spans = [(piece.data_ptr(), piece.data_ptr() + len(piece)) for piece in pieces]
    if sys.platform != "linux" or any(a[1] % _PAGE or b[0] % _PAGE for a, b in pairwise(spans)):
        return None
    before = spans[0][0] % _PAGE
    whole = mmap.mmap(-1, before + sum(map(len, pieces)), mmap.MAP_PRIVATE, mmap.PROT_READ)
    view = torch.frombuffer(whole, dtype=torch.uint8)
    at = view.data_ptr()
    for begin, end in spans:
        begin = begin // _PAGE * _PAGE
        if not _map_again(begin, end - begin, at):
            return None
        at += end - begin
    return view[before:]


def read_at_random(view: Tensor) -> None:
    """Let the system read no more of a file than the pages that are touched."""
    begin = view.data_ptr() // _PAGE * _PAGE
    if sys.platform == "linux":
        nbytes = ctypes.c_size_t(view.data_ptr() + view.nbytes - begin)
        ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), nbytes, mmap.MADV_RANDOM)


def _map_again(address: int, nbytes: int, at: int) -> bool:
    """Map the pages of a shared mapping in the place of others; whether it has been done."""
    remap = ctypes.CDLL(None).mremap
    remap.restype = ctypes.c_void_p
    remap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int,
                      ctypes.c_void_p]
    return bool(remap(address, 0, nbytes, _MAY_MOVE | _FIXED, at) == at)
