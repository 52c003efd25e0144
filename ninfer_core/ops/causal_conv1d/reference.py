"""``causal_conv1d`` in FP32, token by token."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import silu

from ninfer_core.api import KernelRequest
from ninfer_core.ops.slot_rows import extend_window, slot_rows
from ninfer_core.state.step import StepBatch
from ninfer_core.state.views import SlotPlanes


def _convolve(weight: Tensor, columns: Tensor) -> Tensor:
    """``[C]`` of the last of as many columns as there are taps."""
    total = torch.zeros_like(columns[0])
    for tap, column in zip(weight, columns, strict=True):
        total = total + tap * column
    return silu(total)


def bind(
    request: KernelRequest, weight: Tensor, planes: SlotPlanes
) -> Callable[[Tensor, StepBatch, Tensor], Tensor]:
    weight, dilation = weight.float(), request.sizes.get("dilation", 1)
    window = (weight.shape[0] - 1) * dilation

    def causal_conv1d(x: Tensor, batch: StepBatch, out: Tensor) -> Tensor:
        for row in slot_rows(batch):
            columns = extend_window(planes, row, x[row.tokens].float())
            for t in range(row.end - row.begin):
                out[row.begin + t] = _convolve(weight, columns[t : t + window + 1 : dilation])
        return out

    return causal_conv1d
