"""``shared_moe_mlp`` in FP32, of the references of its parts."""

from collections.abc import Callable

import torch
from torch import Tensor

from ninfer_core.api import KernelRequest
from ninfer_core.artifact.weight import Weight
from ninfer_core.ops.linear.reference import RowProduct
from ninfer_core.ops.moe_mlp import reference as moe_mlp
from ninfer_core.ops.swiglu.reference import gated


def bind(
    request: KernelRequest, gate_up: Weight, down: Weight, shared_gate_up: Weight,
    shared_down: Weight,
) -> Callable[..., Tensor]:
    mlp, limit = moe_mlp.bind(request, gate_up, down), request.sizes.get("limit", 0.0)
    wide, narrow = RowProduct(shared_gate_up), RowProduct(shared_down)

    def shared_moe_mlp(
        x: Tensor, ids: Tensor, weights: Tensor, score: Tensor | None, out: Tensor,
        residual: Tensor | None = None,
    ) -> Tensor:
        total = mlp(x, ids, weights, torch.empty_like(out, dtype=torch.float32), residual)
        for t in range(x.shape[0]):
            gate, up = wide(x[t]).chunk(2)
            row = narrow(gated(gate, up, limit))
            total[t] += row if score is None else row * score[t].float().sigmoid()
        return out.copy_(total)

    return shared_moe_mlp
