"""``moe_route`` in FP32."""

from collections.abc import Callable

from torch import Tensor

from ninfer_core.api import KernelRequest


def bind(
    request: KernelRequest, bias: Tensor | None
) -> Callable[[Tensor, Tensor, Tensor], None]:
    top_k, scale = request.sizes["top_k"], request.sizes.get("scale", 1.0)
    is_softmax = request.sizes.get("scoring", "softmax") == "softmax"

    def moe_route(logits: Tensor, ids: Tensor, weights: Tensor) -> None:
        for t in range(logits.shape[0]):  # the bits of a sum over many rows depend on their number
            row = logits[t].float()
            scores = row.softmax(0) if is_softmax else row.sigmoid()
            wanted = row if is_softmax else scores if bias is None else scores + bias
            order = wanted.sort(descending=True, stable=True).indices[:top_k]
            ids[t], weights[t] = order, scale * (scores[order] / (scores[order].sum() + 1e-20))

    return moe_route
