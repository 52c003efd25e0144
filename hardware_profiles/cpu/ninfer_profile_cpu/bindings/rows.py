"""``rmsnorm``, ``gated_rmsnorm`` and ``sigmoid_gate``: ops on rows of activations alone."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ninfer_core.api import KernelRequest
from ninfer_profile_cpu.accepts import ACTIVATIONS
from ninfer_profile_cpu.bindings.owning import owning
from ninfer_profile_cpu.kernels import gates
from ninfer_profile_cpu.kernels.launch import launch
from ninfer_profile_cpu.kernels.memory import bits_of_float
from ninfer_profile_cpu.kernels.norm import ROWS_PER_ITEM, rmsnorm_body
from ninfer_profile_cpu.kernels.pool import pool


def bind_rmsnorm(request: KernelRequest, weight: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    weight = weight.float().contiguous()
    width, eps = weight.shape[0], bits_of_float(request.sizes["eps"])
    offset = bits_of_float(1.0 if request.sizes["unit_offset"] else 0.0)
    shared, body, factors = pool().address, rmsnorm_body(), weight.data_ptr()

    def call(x: Tensor, out: Tensor) -> Tensor:
        launch(
            shared, body, x.shape[0], ROWS_PER_ITEM, x.data_ptr(), 4 * x.stride(0), out.data_ptr(),
            4 * out.stride(0), factors, width, eps, offset, 0,
        )
        return out

    return owning(call, weight)


def bind_gated_rmsnorm(
    request: KernelRequest, weight: Tensor
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    weight, num_heads = weight.float().contiguous(), request.sizes["num_heads"]
    static = gates.gated_rmsnorm_block(
        weight.data_ptr(), weight.shape[0], num_heads, request.sizes["eps"],
        ACTIVATIONS.index(request.sizes["activation"]),
    )
    shared, body, constants = pool().address, gates.gated_rmsnorm_body(), static.ctypes.data

    def call(x: Tensor, gate: Tensor, out: Tensor) -> Tensor:
        launch(
            shared, body, x.shape[0] * num_heads, gates.HEADS_PER_ITEM, constants, x.data_ptr(),
            4 * x.stride(0), gate.data_ptr(), 4 * gate.stride(0), out.data_ptr(),
            4 * out.stride(0), 0, 0,
        )
        return out

    return owning(call, static, weight)


def bind_sigmoid_gate(request: KernelRequest) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    shared, body = pool().address, gates.sigmoid_gate_body()

    def call(x: Tensor, gate: Tensor, out: Tensor) -> Tensor:
        width, is_scalar = x.shape[1], gate.shape[1] == 1
        num_items = x.shape[0] * -(-width // gates.STRIP)
        launch(
            shared, body, num_items, gates.STRIPS_PER_ITEM, x.data_ptr(), 4 * x.stride(0),
            gate.data_ptr(), 4 * gate.stride(0), out.data_ptr(), 4 * out.stride(0), width,
            is_scalar, 0,
        )
        return out

    return call
