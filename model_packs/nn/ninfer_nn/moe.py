"""Mixtures of experts."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from ninfer_core.api import BuildContext
from ninfer_nn.columns import columns
from ninfer_nn.fused import bind_fused
from ninfer_nn.linear import bind_products
from ninfer_nn.mlp import GatedProduct
from ninfer_nn.norm import RMSNorm


class SparseMoE:
    """The ``top_k`` gated MLPs that a router chooses for a token, and one that all share, which
    may be scaled by a sigmoid of its own score (Qwen2-MoE, Qwen3.5).

    :param name: of its parameters: ``router`` ``[E, H]``, ``router_bias`` ``[E]`` with sigmoids,
        ``shared_score`` ``[1, H]`` if there is one, ``experts/e/{gate,up,down}`` and
        ``shared/{gate,up,down}``.
    :param scoring, scale: as of ``moe_route``; sigmoids are of products in FP32, for the choice.
    :param shared_score: whether the shared MLP is scaled.
    :param limit: as of `GatedProduct`. :param adds: False: written there instead.
    :param norm: through which router and experts read, if any.
    """

    def __init__(
        self, context: BuildContext, name: str, *, num_experts: int, top_k: int,
        scoring: Literal["softmax", "sigmoid"] = "softmax", scale: float = 1.0,
        shared_score: bool = True, limit: float = 0.0, adds: bool = True,
        norm: RMSNorm | None = None,
    ) -> None:
        sizes: dict[str, Any] = {"num_experts": num_experts, "top_k": top_k}
        by_sigmoid, self._adds, self._norm = scoring == "sigmoid", adds, norm
        dtype = torch.float32 if by_sigmoid else None
        scored = {"router": num_experts, **({"shared_score": 1} if shared_score else {})}
        weights = context.weight_runs(*[f"{name}/{each}" for each in scored])
        self._scores = context.buffer("moe_scores", sum(scored.values()), dtype=dtype)
        self._parts = columns(context, "moe_scores", [*scored.values()], dtype)
        self._router = None
        if norm is not None and len(weights) == 1:
            facts, self._normed = {**norm.sizes, **sizes, "scoring": scoring}, norm.out
            self._router = bind_fused(
                context, "moe_router", facts, norm=norm.weight, weight=weights[0])
        if self._router is None:
            self._score = bind_products(context, weights, [None] * len(weights))
            self._route = context.bind(
                "moe_route", sizes={**sizes, "scoring": scoring, "scale": scale},
                bias=context.tensor(f"{name}/router_bias", dtype=dtype) if by_sigmoid else None,
            )
        self._ids = context.buffer("moe_ids", top_k, dtype=torch.int32)
        self._weights = context.buffer("moe_weights", top_k, dtype=torch.float32)
        experts = [f"{name}/experts/{e}" for e in range(num_experts)]
        banks = {
            "gate_up": context.weight(*[f"{e}/{part}" for e in experts for part in ("gate", "up")]),
            "down": context.weight(*[f"{each}/down" for each in experts]),
        }
        sizes["limit"] = limit
        shared = context.weight_runs(f"{name}/shared/gate", f"{name}/shared/up")
        down = context.weight(f"{name}/shared/down")
        self._together = None if len(shared) > 1 else bind_fused(
            context, "shared_moe_mlp", sizes, shared_gate_up=shared[0], shared_down=down, **banks
        )
        if self._together is None:
            self._experts = context.bind("moe_mlp", sizes=sizes, **banks)
            self._product = GatedProduct(context, shared, out="shared_product", limit=limit)
            self._scale = context.bind("sigmoid_gate")
            self._down = context.bind("linear", weight=down, bias=None)

    def __call__(self, x: Tensor, stream: Tensor) -> None:
        """``x`` ``[T, H]``, ``stream`` ``[T, H]``."""
        count = x.shape[0]
        ids, weights, scores = self._ids(count), self._weights(count), self._scores(count)
        logits, *shared = self._parts(count)
        if self._router is not None:
            x = self._router(x, self._normed(count), scores, ids, weights)
        else:
            x = x if self._norm is None else self._norm(x)
            self._score(x, scores)
            self._route(logits, ids, weights)
        rest = stream if self._adds else None
        if self._together is not None:
            self._together(x, ids, weights, shared[0] if shared else None, stream, rest)
            return
        self._experts(x, ids, weights, stream, rest)
        product = self._product(x)
        for score in shared:
            product = self._scale(product, score, product)
        self._down(product, stream, stream)
