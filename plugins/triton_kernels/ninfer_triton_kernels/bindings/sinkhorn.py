"""``sinkhorn_read``, ``sinkhorn_write`` and ``stream_mean``."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ninfer_core.api import KernelRequest
from ninfer_triton_kernels.bindings.launching import OVERLAPPED, power
from ninfer_triton_kernels.kernels import sinkhorn

MAX_BLOCK = 1024
"""Columns of a program, which all streams have."""
FEW_TOKENS = 64
"""So many leave processors idle unless several programs share one; each reads all of it."""


def bind_sinkhorn_read(
    request: KernelRequest, base: Tensor, scale: Tensor
) -> Callable[[Tensor, Tensor, Tensor, Tensor], None]:
    sizes = request.sizes
    count, iterations = sizes["num_streams"], sizes["iterations"]
    eps, norm_eps = sizes["eps"], sizes["norm_eps"]

    def sinkhorn_read(products: Tensor, streams: Tensor, out: Tensor, mix: Tensor) -> None:
        num_tokens, width = out.shape
        block = _block(width)
        parts = -(-width // block) if num_tokens <= FEW_TOKENS else 1
        sinkhorn.sinkhorn_read[num_tokens, parts](
            products, base, scale, streams, out, mix, products.stride(0), streams.stride(0),
            out.stride(0), mix.stride(0), width, eps, norm_eps, count, iterations, block,
            **OVERLAPPED,
        )

    return sinkhorn_read


def bind_sinkhorn_write(request: KernelRequest) -> Callable[[Tensor, Tensor, Tensor], None]:
    count = request.sizes["num_streams"]

    def sinkhorn_write(y: Tensor, mix: Tensor, streams: Tensor) -> None:
        num_tokens, width = y.shape
        block = _block(width)
        sinkhorn.sinkhorn_write[num_tokens, -(-width // block)](
            y, mix, streams, y.stride(0), mix.stride(0), streams.stride(0), width, count, block,
            **OVERLAPPED,
        )

    return sinkhorn_write


def bind_stream_mean(request: KernelRequest) -> Callable[[Tensor, Tensor], Tensor]:
    count = request.sizes["num_streams"]

    def stream_mean(streams: Tensor, out: Tensor) -> Tensor:
        num_tokens, width = out.shape
        block = _block(width)
        sinkhorn.stream_mean[num_tokens, -(-width // block)](
            streams, out, streams.stride(0), out.stride(0), width, count, block, **OVERLAPPED
        )
        return out

    return stream_mean


def _block(width: int) -> int:
    """The same for every number of tokens, because the order of sums depends on it."""
    return min(MAX_BLOCK, power(width))
