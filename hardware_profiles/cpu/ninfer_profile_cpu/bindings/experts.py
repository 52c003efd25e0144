"""``moe_route`` and ``moe_mlp``: the ops of a mixture of experts."""

from __future__ import annotations

from collections.abc import Callable

import torch
from attrs import evolve
from torch import Tensor

from ninfer_core.api import KernelRequest
from ninfer_core.artifact.weight import Weight
from ninfer_profile_cpu.bindings.owning import owning
from ninfer_profile_cpu.bindings.stored_weight import StoredWeight, stored_weight
from ninfer_profile_cpu.kernels.launch import launch
from ninfer_profile_cpu.kernels.memory import bits_of_float
from ninfer_profile_cpu.kernels.moe_call import moe_mlp
from ninfer_profile_cpu.kernels.moe_mlp import memory_sizes, scratch_bytes, static_block
from ninfer_profile_cpu.kernels.moe_route import (
    TOKENS_PER_ITEM,
    moe_route_body,
    sigmoid_route_body,
    sigmoid_scratch_bytes,
)
from ninfer_profile_cpu.kernels.pool import pool
from ninfer_profile_cpu.kernels.swiglu import scratch_bytes as gated_bytes


def bind_moe_route(
    request: KernelRequest, bias: Tensor | None
) -> Callable[[Tensor, Tensor, Tensor], None]:
    num_experts, top_k = request.sizes["num_experts"], request.sizes["top_k"]
    shared, body, added = pool().address, moe_route_body(), torch.zeros(num_experts)
    if request.sizes.get("scoring", "softmax") == "sigmoid":
        body = sigmoid_route_body()
        pool().reserve(sigmoid_scratch_bytes(num_experts))
        added = added if bias is None else bias.float().contiguous()
    address, scale = added.data_ptr(), bits_of_float(request.sizes.get("scale", 1.0))

    def call(logits: Tensor, ids: Tensor, weights: Tensor) -> None:
        launch(
            shared, body, logits.shape[0], TOKENS_PER_ITEM, logits.data_ptr(),
            4 * logits.stride(0), ids.data_ptr(), weights.data_ptr(), num_experts, top_k, address,
            scale, 0,
        )

    return owning(call, added)


def bind_moe_mlp(request: KernelRequest, gate_up: Weight, down: Weight) -> Callable[..., Tensor]:
    wide, narrow = _stored_bank(gate_up), _stored_bank(down)
    width, inner = gate_up.info.shape[-1], down.info.shape[-1]
    sizes = request.sizes["num_experts"], request.sizes["top_k"], width, inner, request.max_tokens
    memory = pool().shared(sum(memory_sizes(*sizes)))
    pool().reserve(gated_bytes(wide.area_bytes))
    pool().reserve(scratch_bytes(sizes[1], request.max_tokens, narrow.area_bytes))
    limit = request.sizes.get("limit", 0.0)
    static = static_block(wide.address, narrow.address, *sizes, memory.ctypes.data, limit)
    shared, constants = pool().address, static.ctypes.data

    def call(
        x: Tensor, ids: Tensor, weights: Tensor, out: Tensor, residual: Tensor | None = None
    ) -> Tensor:
        rest = (0, 0) if residual is None else (residual.data_ptr(), 4 * residual.stride(0))
        moe_mlp(
            shared, constants, x.data_ptr(), 4 * x.stride(0), x.shape[0], ids.data_ptr(),
            weights.data_ptr(), out.data_ptr(), 4 * out.stride(0), *rest,
        )
        return out

    return owning(call, wide, narrow, memory, static)


def _stored_bank(weight: Weight) -> StoredWeight:
    """A bank of matrices as the rows of one."""
    if len(weight.info.shape) > 2:
        shape = (-1, weight.info.shape[-1])
        planes = {name: plane.view(shape) for name, plane in weight.planes.items()}
        info = evolve(weight.info, shape=tuple(planes["codes"].shape))
        weight = evolve(weight, info=info, planes=planes)
    return stored_weight(weight)
