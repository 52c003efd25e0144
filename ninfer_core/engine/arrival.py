"""Numbers on their way from the device to the host."""

from __future__ import annotations

import torch
from torch import Tensor


class Arrival:
    """A few numbers that are copied as soon as they are there. What is launched behind them is not
    waited for."""

    def __init__(self, numbers: Tensor) -> None:
        is_cuda = numbers.is_cuda
        self._host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=is_cuda)
        self._host.copy_(numbers, non_blocking=True)
        self._copied = torch.Event(numbers.device) if is_cuda else None
        if self._copied:
            self._copied.record()

    def wait(self) -> list[list[int]]:
        """The rows of a matrix."""
        if self._copied:
            self._copied.synchronize()
        rows: list[list[int]] = self._host.tolist()
        return rows
