"""``causal_conv1d`` and the gated delta rules: the ops on slot states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ninfer_core.api import KernelRequest
from ninfer_core.state.step import StepBatch
from ninfer_core.state.views import SlotPlanes
from ninfer_profile_cpu.bindings.owning import owning
from ninfer_profile_cpu.kernels import convolution, delta_fields
from ninfer_profile_cpu.kernels.delta_rule import delta_rule_body, gated_delta_rule
from ninfer_profile_cpu.kernels.launch import launch
from ninfer_profile_cpu.kernels.pool import pool


def bind_causal_conv1d(
    request: KernelRequest, weight: Tensor, planes: SlotPlanes
) -> Callable[[Tensor, StepBatch, Tensor], Tensor]:
    weight = weight.float().contiguous()
    taps, width = weight.shape
    static = convolution.static_block(
        weight=weight.data_ptr(), taps=taps, dilation=request.sizes.get("dilation", 1),
        width=width, **_addresses(planes),
    )
    num_strips = -(-width // convolution.STRIP)
    shared, body, constants = pool().address, convolution.convolution_body(), static.ctypes.data

    def call(x: Tensor, batch: StepBatch, out: Tensor) -> Tensor:
        launch(
            shared, body, batch.num_rows * num_strips, 1, constants, x.data_ptr(), 4 * x.stride(0),
            out.data_ptr(), 4 * out.stride(0), batch.row_start.data_ptr(), batch.slots.data_ptr(),
            batch.replay.data_ptr(), batch.certain.data_ptr(),
        )
        return out

    return owning(call, static, weight, planes)


def bind_gated_delta_rule(
    request: KernelRequest, planes: SlotPlanes, a_log: Tensor, dt_bias: Tensor
) -> Callable[..., Tensor]:
    return _bind_delta_rule(planes, -a_log.double().exp(), dt_bias, **request.sizes)


def bind_channel_delta_rule(
    request: KernelRequest, planes: SlotPlanes, a_log: Tensor, dt_bias: Tensor
) -> Callable[..., Tensor]:
    sizes = dict(request.sizes)
    heads = dict.fromkeys(("num_key_heads", "num_value_heads"), sizes.pop("num_heads"))
    return _bind_delta_rule(
        planes, a_log.double().exp(), dt_bias, **heads, **sizes, decay_dim=sizes["key_dim"]
    )


def _bind_delta_rule(
    planes: SlotPlanes, rates: Tensor, biases: Tensor, **sizes: Any
) -> Callable[..., Tensor]:
    rates, biases = rates.float().contiguous(), biases.float().contiguous()
    static = delta_fields.static_block(
        **sizes, rates=rates.data_ptr(), biases=biases.data_ptr(),
        record_rows=planes.record.shape[1], **_addresses(planes),
    )
    pool().reserve(delta_fields.scratch_bytes(static))
    shared, body, constants = pool().address, delta_rule_body(), static.ctypes.data

    def call(
        q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, batch: StepBatch, out: Tensor
    ) -> Tensor:
        gated_delta_rule(
            shared, body, constants, q.data_ptr(), 4 * q.stride(0), k.data_ptr(), 4 * k.stride(0),
            v.data_ptr(), 4 * v.stride(0), a.data_ptr(), 4 * a.stride(0), b.data_ptr(),
            4 * b.stride(0), out.data_ptr(), 4 * out.stride(0), batch.row_start.data_ptr(),
            batch.slots.data_ptr(), batch.replay.data_ptr(), batch.certain.data_ptr(),
            batch.num_rows,
        )
        return out

    return owning(call, static, rates, biases, planes)


def _addresses(planes: SlotPlanes) -> dict[str, int]:
    """Where the committed states and records of fp32 are, and bytes from slot to slot."""
    committed, record = planes.committed, planes.record
    return {
        "committed": committed.data_ptr(), "slot_bytes": 4 * committed.stride(0),
        "record": record.data_ptr(), "record_bytes": 4 * record.stride(0),
    }
