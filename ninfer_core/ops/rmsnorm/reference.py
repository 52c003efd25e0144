"""``rmsnorm`` in FP32, row by row."""

from collections.abc import Callable

from torch import Tensor

from ninfer_core.api import KernelRequest


def bind(request: KernelRequest, weight: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    eps, offset = request.sizes["eps"], 1.0 if request.sizes["unit_offset"] else 0.0
    scale = weight.float() + offset

    def rmsnorm(x: Tensor, out: Tensor) -> Tensor:
        for t in range(x.shape[0]):  # the bits of a mean over many rows depend on their number
            row = x[t].float()
            out[t] = row / (row.square().mean() + eps).sqrt() * scale
        return out

    return rmsnorm
