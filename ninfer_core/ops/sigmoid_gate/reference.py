"""``sigmoid_gate`` in FP32, row by row."""

from collections.abc import Callable

import torch
from torch import Tensor

from ninfer_core.api import KernelRequest


def bind(request: KernelRequest) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    def sigmoid_gate(x: Tensor, gate: Tensor, out: Tensor) -> Tensor:
        for t in range(x.shape[0]):
            out[t] = x[t].float() * torch.sigmoid(gate[t].float())
        return out

    return sigmoid_gate
