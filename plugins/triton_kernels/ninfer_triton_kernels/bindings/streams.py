"""The ops of gated hyper-connections."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ninfer_core.api import KernelRequest
from ninfer_triton_kernels.bindings.launching import OVERLAPPED, power
from ninfer_triton_kernels.bindings.rows import norm_of_groups
from ninfer_triton_kernels.kernels import streams

COMPONENTS = 1024
"""Of one program."""


def bind_grouped_rmsnorm(
    request: KernelRequest, weight: Tensor
) -> Callable[[Tensor, Tensor], Tensor]:
    return norm_of_groups(request, weight, request.sizes["groups"])


def bind_scaled_silu(request: KernelRequest) -> Callable[[Tensor, Tensor], Tensor]:
    scale = request.sizes["scale"]

    def scaled_silu(x: Tensor, out: Tensor) -> Tensor:
        num_tokens, width = x.shape
        block = min(COMPONENTS, power(width))
        streams.scaled_silu[num_tokens, -(-width // block)](
            x, out, x.stride(0), out.stride(0), width, scale, block, **OVERLAPPED,
        )
        return out

    return scaled_silu


def bind_stream_read(request: KernelRequest) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    count = request.sizes["num_streams"]

    def stream_read(gates: Tensor, normed: Tensor, out: Tensor) -> Tensor:
        num_tokens, width = out.shape
        block = min(COMPONENTS, power(width))
        streams.stream_read[num_tokens, -(-width // block)](
            gates, normed, out, gates.stride(0), normed.stride(0), out.stride(0), width, count,
            block, **OVERLAPPED,
        )
        return out

    return stream_read


def bind_stream_add(request: KernelRequest) -> Callable[[Tensor, Tensor, Tensor], None]:
    count = request.sizes["num_streams"]

    def stream_add(y: Tensor, logits: Tensor, residual: Tensor) -> None:
        num_tokens, width = y.shape
        block = min(COMPONENTS, power(width))
        streams.stream_add[num_tokens, -(-width // block)](
            y, logits, residual, y.stride(0), logits.stride(0), residual.stride(0), width, count,
            block, **OVERLAPPED,
        )

    return stream_add


def bind_signed_sqrt_gate(
    request: KernelRequest,
) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    count = request.sizes["num_streams"]

    def signed_sqrt_gate(k: Tensor, q: Tensor, v: Tensor, out: Tensor) -> Tensor:
        num_tokens, width = v.shape
        streams.signed_sqrt_gate[num_tokens, count](
            k, q, v, out, k.stride(0), q.stride(0), v.stride(0), out.stride(0), width, width**0.5,
            power(width), num_warps=4, **OVERLAPPED,
        )
        return out

    return signed_sqrt_gate
