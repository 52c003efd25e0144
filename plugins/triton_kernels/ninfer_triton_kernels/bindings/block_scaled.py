"""``linear`` and ``swiglu`` of NVFP4 weights, for prompts in FP4 by FP4: one instruction of
Blackwell cards. What activations lose by it is for whoever chooses it; decode steps go as ever."""

from __future__ import annotations

from collections.abc import Callable

import torch
from attrs import evolve
from torch import Tensor

from ninfer_core.api import KernelRequest
from ninfer_core.artifact.weight import Weight
from ninfer_triton_kernels.bindings.launching import IS_INTERPRETED, OVERLAPPED, limit_of
from ninfer_triton_kernels.bindings.matrices import FEW_TOKENS, bind_linear, bind_swiglu
from ninfer_triton_kernels.bindings.shared import shared
from ninfer_triton_kernels.bindings.stored import TiledMatrix, stored_matrix
from ninfer_triton_kernels.fragments import lay_nvfp4
from ninfer_triton_kernels.kernels import block_scaled as kernels
from ninfer_triton_kernels.kernels.rows import gated_product
from ninfer_triton_kernels.parts import read_nvfp4_scales

TILE = (32, 32, 128) if IS_INTERPRETED else (128, 128, 128)
"""Tokens, rows of the weight and columns of a program."""

WARPS, STAGES = 8, 3
QUANTISED, PACKED = 1024, 1024
"""Columns of activations, and pairs of codes, that a program takes at once."""



def bind_linear_block_scaled(
    request: KernelRequest, weight: Weight, bias: Tensor | None
) -> Callable[..., Tensor]:
    few, many = bind_linear(request, weight, bias), _Product(request, weight)

    def linear(x: Tensor, out: Tensor, residual: Tensor | None = None) -> Tensor:
        if x.shape[0] <= FEW_TOKENS or out.dtype != torch.bfloat16:
            return few(x, out, residual)
        many(x, out, residual)
        return out if bias is None else out.add_(bias)

    return linear


def bind_swiglu_block_scaled(
    request: KernelRequest, weight: Weight
) -> Callable[[Tensor, Tensor], Tensor]:
    few, many = bind_swiglu(request, weight), _Product(request, weight)
    width, limit = weight.info.shape[0] // 2, limit_of(request)

    def swiglu(x: Tensor, out: Tensor) -> Tensor:
        num_tokens = x.shape[0]
        if num_tokens <= FEW_TOKENS:
            return few(x, out)
        memory = shared("gates", 2 * width * request.max_tokens, torch.bfloat16, x.device)
        both = memory[: 2 * width * num_tokens].view(num_tokens, 2 * width)
        many(x, both, None)
        gated_product[num_tokens, -(-width // 1024)](
            both, out, both.stride(0), out.stride(0), width, limit, 1024, **OVERLAPPED
        )
        return out

    return swiglu


class _Product:
    """``x W^T + residual`` of many rows."""

    def __init__(self, request: KernelRequest, weight: Weight) -> None:
        matrix = stored_matrix(weight)
        assert isinstance(matrix, TiledMatrix)
        self._matrix, self._planes, self._max_tokens = matrix, weight.planes, request.max_tokens
        divisor = matrix.stored.divisor
        assert divisor is not None
        self._divisor, self._ones, self._unit = divisor, torch.ones_like(divisor), _unit_scales()

    def __call__(self, x: Tensor, out: Tensor, residual: Tensor | None) -> None:
        rows, depth = self._matrix.shape
        codes, scales, factors = self._quantised(x)
        weight_codes, weight_scales = self._plain()
        tokens_tile, rows_tile, columns = TILE
        rest = out if residual is None else residual
        kernels.block_scaled_product[-(-x.shape[0] // tokens_tile), -(-rows // rows_tile)](
            codes, scales, factors, weight_codes, weight_scales, self._divisor, rest, out,
            x.shape[0], rows, depth, rest.stride(0), out.stride(0), residual is not None,
            tokens_tile, rows_tile, columns, num_warps=WARPS, num_stages=STAGES, **OVERLAPPED,
        )

    def _quantised(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Codes, scales and factors of activations."""
        (tokens, depth), most = x.shape, max(self._max_tokens, x.shape[0])
        codes = shared("fp4_codes", most * depth // 2, torch.uint8, x.device)
        scales = shared("fp4_scales", most * depth // 16, torch.float8_e4m3fn, x.device)
        factors = shared("fp4_factors", most, torch.float32, x.device)
        kernels.quantise_rows[tokens,](
            x, codes, scales, factors, depth, x.stride(0), QUANTISED, **OVERLAPPED)
        return codes, scales, factors

    def _plain(self) -> tuple[Tensor, Tensor]:
        """The weight's codes, two a byte, and its scales, row by row. Under scales of 1 the values
        of a matrix are those of its codes."""
        matrix, stored, (rows, depth) = self._matrix, self._matrix.stored, self._matrix.shape
        units = shared("fp4_units", stored.scales.numel(), torch.int32, stored.scales.device)
        alone = evolve(stored, scales=units.fill_(self._unit), divisor=self._ones)
        values = evolve(matrix, stored=alone).unpack()
        count = rows * depth // 2
        codes = shared("fp4_weight", count, torch.uint8, values.device)
        kernels.pack_values[-(-count // PACKED),](values, codes, count, PACKED, **OVERLAPPED)
        return codes, read_nvfp4_scales(self._planes["scales"], depth).contiguous()


def _unit_scales() -> int:
    """What fragments have for four scales of 1."""
    codes = torch.zeros(16, 64, dtype=torch.uint8)
    scales = torch.ones(16, 4).to(torch.float8_e4m3fn)
    planes = lay_nvfp4({"codes": codes, "scales": scales, "divisor": torch.ones(())})
    return int(planes["scales"].flatten()[0])
