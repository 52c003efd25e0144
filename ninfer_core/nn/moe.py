"""Mixtures of experts."""

from __future__ import annotations

import torch
from torch import Tensor

from ninfer_core.api import BuildContext
from ninfer_core.nn.columns import columns
from ninfer_core.nn.linear import Linear
from ninfer_core.nn.mlp import GatedProduct


class SparseMoE:
    """The ``top_k`` gated MLPs that a router chooses for a token, and one that all share, scaled by
    a sigmoid of its own score (Qwen2-MoE, Qwen3.5); added to the residual stream.

    :param name: of its parameters: ``router`` ``[E, H]``, ``shared_score`` ``[1, H]``,
        ``experts/e/{gate,up,down}`` and ``shared/{gate,up,down}``.
    """

    def __init__(self, context: BuildContext, name: str, *, num_experts: int, top_k: int) -> None:
        sizes = {"num_experts": num_experts, "top_k": top_k}
        experts = [f"{name}/experts/{e}" for e in range(num_experts)]
        self._score = Linear(context, f"{name}/router", f"{name}/shared_score", out="moe_scores")
        self._scores = columns(context, "moe_scores", [num_experts, 1])
        self._route = context.bind("moe_route", sizes=sizes)
        self._ids = context.buffer("moe_ids", top_k, dtype=torch.int32)
        self._weights = context.buffer("moe_weights", top_k, dtype=torch.float32)
        self._experts = context.bind(
            "moe_mlp", sizes=sizes, down=context.weight(*[f"{each}/down" for each in experts]),
            gate_up=context.weight(*[f"{e}/{part}" for e in experts for part in ("gate", "up")]),
        )
        self._product = GatedProduct(
            context, f"{name}/shared/gate", f"{name}/shared/up", out="shared_product"
        )
        self._scale = context.bind("sigmoid_gate")
        self._down = Linear(context, f"{name}/shared/down")

    def __call__(self, x: Tensor, stream: Tensor) -> None:
        """``x`` ``[T, H]``, ``stream`` ``[T, H]``."""
        self._score(x)
        logits, shared = self._scores(x.shape[0])
        ids, weights = self._ids(x.shape[0]), self._weights(x.shape[0])
        self._route(logits, ids, weights)
        self._experts(x, ids, weights, stream, stream)
        product = self._product(x)
        self._down.add_to(stream, self._scale(product, shared, product))
