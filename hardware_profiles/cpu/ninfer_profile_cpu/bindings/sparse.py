"""``index_select`` and ``selected_attention``: the ops of sparse attention."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import pad

from ninfer_core.api import KernelRequest
from ninfer_core.state.step import PAGE_TOKENS, StepBatch
from ninfer_core.state.views import PagedPlanes
from ninfer_profile_cpu.bindings.cache import bind_paged_attention
from ninfer_profile_cpu.bindings.matrix import multiply
from ninfer_profile_cpu.bindings.stored_weight import dense_matrix
from ninfer_profile_cpu.kernels.pool import pool
from ninfer_profile_cpu.kernels.products import BUFFER_BYTES
from ninfer_profile_cpu.kernels.weight_fields import BLOCK_ROWS

SCORE_BYTES = 32 << 20
"""Memory for the scores of some tokens: about what stays in L3."""

GATHERED_BYTES = 32 << 20
"""Memory for what some tokens attend to, at least for one."""


def bind_index_select(
    request: KernelRequest, planes: PagedPlanes
) -> Callable[[Tensor, Tensor | None, StepBatch, Tensor], Tensor]:
    sizes, block, budget = request.sizes, request.sizes["block"], request.sizes["budget"]
    heads, head_dim = sizes["num_heads"], sizes["head_dim"]
    every = torch.arange(budget, dtype=torch.int32)
    pool().reserve(BUFFER_BYTES + dense_matrix(torch.empty(BLOCK_ROWS, head_dim)).area_bytes)

    def scores(q: Tensor, weights: Tensor | None, keys: Tensor) -> Tensor:
        """``[T, N]``; products and sums one after the other, so that where a number lies in memory
        makes no difference to its bits."""
        each = q.new_empty(len(q) * heads, len(keys))
        multiply(dense_matrix(keys), q.reshape(-1, head_dim), each)
        parts = each.mul_(sizes["scale"]).clamp_(min=0).unflatten(0, (-1, heads)).unbind(1)
        total = torch.zeros_like(parts[0])
        for head, part in enumerate(parts):
            total += part if weights is None else part * weights[:, head, None]
        return total

    def choose(q: Tensor, weights: Tensor | None, counts: Tensor, keys: Tensor) -> Tensor:
        """int32 ``[T, budget]`` for tokens that cannot have all blocks."""
        each = scores(q, weights, keys).nan_to_num_(torch.inf, torch.inf, -torch.inf)
        each.masked_fill_(torch.arange(len(keys)) >= counts.unsqueeze(1), -torch.inf)
        return best(each, budget).int()

    def index_select(
        q: Tensor, weights: Tensor | None, batch: StepBatch, blocks: Tensor
    ) -> Tensor:
        counts = (batch.positions[: len(q)] + 1) // block
        blocks.copy_(every).masked_fill_(every >= counts.unsqueeze(1), -1)
        bounds = batch.row_start[: batch.num_rows + 1].tolist()
        for row, (start, end) in enumerate(pairwise(bounds)):
            start += int((counts[start:end] <= budget).sum())  # positions go up
            if start == end:
                continue
            keys = _keys(planes, batch.page_table[row], int(counts[end - 1]))
            step = max(1, SCORE_BYTES // (4 * heads * len(keys)))
            for first in range(start, end, step):
                part = slice(first, min(first + step, end))
                own = None if weights is None else weights[part]
                blocks[part] = choose(q[part], own, counts[part], keys)
        return blocks

    return index_select


def best(scores: Tensor, count: int) -> Tensor:
    """``[T, count]``, indexes of the largest scores of each row, ascending; of equal ones the
    first. There are more than ``count`` above -inf, and no NaN."""
    last = scores.topk(count, sorted=False).values.amin(1, keepdim=True)
    above, equal = scores > last, scores == last
    room = count - above.sum(1, keepdim=True)
    chosen = above | (equal & (equal.cumsum(1) <= room))
    return chosen.nonzero()[:, 1].view(-1, count)


def _keys(planes: PagedPlanes, page_table: Tensor, count: int) -> Tensor:
    """The first ``count`` index keys of a sequence and, to a multiple of the rows that a product
    takes at once, anything: fp32 ``[N, D]``."""
    parts = planes.planes["index_key"]
    per_page = next(iter(parts.values())).shape[1]
    rows = -(-count // BLOCK_ROWS) * BLOCK_ROWS
    num_pages = -(-rows // per_page)
    pages = pad(page_table[:num_pages], (0, max(0, num_pages - len(page_table)))).clamp(min=0)
    stored = {name: part[pages].flatten(0, 1)[:rows] for name, part in parts.items()}
    return planes.codec.decode(stored).contiguous()


def bind_selected_attention(
    request: KernelRequest, planes: PagedPlanes
) -> Callable[[Tensor, Tensor, StepBatch, Tensor], Tensor]:
    block = request.sizes["block"]
    every = bind_paged_attention(request, _with_values(planes))
    gathered = cache(lambda num_blocks: _Gathered(request, planes, num_blocks))

    def selected_attention(
        q: Tensor, blocks: Tensor, batch: StepBatch, out: Tensor
    ) -> Tensor:
        complete = (batch.positions[: len(q)] + 1) // block
        if (blocks >= 0).sum(1).equal(complete):
            return every(q, batch, out)
        attend = gathered(blocks.shape[1])
        for first in range(0, len(q), attend.max_tokens):
            part = slice(first, min(first + attend.max_tokens, len(q)))
            attend(q[part], blocks[part], batch, part, out[part])
        return out

    return selected_attention


class _Gathered:
    """Attention to what a few tokens have chosen, put together in pages of a cache of their own:
    with all blocks chosen it is the cache itself, and so are the bits."""

    def __init__(self, request: KernelRequest, planes: PagedPlanes, num_blocks: int) -> None:
        self._planes, self._block = planes, request.sizes["block"]
        num_pages = -(-(num_blocks + 1) * self._block // PAGE_TOKENS)
        parts = [part for name in _names(planes) for part in planes.planes[name].values()]
        page_bytes = sum(part[0].numel() * part.element_size() for part in parts)
        self.max_tokens = max(1, GATHERED_BYTES // (num_pages * page_bytes))
        self._copies = {
            name: {
                part: tensor.new_empty((self.max_tokens * num_pages, *tensor.shape[1:]))
                for part, tensor in planes.planes[name].items()
            }
            for name in _names(planes)
        }
        copy = PagedPlanes(planes.codec_name, planes.codec, self._copies)
        self._attend = bind_paged_attention(request, _with_values(copy))
        count = {"max_tokens": self.max_tokens, "max_rows": self.max_tokens}
        self._batch = StepBatch.allocate(**count, max_pages=num_pages, max_logits=1)
        self._batch.page_table.flatten().copy_(torch.arange(self.max_tokens * num_pages))
        self._batch.row_start.copy_(torch.arange(self.max_tokens + 1))
        self._places = torch.arange(num_pages * PAGE_TOKENS)

    def __call__(
        self, q: Tensor, blocks: Tensor, batch: StepBatch, part: slice, out: Tensor
    ) -> None:
        """Of the tokens ``part`` of a batch."""
        positions, rows = batch.positions[part], batch.token_row[part].long()
        complete, chosen = (positions + 1) // self._block, (blocks >= 0).sum(1)
        source = self._sources(blocks, positions, chosen * self._block)
        pages = batch.page_table[rows.unsqueeze(1), source // PAGE_TOKENS].long()
        for name, copies in self._copies.items():
            for each, copy in copies.items():
                taken = self._planes.planes[name][each][pages, source % PAGE_TOKENS]
                copy.flatten(0, 1)[: source.numel()] = taken.flatten(0, 1)
        self._batch.num_tokens = self._batch.num_rows = len(q)
        self._batch.positions[: len(q)] = positions - (complete - chosen) * self._block
        self._attend(q, self._batch, out)

    def _sources(self, blocks: Tensor, positions: Tensor, chosen: Tensor) -> Tensor:
        """``[T, places]``: the position that each place of a gathered sequence is of: first of the
        ``chosen`` ones, then of the open block; places behind it are of the token itself."""
        numbers, within = self._places // self._block, self._places % self._block
        numbers = numbers.clamp(max=blocks.shape[1] - 1)
        taken = blocks[:, numbers].clamp(min=0).long() * self._block + within
        behind = self._places - chosen.unsqueeze(1)
        last = positions.unsqueeze(1)
        rest = (last + 1) // self._block * self._block + behind
        return torch.where(behind < 0, taken, rest.minimum(last))


def _names(planes: PagedPlanes) -> tuple[str, ...]:
    return ("key", "value") if "value" in planes.planes else ("key",)


def _with_values(planes: PagedPlanes) -> PagedPlanes:
    """Keys are the values too, where there are no others."""
    keys = planes.planes["key"]
    return PagedPlanes(planes.codec_name, planes.codec, {"value": keys, **planes.planes})
