"""The ops of hyper-connections whose mixes are balanced."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ninfer_core.api import KernelRequest
from ninfer_profile_cpu.bindings.owning import owning
from ninfer_profile_cpu.kernels.launch import launch
from ninfer_profile_cpu.kernels.pool import pool
from ninfer_profile_cpu.kernels.sinkhorn import (
    TOKENS_PER_ITEM,
    WIDTH,
    scratch_bytes,
    sinkhorn_read_body,
    sinkhorn_write_body,
    static_block,
    stream_mean_body,
)


def bind_sinkhorn_read(
    request: KernelRequest, base: Tensor, scale: Tensor
) -> Callable[[Tensor, Tensor, Tensor, Tensor], None]:
    sizes, count = request.sizes, request.sizes["num_streams"]
    parts = torch.tensor([count, count, count * count])
    factors, base = scale.float().repeat_interleave(parts), base.float().contiguous()
    static = static_block(
        factors.data_ptr(), base.data_ptr(), count, sizes["iterations"], sizes["eps"],
        sizes["norm_eps"],
    )
    pool().reserve(scratch_bytes(count))
    shared, body, constants = pool().address, sinkhorn_read_body(), static.ctypes.data

    def call(products: Tensor, streams: Tensor, out: Tensor, mix: Tensor) -> None:
        static[WIDTH] = out.shape[1]
        launch(
            shared, body, out.shape[0], TOKENS_PER_ITEM, constants, products.data_ptr(),
            4 * products.stride(0), streams.data_ptr(), 4 * streams.stride(0), out.data_ptr(),
            4 * out.stride(0), mix.data_ptr(), 4 * mix.stride(0),
        )

    return owning(call, factors, base)


def bind_sinkhorn_write(request: KernelRequest) -> Callable[[Tensor, Tensor, Tensor], None]:
    count = request.sizes["num_streams"]
    pool().reserve(scratch_bytes(count))
    shared, body = pool().address, sinkhorn_write_body()

    def call(y: Tensor, mix: Tensor, streams: Tensor) -> None:
        launch(
            shared, body, y.shape[0], TOKENS_PER_ITEM, y.data_ptr(), 4 * y.stride(0),
            mix.data_ptr(), 4 * mix.stride(0), streams.data_ptr(), 4 * streams.stride(0), count,
            y.shape[1], 0,
        )

    return call


def bind_stream_mean(request: KernelRequest) -> Callable[[Tensor, Tensor], Tensor]:
    count, shared, body = request.sizes["num_streams"], pool().address, stream_mean_body()

    def call(streams: Tensor, out: Tensor) -> Tensor:
        launch(
            shared, body, out.shape[0], TOKENS_PER_ITEM, streams.data_ptr(), 4 * streams.stride(0),
            out.data_ptr(), 4 * out.stride(0), count, out.shape[1], 0, 0, 0,
        )
        return out

    return call
