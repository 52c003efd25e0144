"""``gated_rmsnorm`` in FP32, token by token."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import silu

from ninfer_core.api import KernelRequest

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"silu": silu, "sigmoid": torch.sigmoid}


def bind(
    request: KernelRequest, weight: Tensor
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    eps, heads = request.sizes["eps"], (request.sizes["num_heads"], -1)
    activate, scale = _ACTIVATIONS[request.sizes["activation"]], weight.float()

    def gated_rmsnorm(x: Tensor, gate: Tensor, out: Tensor) -> Tensor:
        for t in range(x.shape[0]):
            row = x[t].view(heads).float()
            normed = row / (row.square().mean(-1, keepdim=True) + eps).sqrt() * scale
            out[t] = (normed * activate(gate[t].view(heads).float())).flatten()
        return out

    return gated_rmsnorm
