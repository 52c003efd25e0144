"""``index_select`` in FP64, token by token."""

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from ninfer_core.api import KernelRequest
from ninfer_core.ops.pages import read_entries
from ninfer_core.state.step import StepBatch
from ninfer_core.state.views import PagedPlanes


def best(scores: Tensor, count: int) -> Tensor:
    """Indexes of the largest scores, ascending; of equal ones the first."""
    return scores.sort(descending=True, stable=True).indices[:count].sort().values


def bind(
    request: KernelRequest, planes: PagedPlanes
) -> Callable[[Tensor, Tensor | None, StepBatch, Tensor], Tensor]:
    sizes, block, budget = request.sizes, request.sizes["block"], request.sizes["budget"]
    heads = sizes["num_heads"], sizes["head_dim"]

    def scores(query: Tensor, weights: Tensor | None, keys: Tensor) -> Tensor:
        each = (sizes["scale"] * (keys @ query.double().view(heads).T)).relu()  # [N, Hi]
        return (each if weights is None else each * weights.double()).sum(1)

    def index_select(
        q: Tensor, weights: Tensor | None, batch: StepBatch, blocks: Tensor
    ) -> Tensor:
        bounds = batch.row_start[: batch.num_rows + 1].tolist()
        blocks[: len(q)] = -1
        for row, (start, end) in enumerate(pairwise(bounds)):
            counts = ((batch.positions[start:end] + 1) // block).tolist()
            most = max(counts, default=0)
            keys = read_entries(planes, "index_key", batch.page_table[row], most)
            for t, count in enumerate(counts, start):
                own = None if weights is None else weights[t]
                chosen = torch.arange(count, device=blocks.device)
                if count > budget:
                    chosen = best(scores(q[t], own, keys[:count]), budget)
                blocks[t, : len(chosen)] = chosen
        return blocks

    return index_select
