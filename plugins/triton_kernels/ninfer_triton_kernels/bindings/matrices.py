"""``linear`` and ``swiglu``."""

from __future__ import annotations

from collections.abc import Callable

import torch
from attrs import frozen
from torch import Tensor

from ninfer_core.api import KernelRequest
from ninfer_core.artifact.weight import Weight
from ninfer_triton_kernels.bindings.launching import OVERLAPPED, limit_of
from ninfer_triton_kernels.bindings.shared import shared
from ninfer_triton_kernels.bindings.stored import DenseMatrix, TiledMatrix, stored_matrix
from ninfer_triton_kernels.kernels.rows import gated_product

FEW_TOKENS = 128
"""Most rows that products take whose time is that of reading the weight: eight sequences of
sixteen tokens. More go through the library's product of bf16 matrices."""

WHOLE = 8
"""Columns whose multiples the library has quick kernels for."""


def bind_linear(
    request: KernelRequest, weight: Weight, bias: Tensor | None
) -> Callable[..., Tensor]:
    return MatrixProduct(stored_matrix(weight), bias)


@frozen(eq=False)
class MatrixProduct:
    """The op ``linear`` of a matrix."""

    matrix: DenseMatrix | TiledMatrix
    bias: Tensor | None

    def __call__(self, x: Tensor, out: Tensor, residual: Tensor | None = None) -> Tensor:
        matrix = self.matrix
        if x.shape[0] <= FEW_TOKENS or not matrix.wide or out.dtype != torch.bfloat16:
            matrix.multiply(x, out, self.bias, residual)
            return out
        weight = matrix.unpack()
        if residual is not None:
            torch.addmm(residual, x, weight.T, out=out)
        elif len(weight) % WHOLE:
            _multiply_padded(x, weight, out)
        else:
            torch.mm(x, weight.T, out=out)
        return out if self.bias is None else out.add_(self.bias)


def _multiply_padded(x: Tensor, weight: Tensor, out: Tensor) -> None:
    """``out = x W^T`` by way of a whole number of columns: with another (a router and the score of
    a shared expert), the library takes ten times as long."""
    (rows, depth), count = weight.shape, len(x)
    width = -(-rows // WHOLE) * WHOLE
    padded = shared("padded_weight", width * depth, torch.bfloat16, x.device)
    padded = padded[: width * depth].view(width, depth)
    padded[:rows].copy_(weight)
    product = shared("padded_product", width * count, torch.bfloat16, x.device)
    product = product[: width * count].view(count, width)
    out.copy_(torch.mm(x, padded.T, out=product)[:, :rows])


def bind_swiglu(request: KernelRequest, weight: Weight) -> Callable[[Tensor, Tensor], Tensor]:
    matrix, width = stored_matrix(weight), weight.info.shape[0] // 2
    limit = limit_of(request)

    def swiglu(x: Tensor, out: Tensor) -> Tensor:
        num_tokens = x.shape[0]
        if num_tokens <= FEW_TOKENS or not matrix.wide:
            matrix.multiply(x, out, None, None, gated=limit)
            return out
        memory = shared("gates", 2 * width * request.max_tokens, torch.bfloat16, x.device)
        both = memory[: 2 * width * num_tokens].view(num_tokens, 2 * width)
        torch.mm(x, matrix.unpack().T, out=both)
        gated_product[num_tokens, -(-width // 1024)](
            both, out, both.stride(0), out.stride(0), width, limit, 1024, **OVERLAPPED
        )
        return out

    return swiglu
