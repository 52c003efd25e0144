"""Entries of paged planes, as references read and write them."""

from __future__ import annotations

from torch import Tensor

from ninfer_core.state.step import StepBatch
from ninfer_core.state.views import PagedPlanes


def _entries_per_page(planes: PagedPlanes, name: str) -> int:
    return next(iter(planes.planes[name].values())).shape[1]


def read_entries(planes: PagedPlanes, name: str, page_table: Tensor, count: int) -> Tensor:
    """The first ``count`` entries of a sequence with these pages: FP64 ``[count, *shape]``."""
    pages = page_table[: -(-count // _entries_per_page(planes, name))].long()
    parts = planes.planes[name].items()
    stored = {part: tensor[pages].flatten(0, 1)[:count] for part, tensor in parts}
    return planes.codec.decode(stored).double()


def write_entries(
    planes: PagedPlanes, name: str, values: Tensor, rows: Tensor, entries: Tensor, batch: StepBatch
) -> None:
    """Encode ``values`` ``[N, *shape]`` into entries of the sequences in rows of the batch."""
    per_page = _entries_per_page(planes, name)
    pages = batch.page_table[rows.long(), entries // per_page].long()
    for part, stored in planes.codec.encode(values.float()).items():
        planes.planes[name][part][pages, entries % per_page] = stored


def append_tokens(planes: PagedPlanes, name: str, values: Tensor, batch: StepBatch) -> None:
    """Encode ``values`` ``[T, *shape]`` of the batch's tokens into a plane of one entry a token."""
    count = len(values)
    tokens = batch.token_row[:count], batch.positions[:count]
    write_entries(planes, name, values, *tokens, batch)
