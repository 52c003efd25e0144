"""``moe_router`` of the references of its parts."""

from collections.abc import Callable

from torch import Tensor

from ninfer_core.api import KernelRequest
from ninfer_core.artifact.weight import Weight
from ninfer_core.ops.linear import reference as linear
from ninfer_core.ops.moe_route import reference as moe_route
from ninfer_core.ops.rmsnorm import reference as rmsnorm


def bind(request: KernelRequest, norm: Tensor, weight: Weight) -> Callable[..., Tensor]:
    normalise, product = rmsnorm.bind(request, norm), linear.bind(request, weight, None)
    route, num_experts = moe_route.bind(request, None), request.sizes["num_experts"]

    def moe_router(
        x: Tensor, normed: Tensor, scores: Tensor, ids: Tensor, weights: Tensor
    ) -> Tensor:
        product(normalise(x, normed), scores)
        route(scores[:, :num_experts], ids, weights)
        return normed

    return moe_router
