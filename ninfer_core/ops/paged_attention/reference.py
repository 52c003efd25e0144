"""``paged_attention`` in FP64, token by token: the shapes of a token's products, and so its bits,
depend on its position alone."""

from collections.abc import Callable
from itertools import pairwise

from torch import Tensor

from ninfer_core.api import KernelRequest
from ninfer_core.state.step import PAGE_TOKENS, StepBatch
from ninfer_core.state.views import PagedPlanes


def _gather(planes: PagedPlanes, name: str, page_table: Tensor, count: int) -> Tensor:
    """The first ``count`` tokens of a sequence: ``[Hkv, count, D]``."""
    pages = page_table[: -(-count // PAGE_TOKENS)].long()
    parts = planes.planes[name].items()
    stored = {part: tensor[pages].flatten(0, 1)[:count] for part, tensor in parts}
    return planes.codec.decode(stored).double().transpose(0, 1)


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
            keys = _gather(planes, "key", batch.page_table[row], length)
            values = _gather(planes, "value", batch.page_table[row], length)
            for t, p in enumerate(positions, start):
                query = q[t].double().view(grouped)
                scores = query @ keys[:, : p + 1].transpose(1, 2) * sizes["scale"]
                out[t] = (scores.softmax(-1) @ values[:, : p + 1]).flatten()
        return out

    return paged_attention
