"""Matrices as capability 90 copies blocks of them into shared memory."""

from __future__ import annotations

from functools import cache

from torch import Tensor
from triton.experimental.gluon.language import NVMMASharedLayout
from triton.experimental.gluon.language import bfloat16 as gluon_bfloat16
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

HOPPER = 90
"""The capability."""


def swizzled(rows: Tensor, block: list[int]) -> TensorDescriptor:
    """Blocks of rows of bf16 as they lie in shared memory for products."""
    return TensorDescriptor.from_tensor(rows, block, _layout(*block))


@cache
def _layout(rows: int, columns: int) -> NVMMASharedLayout:
    return NVMMASharedLayout.get_default_for([rows, columns], gluon_bfloat16)


def is_copied(*matrices: Tensor) -> bool:
    """Whether rows of bf16 begin where such copies can begin."""
    return all(rows.data_ptr() % 16 == 0 and rows.stride(0) % 8 == 0 for rows in matrices)
