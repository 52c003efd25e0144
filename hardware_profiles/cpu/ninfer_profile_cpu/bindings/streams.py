"""The ops of gated hyper-connections, made of kernels for rows and of elementwise steps, each of
which rounds once: a row has the same bits in any company."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ninfer_core.api import KernelRequest
from ninfer_profile_cpu.bindings.owning import owning
from ninfer_profile_cpu.bindings.rows import bind_rmsnorm, bind_sigmoid_gate
from ninfer_profile_cpu.kernels.gates import STRIPS_PER_ITEM, signed_sqrt_gate_body
from ninfer_profile_cpu.kernels.launch import launch
from ninfer_profile_cpu.kernels.pool import pool


def bind_grouped_rmsnorm(
    request: KernelRequest, weight: Tensor
) -> Callable[[Tensor, Tensor], Tensor]:
    groups = request.sizes["groups"]
    norms = [bind_rmsnorm(request, part) for part in weight.chunk(groups)]

    def grouped_rmsnorm(x: Tensor, out: Tensor) -> Tensor:
        for norm, part, to in zip(norms, x.chunk(groups, 1), out.chunk(groups, 1), strict=True):
            norm(part, to)
        return out

    return grouped_rmsnorm


def bind_scaled_silu(request: KernelRequest) -> Callable[[Tensor, Tensor], Tensor]:
    scale, gate = request.sizes["scale"], bind_sigmoid_gate(request)

    def scaled_silu(x: Tensor, out: Tensor) -> Tensor:
        scaled = x * scale
        return gate(scaled, scaled, out)

    return scaled_silu


def bind_stream_read(request: KernelRequest) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    count, gate = request.sizes["num_streams"], bind_sigmoid_gate(request)

    def stream_read(gates: Tensor, normed: Tensor, out: Tensor) -> Tensor:
        first, *others = zip(gates.chunk(count, 1), normed.chunk(count, 1), strict=True)
        gate(first[1], first[0], out)
        gated = torch.empty(out.shape)
        for logits, part in others:
            out += gate(part, logits, gated)
        return out.div_(count)

    return stream_read


def bind_stream_add(request: KernelRequest) -> Callable[[Tensor, Tensor, Tensor], None]:
    count, gate = request.sizes["num_streams"], bind_sigmoid_gate(request)

    def stream_add(y: Tensor, logits: Tensor, streams: Tensor) -> None:
        shares = torch.full(logits.shape, 2.0)
        gate(shares, logits / count, shares)
        for stream, share in zip(streams.chunk(count, 1), shares.split(1, 1), strict=True):
            stream += share * y

    return stream_add


def bind_signed_sqrt_gate(
    request: KernelRequest
) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    static = np.array([request.sizes["num_streams"], 0])
    shared, body, constants = pool().address, signed_sqrt_gate_body(), static.ctypes.data

    def signed_sqrt_gate(k: Tensor, q: Tensor, v: Tensor, out: Tensor) -> Tensor:
        static[1] = v.shape[1]
        launch(
            shared, body, v.shape[0] * int(static[0]), STRIPS_PER_ITEM, k.data_ptr(),
            4 * k.stride(0), q.data_ptr(), 4 * q.stride(0), v.data_ptr(), 4 * v.stride(0),
            out.data_ptr(), 4 * out.stride(0), constants,
        )
        return out

    return owning(signed_sqrt_gate, static)
