"""``rmsnorm``, ``gated_rmsnorm`` and ``sigmoid_gate``."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ninfer_core.api import KernelRequest
from ninfer_triton_kernels.bindings.launching import OVERLAPPED, power
from ninfer_triton_kernels.kernels import rows

PIECE, PIECE_OF_WARP = 1024, 128
"""Components that a program of `rmsnorm` takes at once, and one of its warps: common widths are
whole numbers of such pieces."""

NORM_HEADS, NORM_WARPS = 8, 4
"""Of a program of `gated_rmsnorm`."""


def bind_rmsnorm(
    request: KernelRequest, weight: Tensor
) -> Callable[[Tensor, Tensor], Tensor]:
    return norm_of_groups(request, weight, 1)


def norm_of_groups(
    request: KernelRequest, weight: Tensor, groups: int
) -> Callable[[Tensor, Tensor], Tensor]:
    """Of so many groups of a row, each by itself."""
    width, eps = weight.shape[0] // groups, request.sizes["eps"]
    offset, piece = float(request.sizes["unit_offset"]), min(PIECE, power(width))
    warps = max(1, piece // PIECE_OF_WARP)

    def rmsnorm(x: Tensor, out: Tensor) -> Tensor:
        rows.rmsnorm[x.shape[0], groups](
            x, weight, out, x.stride(0), out.stride(0), eps, offset, width, piece,
            num_warps=warps, **OVERLAPPED,
        )
        return out

    return rmsnorm


def bind_gated_rmsnorm(
    request: KernelRequest, weight: Tensor
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    width, heads, eps = weight.shape[0], request.sizes["num_heads"], request.sizes["eps"]
    is_silu, block = request.sizes["activation"] == "silu", power(width)

    def gated_rmsnorm(x: Tensor, gate: Tensor, out: Tensor) -> Tensor:
        rows.gated_rmsnorm[x.shape[0], -(-heads // NORM_HEADS)](
            x, gate, weight, out, x.stride(0), gate.stride(0), out.stride(0), heads, width, eps,
            is_silu, NORM_HEADS, block, num_warps=NORM_WARPS, **OVERLAPPED,
        )
        return out

    return gated_rmsnorm


def bind_sigmoid_gate(request: KernelRequest) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    def sigmoid_gate(x: Tensor, gate: Tensor, out: Tensor) -> Tensor:
        num_tokens, width = x.shape
        block = min(1024, power(width))
        rows.sigmoid_gate[num_tokens, -(-width // block)](
            x, gate, out, x.stride(0), gate.stride(0), out.stride(0), width, gate.shape[1] == 1,
            block, **OVERLAPPED,
        )
        return out

    return sigmoid_gate
