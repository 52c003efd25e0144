"""``selected_attention`` in FP64, token by token."""

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from ninfer_core.api import KernelRequest
from ninfer_core.ops.paged_attention.reference import attend
from ninfer_core.ops.pages import read_entries
from ninfer_core.state.step import StepBatch
from ninfer_core.state.views import PagedPlanes


def tokens_of(blocks: Tensor, block: int, position: int) -> Tensor:
    """Positions that the token at ``position`` attends to with its blocks ``[N]``, ascending."""
    device, begin = blocks.device, (position + 1) // block * block
    chosen = blocks[blocks >= 0].long().unsqueeze(1) * block + torch.arange(block, device=device)
    return torch.cat((chosen.flatten(), torch.arange(begin, position + 1, device=device)))


def bind(
    request: KernelRequest, planes: PagedPlanes
) -> Callable[[Tensor, Tensor, StepBatch, Tensor], Tensor]:
    sizes = request.sizes
    grouped = sizes["num_kv_heads"], -1, sizes["head_dim"]

    def selected_attention(
        q: Tensor, blocks: Tensor, batch: StepBatch, out: Tensor
    ) -> Tensor:
        bounds = batch.row_start[: batch.num_rows + 1].tolist()
        for row, (start, end) in enumerate(pairwise(bounds)):
            positions, table = batch.positions[start:end].tolist(), batch.page_table[row]
            length = max(positions, default=-1) + 1
            keys = values = read_entries(planes, "key", table, length)
            if "value" in planes.planes:
                values = read_entries(planes, "value", table, length)
            for t, p in enumerate(positions, start):
                query, seen = q[t].double().view(grouped), tokens_of(blocks[t], sizes["block"], p)
                out[t] = attend(query, keys[seen], values[seen], sizes["scale"])
        return out

    return selected_attention
