"""``paged_attention`` in FP64, token by token: the shapes of a token's products, and so its bits,
depend on its position alone."""

from collections.abc import Callable
from itertools import pairwise

from torch import Tensor

from ninfer_core.api import KernelRequest
from ninfer_core.ops.pages import read_entries
from ninfer_core.state.step import StepBatch
from ninfer_core.state.views import PagedPlanes


def attend(query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """``[Hq D]`` of one token: FP64 query ``[Hkv, Hq/Hkv, D]``, keys and values ``[N, Hkv, D]``."""
    scores = query @ keys.transpose(0, 1).mT * scale
    return (scores.softmax(-1) @ values.transpose(0, 1)).flatten()


def bind(
    request: KernelRequest, planes: PagedPlanes
) -> Callable[[Tensor, StepBatch, Tensor], Tensor]:
    sizes = request.sizes
    grouped = sizes["num_kv_heads"], -1, sizes["head_dim"]

    def paged_attention(q: Tensor, batch: StepBatch, out: Tensor) -> Tensor:
        bounds = batch.row_start[: batch.num_rows + 1].tolist()
        for row, (start, end) in enumerate(pairwise(bounds)):
            positions = batch.positions[start:end].tolist()
            length = max(positions, default=-1) + 1
            keys, values = (
                read_entries(planes, name, batch.page_table[row], length)
                for name in ("key", "value")
            )
            for t, p in enumerate(positions, start):
                query, seen = q[t].double().view(grouped), slice(p + 1)
                out[t] = attend(query, keys[seen], values[seen], sizes["scale"])
        return out

    return paged_attention
