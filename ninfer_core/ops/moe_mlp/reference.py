"""``moe_mlp`` in FP32, row by row. Only the experts that are chosen are dequantised, one at a time:
those of a whole model would not fit in memory."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ninfer_core.api import KernelRequest
from ninfer_core.artifact.weight import Weight
from ninfer_core.ops.linear.reference import RowProduct
from ninfer_core.ops.swiglu.reference import gated


def bind(request: KernelRequest, gate_up: Weight, down: Weight) -> Callable[..., Tensor]:
    num_experts, limit = request.sizes["num_experts"], request.sizes.get("limit", 0.0)

    def outputs(x: Tensor, ids: Tensor) -> Iterator[tuple[int, int, Tensor]]:
        """``(t, j, fp32 [H])`` of every choice, valid until the next."""
        for expert in ids.unique().tolist():
            wide, narrow = (RowProduct(w.part(expert, num_experts)) for w in (gate_up, down))
            for t, j in (ids == expert).nonzero().tolist():
                gate, up = wide(x[t]).chunk(2)
                yield t, j, narrow(gated(gate, up, limit))

    def moe_mlp(
        x: Tensor, ids: Tensor, weights: Tensor, out: Tensor, residual: Tensor | None = None
    ) -> Tensor:
        chosen = torch.empty((*ids.shape, x.shape[1]), device=x.device)
        for t, j, row in outputs(x, ids):
            chosen[t, j] = row * weights[t, j]
        total = chosen[:, 0]
        for j in range(1, ids.shape[1]):
            total = total + chosen[:, j]
        out.copy_(total if residual is None else total + residual)
        return out

    return moe_mlp
