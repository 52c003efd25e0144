"""``embedding``, ``linear``, ``swiglu`` and ``head_projection``: products with matrices."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ninfer_core.api import KernelRequest
from ninfer_core.artifact.weight import Weight
from ninfer_profile_cpu.bindings.owning import owning
from ninfer_profile_cpu.bindings.stored_weight import StoredWeight, dense_matrix, stored_weight
from ninfer_profile_cpu.kernels.embedding import TOKENS_PER_ITEM, embedding_body
from ninfer_profile_cpu.kernels.launch import launch
from ninfer_profile_cpu.kernels.linear import linear_body
from ninfer_profile_cpu.kernels.memory import bits_of_float
from ninfer_profile_cpu.kernels.pool import pool
from ninfer_profile_cpu.kernels.products import BUFFER_BYTES
from ninfer_profile_cpu.kernels.swiglu import scratch_bytes as gated_bytes
from ninfer_profile_cpu.kernels.swiglu import swiglu_body
from ninfer_profile_cpu.kernels.weight_fields import BLOCK_ROWS, NUM_ROWS

PLAIN = ("fp32", "bf16")
"""Formats whose rows lie one after the other, without anything beside them."""


def bind_embedding(request: KernelRequest, weight: Weight) -> Callable[[Tensor, Tensor], Tensor]:
    stored = stored_weight(weight)
    pool().reserve(stored.area_bytes)
    shared, body, block = pool().address, embedding_body(), stored.address

    def call(ids: Tensor, out: Tensor) -> Tensor:
        launch(
            shared, body, ids.shape[0], TOKENS_PER_ITEM, block, ids.data_ptr(), out.data_ptr(),
            4 * out.stride(0), 0, 0, 0, 0, 0,
        )
        return out

    return owning(call, stored)


def bind_linear(
    request: KernelRequest, weight: Weight, bias: Tensor | None
) -> Callable[..., Tensor]:
    stored = stored_weight(weight)
    bias = None if bias is None else bias.float().contiguous()
    pool().reserve(BUFFER_BYTES + stored.area_bytes)
    shared, body, block = pool().address, linear_body(), stored.address
    num_items = -(-weight.info.shape[0] // BLOCK_ROWS)
    added = 0 if bias is None else bias.data_ptr()

    def call(x: Tensor, out: Tensor, residual: Tensor | None = None) -> Tensor:
        to, to_stride = out.data_ptr(), 4 * out.stride(0)
        if residual is None:
            rest, rest_stride = 0, 0
        elif residual is out:
            rest, rest_stride = to, to_stride
        else:
            rest, rest_stride = residual.data_ptr(), 4 * residual.stride(0)
        launch(
            shared, body, num_items, 1, block, x.data_ptr(), 4 * x.stride(0), x.shape[0], to,
            to_stride, added, rest, rest_stride,
        )
        return out

    return owning(call, stored, bias)


def multiply(stored: StoredWeight, x: Tensor, out: Tensor) -> None:
    """``out = x W^T`` with a matrix that is bound nowhere; ``BUFFER_BYTES`` and its area must be
    reserved."""
    launch(
        pool().address, linear_body(), -(-int(stored.block[NUM_ROWS]) // BLOCK_ROWS), 1,
        stored.address, x.data_ptr(), 4 * x.stride(0), x.shape[0], out.data_ptr(),
        4 * out.stride(0), 0, 0, 0,
    )


def bind_head_projection(
    request: KernelRequest, weight: Weight
) -> Callable[[Tensor, Tensor], Tensor]:
    """Rows of plain numbers are read where they lie; of others there is a copy in fp32."""
    count = request.sizes["num_heads"]
    if weight.info.format.name in PLAIN:
        matrices = [stored_weight(weight.part(head, count)) for head in range(count)]
    else:
        matrices = [dense_matrix(each) for each in weight.dense().unflatten(0, (count, -1))]
    pool().reserve(BUFFER_BYTES + matrices[0].area_bytes)

    def call(x: Tensor, out: Tensor) -> Tensor:
        parts = x.chunk(len(matrices), 1), out.chunk(len(matrices), 1)
        for matrix, own, to in zip(matrices, *parts, strict=True):
            multiply(matrix, own, to)
        return out

    return call


def bind_swiglu(request: KernelRequest, weight: Weight) -> Callable[[Tensor, Tensor], Tensor]:
    stored = stored_weight(weight)
    pool().reserve(gated_bytes(stored.area_bytes))
    limit = bits_of_float(request.sizes.get("limit", 0.0))
    shared, body, block = pool().address, swiglu_body(), stored.address
    num_items = -(-(weight.info.shape[0] // 2) // BLOCK_ROWS)

    def call(x: Tensor, out: Tensor) -> Tensor:
        launch(
            shared, body, num_items, 1, block, x.data_ptr(), 4 * x.stride(0), x.shape[0],
            out.data_ptr(), 4 * out.stride(0), limit, 0, 0,
        )
        return out

    return owning(call, stored)
