"""``moe_route``, ``moe_mlp`` and ``shared_moe_mlp``."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ninfer_core.api import KernelRequest
from ninfer_core.artifact.weight import Weight
from ninfer_triton_kernels.bindings.banks import Bank, Banks, ExpertTile
from ninfer_triton_kernels.bindings.expert_groups import ExpertGroups, combine_pairs
from ninfer_triton_kernels.bindings.launching import OVERLAPPED, limit_of, power
from ninfer_triton_kernels.bindings.matrices import FEW_TOKENS, bind_linear, bind_swiglu
from ninfer_triton_kernels.bindings.rows import bind_sigmoid_gate
from ninfer_triton_kernels.bindings.shared import shared
from ninfer_triton_kernels.kernels import experts
from ninfer_triton_kernels.kernels import moe_route as routes
from ninfer_triton_kernels.kernels.products import COLUMNS

WIDE_TILE, NARROW_TILE = ExpertTile(32, 4, 4, 2), ExpertTile(32, 4, 4, 2)
"""Of gate_up and of down, for experts of each token and the one that all have in common: the same
for every number of tokens, because the order of sums depends on them."""

COMPANY = 256
"""Fewest pairs of several tokens that kernels are compiled for: those of most steps."""


def bind_moe_route(
    request: KernelRequest, bias: Tensor | None
) -> Callable[[Tensor, Tensor, Tensor], None]:
    num_experts, top_k = request.sizes["num_experts"], request.sizes["top_k"]
    if request.sizes.get("scoring", "softmax") == "sigmoid":
        return _by_sigmoids(num_experts, top_k, request.sizes.get("scale", 1.0), bias)

    def moe_route(logits: Tensor, ids: Tensor, weights: Tensor) -> None:
        routes.moe_route[logits.shape[0],](
            logits, ids, weights, logits.stride(0), num_experts, top_k, power(top_k, 1),
            power(num_experts), num_warps=1 if num_experts <= 256 else 4, **OVERLAPPED,
        )

    return moe_route


def _by_sigmoids(
    num_experts: int, top_k: int, scale: float, bias: Tensor | None
) -> Callable[[Tensor, Tensor, Tensor], None]:
    def moe_route(logits: Tensor, ids: Tensor, weights: Tensor) -> None:
        routes.sigmoid_route[logits.shape[0],](
            logits, bias, ids, weights, logits.stride(0), num_experts, scale, top_k,
            power(top_k, 1), power(num_experts), num_warps=1 if num_experts <= 256 else 4,
            **OVERLAPPED,
        )

    return moe_route


def bind_moe_mlp(request: KernelRequest, gate_up: Weight, down: Weight) -> Callable[..., Tensor]:
    own = Bank.of(gate_up), Bank.of(down)
    mlp, prompts = _ExpertMlp(request, own, None), ExpertGroups(request, own)

    def moe_mlp(
        x: Tensor, ids: Tensor, weights: Tensor, out: Tensor, residual: Tensor | None = None
    ) -> Tensor:
        if x.shape[0] <= FEW_TOKENS:
            return mlp.by_token(x, ids, weights, None, out, residual)
        return prompts(x, ids, weights, out, residual)

    return moe_mlp


def bind_shared_moe_mlp(
    request: KernelRequest, gate_up: Weight, down: Weight, shared_gate_up: Weight,
    shared_down: Weight,
) -> Callable[..., Tensor]:
    """Few tokens take the shared expert beside their own, many as a product of all."""
    own, common = (
        (Bank.of(wide), Bank.of(narrow))
        for wide, narrow in ((gate_up, down), (shared_gate_up, shared_down)))
    mlp, prompts = _ExpertMlp(request, own, common), ExpertGroups(request, own)
    product, project = bind_swiglu(request, shared_gate_up), bind_linear(request, shared_down, None)
    scale, inner = bind_sigmoid_gate(request), shared_down.info.shape[1]

    def shared_moe_mlp(
        x: Tensor, ids: Tensor, weights: Tensor, score: Tensor | None, out: Tensor,
        residual: Tensor | None = None,
    ) -> Tensor:
        count = x.shape[0]
        if count <= FEW_TOKENS:
            return mlp.by_token(x, ids, weights, score, out, residual)
        prompts(x, ids, weights, out, residual)
        memory = shared("shared_product", request.max_tokens * inner, torch.bfloat16, x.device)
        gated = product(x, memory[: count * inner].view(count, inner))
        return project(gated if score is None else scale(gated, score, gated), out, out)

    return shared_moe_mlp


class _ExpertMlp:
    """:param common: of the expert that all tokens share, if there is one."""

    def __init__(self, request: KernelRequest, own: Banks, common: Banks | None) -> None:
        self._top_k = request.sizes["top_k"]
        self._own, self._common = own, own if common is None else common
        self._has_common, self._limit = common is not None, limit_of(request)

    def by_token(
        self, x: Tensor, ids: Tensor, weights: Tensor, score: Tensor | None, out: Tensor,
        residual: Tensor | None,
    ) -> Tensor:
        """``out``; ``score`` is that of the common expert."""
        (count, width), top_k = x.shape, self._top_k
        (wide, narrow), (common_wide, common_narrow) = self._own, self._common
        pairs, groups = count * top_k, -(-count // COLUMNS.value) * self._has_common
        hidden = self._memory(x, "hidden", top_k * narrow.depth, torch.bfloat16)
        common = self._memory(x, "common", common_narrow.depth, torch.bfloat16)
        sizes, common_sizes = wide.sizes(WIDE_TILE), common_wide.sizes(WIDE_TILE)
        most, rows = max(narrow.depth, common_narrow.depth * self._has_common), sizes[1]
        company = 1 if count == 1 else power(pairs, COMPANY)
        experts.gate_up_of_pairs[-(-2 * most // rows), pairs + groups](
            x, ids, hidden, *wide.tensors, common, *common_wide.tensors, count, narrow.depth,
            common_narrow.depth, x.stride(0), *wide.kinds, *common_wide.kinds, self._has_common,
            self._limit, top_k, company, width, *sizes, *common_sizes, num_warps=WIDE_TILE.warps,
            **OVERLAPPED,
        )
        parts = self._memory(x, "sums", (top_k + 1) * width, torch.float32)
        sizes, common_sizes = narrow.sizes(NARROW_TILE), common_narrow.sizes(NARROW_TILE)
        experts.down_of_pairs[-(-width // sizes[1]), pairs + groups](
            hidden, ids, parts, *narrow.tensors, common, *common_narrow.tensors, count, width,
            *narrow.kinds, *common_narrow.kinds, self._has_common, top_k, company, narrow.depth,
            *sizes, common_narrow.depth, *common_sizes, num_warps=NARROW_TILE.warps, **OVERLAPPED,
        )
        combine_pairs(parts, weights, out, residual, score, has_common=self._has_common)
        return out

    def _memory(self, x: Tensor, name: str, width: int, dtype: torch.dtype) -> Tensor:
        return shared(f"experts_{name}", FEW_TOKENS * width, dtype, x.device)
