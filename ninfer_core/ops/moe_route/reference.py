"""``moe_route`` in FP32."""

from collections.abc import Callable

from torch import Tensor

from ninfer_core.api import KernelRequest


def bind(request: KernelRequest) -> Callable[[Tensor, Tensor, Tensor], None]:
    top_k = request.sizes["top_k"]

    def moe_route(logits: Tensor, ids: Tensor, weights: Tensor) -> None:
        for t in range(logits.shape[0]):  # the bits of a sum over many rows depend on their number
            order = logits[t].sort(descending=True, stable=True).indices[:top_k]
            shares = logits[t].float().softmax(0)[order]
            ids[t], weights[t] = order, shares / shares.sum()

    return moe_route
