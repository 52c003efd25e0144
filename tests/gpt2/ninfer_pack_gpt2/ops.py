"""Ops that the core does not have, ``(x, out) -> out`` of one shape; ``out`` may be ``x``."""

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional as F

from ninfer_core.api import KernelRequest

Op = Callable[[Tensor, Tensor], Tensor]


def bind_layernorm(request: KernelRequest, weight: Tensor, bias: Tensor) -> Op:
    """``gpt2.layernorm`` of ``[T, H]``; size ``eps``."""
    constants = (weight.shape, weight.float(), bias.float(), request.sizes["eps"])
    return _by_rows(lambda row: F.layer_norm(row, *constants))


def bind_gelu(request: KernelRequest) -> Op:
    """``gpt2.gelu``, with the approximation by tanh."""
    return _by_rows(lambda row: F.gelu(row, approximate="tanh"))


def _by_rows(function: Callable[[Tensor], Tensor]) -> Op:
    """In fp32, and one row at a time, so that its bits do not depend on its company."""

    def op(x: Tensor, out: Tensor) -> Tensor:
        for row, target in zip(x, out, strict=True):
            target.copy_(function(row.float()))
        return out

    return op
