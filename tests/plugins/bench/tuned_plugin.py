"""A plugin whose products have variants, one of which is wrong and one of which fails."""

from __future__ import annotations

from ninfer_core.api import KernelSpec, hookimpl
from ninfer_core.ops.linear import reference

NINFER_API = (1, 0)


@hookimpl
def ninfer_kernels():
    listed = f"{__name__}:variants"
    return [KernelSpec("linear", "tuned.linear", f"{__name__}:bind", variants=listed)]


bind = reference.bind


def variants(request):
    [weight] = request.weights
    rows, depth = weight.shape
    factories = (bind, wrong, failing)
    return [(f"7.{weight.format.name}", {"rows": rows, "depth": depth, "tile": [number]}, factory)
            for number, factory in enumerate(factories)]


def wrong(request, weight, bias=None):
    right = bind(request, weight, bias)
    return lambda x, out: right(x, out).mul_(1.5)


def failing(request, weight, bias=None):
    raise ValueError("too large")
