"""Scales of quantised tensors, in whatever grain a checkpoint has them."""

from __future__ import annotations

from functools import cached_property

import torch
from attrs import frozen
from torch import Tensor

from ninfer_convert.safetensors_tensor import SafetensorsTensor
from ninfer_core.api import ArtifactError

SCALE_TYPES = ("F32", "BF16", "F16", "F8_E8M0")
"""Types of scales, all exact in fp32."""
MX_COLUMNS = 32
"""Elements of a row that share a scale in MX formats (OCP Microscaling Formats, 1.0). It is a power
of two, F8_E8M0, which exporters also write as U8."""


@frozen(eq=False)
class Scale:
    """Multipliers (or divisors) of a tensor ``[..., N, K]``, one for each block of a matrix.

    :ivar grid: their shape ``[..., rows of blocks, columns of blocks]``; a leading dimension of 1
        is for all matrices.
    :ivar block: rows and columns of a block; those at the ends may be cut.
    """

    tensor: SafetensorsTensor
    grid: tuple[int, ...]
    block: tuple[int, int]

    def of_matrix(self, at: tuple[int, ...]) -> Tensor:
        """fp32, those of the matrix at these indices; `ArtifactError` if not all are numbers."""
        values = self._values
        for index in at:
            values = values[index if len(values) > 1 else 0]
        return values

    @cached_property
    def is_bf16(self) -> bool:
        """Whether bf16 holds all of them. A single fp32 number that it holds does not count: that
        is chance, and neighbours would differ in format."""
        values = self._values
        fits = torch.equal(values.bfloat16().float(), values)
        return self.tensor.dtype == "BF16" or (values.numel() > 1 and fits)

    @property
    def is_power(self) -> bool:
        """Whether all are powers of two by their type."""
        return self.tensor.dtype in ("F8_E8M0", "U8")

    @cached_property
    def _values(self) -> Tensor:
        raw = self.tensor.raw()
        exponents = raw.view(torch.float8_e8m0fnu) if raw.dtype == torch.uint8 else raw
        values = exponents.float().view(self.grid)
        if not (values.isfinite() & ~values.signbit()).all():
            raise ArtifactError(
                "a scale is not usable", where=self.tensor.name,
                why="it is negative, infinite or NaN", fix="fetch the checkpoint again",
            )
        return values


def fit_scale(
    tensor: SafetensorsTensor, shape: tuple[int, ...], block: tuple[int, int] | None = None
) -> Scale:
    """The scale of a tensor of ``shape``: one number for all, for each matrix, for each row, or for
    each block. Where two readings of a shape are possible, they mean the same.

    :param block: rows and columns of blocks; None if the scale cannot be finer than a matrix.
    :raises ArtifactError: if its shape or type is none of those.
    """
    *bank, rows, columns = shape
    known = {(*bank, *[1] * n): ((*bank, 1, 1), (rows, columns)) for n in range(3)}
    known |= {(1,) * n: ((1,) * len(shape), (rows, columns)) for n in range(len(shape) + 1)}
    if block:
        known |= {(*bank, rows, *[1] * n): ((*bank, rows, 1), (1, columns)) for n in range(2)}
        blocks = (-(-rows // block[0]), -(-columns // block[1]))
        known[*bank, *blocks] = (*bank, *blocks), block
    exponents = (*bank, rows, -(-columns // MX_COLUMNS))
    if block and tensor.dtype in ("F8_E8M0", "U8") and tensor.shape == exponents:
        return Scale(tensor, exponents, (1, MX_COLUMNS))
    if tensor.dtype not in SCALE_TYPES or tensor.shape not in known:
        shapes = " or ".join(sorted(str([*each]) for each in known))
        raise ArtifactError(
            "a scale does not fit its tensor", where=tensor.name,
            why=f"it is {tensor.dtype} {[*tensor.shape]}; the tensor is {[*shape]}, which takes "
            f"{' or '.join(SCALE_TYPES)} {shapes}",
        )
    return Scale(tensor, *known[tensor.shape])
