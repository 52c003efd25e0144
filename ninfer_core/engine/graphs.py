"""Steps of a GPU as captured graphs: all that a step launches is launched at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import torch

from ninfer_core.state.step import StepBatch

Size = tuple[int, int, int, int]
"""Rows, tokens, rows of logits, bound of pages."""


T = TypeVar("T")


class CapturedForward(Generic[T]):
    """A model's steps over one persistent batch; each size is captured once, and replayed then.

    A size that was not captured beforehand runs as it is, because there may be many and few of them
    come again. Nothing that runs may allocate or wait for the device.
    """

    def __init__(self, forward: Callable[[StepBatch], T]) -> None:
        self._forward = forward
        self._graphs: dict[Size, tuple[torch.cuda.CUDAGraph, T]] = {}
        self._memory = torch.cuda.graph_pool_handle()

    def capture(self, batch: StepBatch) -> None:
        """Of the batch's present size; what it holds is run, too."""
        self._forward(batch)  # compiles kernels and allocates what they share
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):
            result = self._forward(batch)
        self._graphs[_size(batch)] = graph, result

    def __call__(self, batch: StepBatch) -> T:
        """What the steps give, logits of a model, valid until the next call."""
        captured = self._graphs.get(_size(batch))
        if captured is None:
            return self._forward(batch)
        graph, result = captured
        graph.replay()
        return result


def _size(batch: StepBatch) -> Size:
    return batch.num_rows, batch.num_tokens, batch.num_logits, batch.num_pages
