"""``moe_route`` and ``moe_router``."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ninfer_core.api import KernelRequest
from ninfer_core.artifact.weight import Weight
from ninfer_triton_kernels.bindings.launching import OVERLAPPED, power
from ninfer_triton_kernels.bindings.matrices import FEW_TOKENS, bind_linear
from ninfer_triton_kernels.bindings.rows import bind_rmsnorm
from ninfer_triton_kernels.bindings.shared import shared
from ninfer_triton_kernels.bindings.stored import stored_matrix
from ninfer_triton_kernels.kernels import moe_route as routes
from ninfer_triton_kernels.kernels.moe_router import moe_router as router

HELD = 16384
"""Values of the router's weight that a program holds."""

MOST_PARTS = 8
"""Into which tokens are cut; each part reads the whole weight."""


def bind_moe_route(
    request: KernelRequest, bias: Tensor | None
) -> Callable[[Tensor, Tensor, Tensor], None]:
    num_experts, top_k = request.sizes["num_experts"], request.sizes["top_k"]
    by_sigmoid = request.sizes.get("scoring", "softmax") == "sigmoid"
    scale, sizes = request.sizes.get("scale", 1.0), (top_k, power(top_k, 1), power(num_experts))
    tokens = routes.TOKENS.value

    def moe_route(logits: Tensor, ids: Tensor, weights: Tensor) -> None:
        count, stride = logits.shape[0], logits.stride(0)
        grid = (-(-count // tokens),)
        if by_sigmoid:
            routes.sigmoid_route[grid](
                logits, bias, ids, weights, count, stride, num_experts, scale, *sizes,
                num_warps=tokens, **OVERLAPPED)
        else:
            routes.moe_route[grid](
                logits, ids, weights, count, stride, num_experts, *sizes, num_warps=tokens,
                **OVERLAPPED)

    return moe_route


def bind_moe_router(request: KernelRequest, norm: Tensor, weight: Weight) -> Callable[..., Tensor]:
    """One launch for few tokens, one for each part for many."""
    sizes, (rows, width) = request.sizes, weight.info.shape
    num_experts, top_k, offset = sizes["num_experts"], sizes["top_k"], float(sizes["unit_offset"])
    [codes, *_], block = stored_matrix(weight).tensors, power(num_experts)
    normalise, product = bind_rmsnorm(request, norm), bind_linear(request, weight, None)
    route, columns = bind_moe_route(request, None), power(width)
    height, has_score = max(1, HELD // columns), rows > num_experts

    def moe_router(
        x: Tensor, normed: Tensor, scores: Tensor, ids: Tensor, weights: Tensor
    ) -> Tensor:
        count = x.shape[0]
        if count > FEW_TOKENS:
            route(product(normalise(x, normed), scores)[:, :num_experts], ids, weights)
            return normed
        each, score = -(-count // MOST_PARTS), scores[:, num_experts:] if has_score else scores
        logits = shared("router_logits", FEW_TOKENS * block, torch.bfloat16, x.device)
        arrivals = shared("router_arrivals", MOST_PARTS, torch.int32, x.device)
        router[-(-rows // height), -(-count // each)](
            x, norm, codes, normed, score, logits, arrivals, ids, weights, count, each, x.stride(0),
            normed.stride(0), scores.stride(0), num_experts, rows, width, sizes["eps"], offset,
            has_score, top_k, power(top_k, 1), block, height, columns,
            num_warps=routes.TOKENS.value, **OVERLAPPED,
        )
        return normed

    return moe_router
